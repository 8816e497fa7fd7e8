"""``rb-dspy runs``: the results of earlier runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, one_line, out, say, table
from rb_dspy.text import counted

app = typer.Typer(no_args_is_help=True, help="The results of earlier runs, stored beside the bank.")

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of a run, or the beginning of an id; 'last' means the newest run.")
]


@app.command("list", epilog="Example: `rb-dspy runs list`")
@options.shared
def list_runs(bank: options.Bank = None, config: options.Config = None) -> None:
    """List runs, oldest first."""
    from rb_dspy.stream.journal import Folder
    from rb_dspy.stream.score import numbers

    journal = Folder.of(options.settings(config, None, bank__url=bank).bank.url)
    every = journal.runs()
    shown = table("id", "started", "tasks", "done", "solved", "memory")
    for each in every:
        head, found = each.head, numbers(each.rows.values())
        done = Text(f"{len(each.done)} of {len(each.tasks)}", "" if each.finished else "yellow")
        emit({**head, "done": len(each.done), "finished": each.finished, "summary": found})
        solved = f"{found['solved']} of {found['scored']}" if found["scored"] else "unknown"
        solved += f", {found['broke']} broke" if found["broke"] else ""
        started = head["created_at"][:16].replace("T", " ")
        shown.add_row(Text(each.id), started, Text(head.get("stream", "")), done, solved, Text(head.get("memory", "")))
    out.print(shown) if every else say(f"{journal}: no runs yet; rb-dspy run starts one")


@app.command(epilog="Example: `rb-dspy runs show last`")
@options.shared
def show(run: RunArgument, bank: options.Bank = None, config: options.Config = None) -> None:
    """Show one run: its summary, and a line for each task."""
    from rb_dspy.cli.summary import print_summary
    from rb_dspy.stream.journal import Folder
    from rb_dspy.stream.score import numbers

    found = Folder.of(options.settings(config, None, bank__url=bank).bank.url).find(run)
    rows = [found.rows[id] for id in found.tasks if id in found.rows]
    for row in rows:
        emit(row)
    counts = numbers(rows, found.head.get("roles"))
    emit({**found.head, "finished": found.finished, "summary": counts})
    head = {**dict.fromkeys(("stream", "memory", "scope", "program", "models"), ""), **found.head}
    say((found.id, "bold"), f"  {head['stream']}, {counted(len(found.tasks), 'task')}, memory {head['memory']}")
    about = f"started {head['created_at']}", f"scope {head['scope']}", head["program"], head["models"]
    say((" · ".join(filter(None, about)), "dim"))
    shown = table("#", "task", "solved", "verdict", "steps", "tokens", "answer", right=("#", "steps", "tokens"))
    marks = {True: ("yes", "green"), False: ("no", "yellow"), None: ("?", "dim")}
    for row in rows:
        answer = Text(one_line(row["error"], 100), "red") if row["error"] else Text(one_line(str(row["answer"]), 60))
        if row.get("submitted"):
            answer.append(f"  rollout {row['submitted']} of {row['rollouts']}", "dim")
        numbers_ = ("" if row["steps"] is None else str(row["steps"]), f"{row['tokens']:,}")
        task = Text(one_line(row["task"], 40))
        shown.add_row(str(row["position"] or ""), task, Text(*marks[row["solved"]]), row["verdict"], *numbers_, answer)
    out.print(shown)
    print_summary(counts, len(found.tasks))


@app.command(epilog="Example: `rb-dspy runs compare 3935 last`")
@options.shared
def compare(before: RunArgument, after: RunArgument, bank: options.Bank = None, config: options.Config = None) -> None:
    """Compare two runs on their common tasks: the difference, with a paired 95 % interval."""
    from rb_dspy.errors import InputError
    from rb_dspy.evaluation import compare as paired
    from rb_dspy.stream.journal import Folder
    from rb_dspy.stream.score import Score, broke

    journal = Folder.of(options.settings(config, None, bank__url=bank).bank.url)
    runs = [journal.find(name) for name in (before, after)]
    scores = [
        {id: float(bool(row["solved"])) for id, row in each.rows.items() if row["solved"] is not None or broke(row)}
        for each in runs
    ]
    both = [id for id in scores[0] if id in scores[1]]
    if not both:
        raise InputError(
            f"runs {runs[0].id} and {runs[1].id} have no scored task in common; choose two runs of the same tasks"
        )
    learning = any(each.head.get("memory") == "bank" for each in runs)
    errors = [[(id, 0) for id in both if broke(each.rows[id])] for each in runs]
    before_after = [{id: [each[id]] for id in both} for each in scores]
    found = paired(*before_after, errors_before=errors[0], errors_after=errors[1], streams=learning)
    gained = [id for id in both if scores[0][id] < scores[1][id]]
    lost = [id for id in both if scores[0][id] > scores[1][id]]
    emit({"before": runs[0].id, "after": runs[1].id, "comparison": found, "gained": gained, "lost": lost})
    shown = table("run", "memory", "program", "solved")
    for each, score, broken in zip(runs, scores, errors, strict=True):
        solved = str(Score(round(sum(score[id] for id in both)), len(both), len(broken)))
        shown.add_row(
            Text(each.id, "bold"), Text(each.head.get("memory", "")), Text(each.head.get("program", "")), solved
        )
    out.print(shown)
    say(f"{found.verdict}: solved {found}")
    if learning:
        say("one run that learns is one draw: for a verdict, use rb-dspy evaluate with several orders")
    for name, ids in (("only after", gained), ("only before", lost)):
        if ids:
            say(f"{name}: ", (", ".join(ids), "dim"))
