"""Before and after: the whole program over a stream in several orders, or one step on examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dspy

from rb_dspy.compile.metric import Metric
from rb_dspy.compile.search import Setup
from rb_dspy.compile.steps import balanced, step_module
from rb_dspy.concurrency import run_parallel
from rb_dspy.errors import InfrastructureError, UnparseableOutput, describe_error
from rb_dspy.evaluation import Arm, Comparison, compare, evaluate
from rb_dspy.matts import BankProgram
from rb_dspy.stream import TaskStream


def compare_streams(setup: Setup, changed: BankProgram | None, stream: TaskStream) -> Comparison:
    """Evaluate the program before and after.

    If nothing changed (``changed`` is None), the stream is run once, in its own order, for the score.
    """
    if changed is None:
        setup.reporter.phase(f"scoring {stream.name}", 1)
        with setup.models.use():
            report = setup.run(setup.program, {"stream": stream}).report
        setup.reporter.step()
        rows = {each.task.id: [None if each.solved is None else float(each.solved)] for each in report.results}
        errors = {(each.task.id, 0) for each in report.results if each.broke}
        return compare(rows, rows, errors_before=errors, errors_after=errors, streams=True)
    programs = {"before": setup.program, "after": changed}
    setup.reporter.phase(f"scoring {stream.name}", len(programs) * len(stream) * setup.orders)
    with setup.models.use():  # for modules of the user's own, which read dspy.settings.lm
        return evaluate(
            {name: Arm(each, backbones=setup.models.backbones, bank=setup.bank) for name, each in programs.items()},
            stream,
            orders=setup.orders,
            jobs=setup.jobs,
            seed=setup.seed,
            baseline="before",
            embedder=setup.embedder,
            on_progress=lambda progress: setup.reporter.step(progress.done),
        ).comparisons["after"]


def compare_examples(setup: Setup, changed: BankProgram | None, examples: Sequence[Any], name: str) -> Comparison:
    """Score the step before and after; verdicts by balanced accuracy. ``changed`` is None if nothing changed.

    An example that fails with an error counts as 0.

    Raises:
        InfrastructureError: All of them failed.
    """
    programs = [setup.program] if changed is None else [setup.program, changed]
    setup.reporter.phase(f"scoring {name}", len(programs) * len(examples))
    sides = [_score(setup, step_module(each, setup.step), examples) for each in programs]
    (rows, errors), (rows_after, errors_after) = sides[0], sides[-1]
    return compare(rows, rows_after, errors_before=errors, errors_after=errors_after)


def _score(
    setup: Setup, module: dspy.Module, examples: Sequence[Any]
) -> tuple[dict[str, list[float]], set[tuple[str, int]]]:
    """Task -> its score, and the pairs that failed."""
    metric = Metric(setup.step, setup.program)
    fatal: list[Exception] = []

    def run(example: Any) -> float:
        if fatal:
            raise fatal[0]
        try:
            with setup.models.use():
                score = float(metric(example, setup.run(module, example.inputs())))
            setup.reporter.step()
        except (InfrastructureError, UnparseableOutput):
            raise
        except Exception as exc:
            fatal.append(exc)  # a bug, bad input, or on_progress failed: every other example would fail too
            raise
        return score

    results = run_parallel([partial(run, example) for example in examples], setup.jobs)
    if fatal:
        raise fatal[0]
    errors = [(example, each) for example, each in zip(examples, results, strict=True) if isinstance(each, Exception)]
    if len(errors) == len(examples):
        raise InfrastructureError(f"all {len(errors)} examples failed; the first: {describe_error(errors[0][1])}")
    scores = [0.0 if isinstance(each, Exception) else each for each in results]
    return balanced(examples, scores), {(example.task.id, 0) for example, _ in errors}
