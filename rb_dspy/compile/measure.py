"""Before and after: the whole program over a stream in several orders, or one step on examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.metric import Metric
from rb_dspy.compile.models import Models
from rb_dspy.compile.progress import Reporter
from rb_dspy.compile.steps import balanced
from rb_dspy.concurrency import run_parallel
from rb_dspy.errors import InfrastructureError, UnparseableOutput, describe_error
from rb_dspy.evaluation import Arm, Comparison, compare, evaluate
from rb_dspy.matts import BankProgram
from rb_dspy.protocols import Embedder
from rb_dspy.stream import StreamProgram, TaskStream


def compare_streams(
    before: BankProgram,
    after: BankProgram | None,
    stream: TaskStream,
    models: Models,
    reporter: Reporter,
    *,
    bank: MemoryBank | None,
    embedder: Embedder | str | None,
    orders: int,
    seed: int,
    threads: int,
) -> Comparison:
    """Evaluate the two programs, which have no backbones of their own.

    If nothing changed (``after`` is None), the stream is run once, in its own order, for the score.
    """
    if after is None:
        reporter.phase(f"scoring {stream.name}", 1)
        with models.use():
            report = StreamProgram(before, bank, embedder=embedder)(stream=stream).report
        reporter.step()
        rows = {each.task.id: [None if each.unscored else float(bool(each.solved))] for each in report.results}
        errors = {(each.task.id, 0) for each in report.results if each.error}
        return compare(rows, rows, errors_before=errors, errors_after=errors, streams=True)
    arms = {
        name: Arm(program, backbones=models.backbones, bank=bank)
        for name, program in (("before", before), ("after", after))
    }
    reporter.phase(f"scoring {stream.name}", len(arms) * len(stream) * orders)
    return evaluate(
        arms,
        stream,
        orders=orders,
        jobs=threads,
        seed=seed,
        baseline="before",
        embedder=embedder,
        on_progress=lambda progress: reporter.step(progress.done),
    ).comparisons["after"]


def compare_examples(
    before: dspy.Module,
    after: dspy.Module | None,
    examples: Sequence[Any],
    metric: Metric,
    models: Models,
    reporter: Reporter,
    *,
    name: str,
    threads: int,
) -> Comparison:
    """Score the step before and after; verdicts by balanced accuracy. ``after`` is None if nothing changed.

    An example that fails with an error counts as 0.

    Raises:
        InfrastructureError: All of them failed.
    """
    modules = [before] if after is None else [before, after]
    reporter.phase(f"scoring {name}", len(modules) * len(examples))
    sides = [_score(module, examples, metric, models, reporter, threads) for module in modules]
    (rows, errors), (rows_after, errors_after) = sides[0], sides[-1]
    return compare(rows, rows_after, errors_before=errors, errors_after=errors_after)


def _score(
    module: dspy.Module, examples: Sequence[Any], metric: Metric, models: Models, reporter: Reporter, threads: int
) -> tuple[dict[str, list[float]], set[tuple[str, int]]]:
    """Task -> its score, and the pairs that failed."""

    fatal: list[Exception] = []

    def run(example: Any) -> float:
        if fatal:
            raise fatal[0]
        try:
            with models.use():
                score = float(metric(example, module(**example.inputs())))
        except (InfrastructureError, UnparseableOutput):
            raise
        except Exception as exc:
            fatal.append(exc)  # no other example would do better
            raise
        reporter.step()
        return score

    results = run_parallel([partial(run, example) for example in examples], threads)
    if fatal:
        raise fatal[0]
    errors = [(example, each) for example, each in zip(examples, results, strict=True) if isinstance(each, Exception)]
    if len(errors) == len(examples):
        raise InfrastructureError(f"all {len(errors)} examples failed; the first: {describe_error(errors[0][1])}")
    scores = [0.0 if isinstance(each, Exception) else each for each in results]
    return balanced(examples, scores), {(example.task.id, 0) for example, _ in errors}
