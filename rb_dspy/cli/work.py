"""``rb-dspy work``: do queued evaluations, together with other machines."""

from __future__ import annotations

from typing import Annotated

import typer

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, ends_on_interrupt, out, say


@options.shared
def work(
    url: Annotated[str, typer.Argument(metavar="URL", help="The database: postgresql://USER:PASSWORD@HOST/DATABASE.")],
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Streams run in parallel here.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Work on every node of this Ray cluster; auto: the one of this machine."),
    ] = None,
) -> None:
    """Do the streams of queued evaluations until all are done, here and on other machines that run this command.

    rb-dspy evaluate ... --on URL --enqueue queues one. A worker may be killed at any time: the others do its streams.
    Code that the evaluation names (--agent, --score, --env) is imported from this folder: use databases that you trust.
    """
    from rich.markdown import Markdown

    from rb_dspy.evaluation import queue

    with ends_on_interrupt("results are in the database; the same command continues"):
        if ray is not None:
            from rb_dspy.evaluation import cluster

            cluster.work(url, ray, jobs=jobs)
        else:
            queue.work(url, jobs=jobs)
    for id, job, report in queue.queued(url):
        emit({"job": id, "stream": job.name, "report": report})
        if report is not None:
            say((f"{job.name}, job {id}", "bold"))
            out.print(Markdown(report.to_markdown()))
