"""Rating a program on a whole split: streams in several orders, or the examples of a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any, TypeVar

import dspy

from rb_dspy.compile.answers import Cast
from rb_dspy.compile.broken import MOST_SAID, all_broke
from rb_dspy.compile.budget import Rate
from rb_dspy.compile.counted import counting
from rb_dspy.compile.ratings import Ratings, rated_run
from rb_dspy.compile.stages import Stage
from rb_dspy.errors import BackboneError, InfrastructureError, MissingDependency, describe_error
from rb_dspy.stream import TaskStream

T = TypeVar("T")


def in_orders(stream: TaskStream, orders: int, seed: int) -> list[TaskStream]:
    """The stream as it is, and in further orders."""
    return [stream, *(stream.permuted(seed + order) for order in range(1, orders))]


def rate_stream(
    program: dspy.Module,
    stream: TaskStream,
    cast: Cast,
    *,
    orders: int,
    seed: int,
    threads: int = 1,
    on_report: Callable[[Any], None] = lambda report: None,
    on_scored: Callable[[], None] = lambda: None,
) -> Ratings:
    """Which tasks ``program``, a ``StreamProgram``, solves, order by order. A task that broke counts as not solved;
    one whose outcome nobody knows, in none of the ratings that are looked at together, does not count (``left_out``).

    Other orders are other samples as well; the same order of two programs has the same rollout ids. ``on_scored`` is
    called after every task of every order, from whichever thread did it. Raises ``InfrastructureError`` where every
    task of an order broke.
    """
    ratings = Ratings(crossed=True)
    ordered = in_orders(stream, orders, seed)

    def run(number: int) -> dspy.Prediction:
        with cast.playing(number), counting(program.program, lambda _: on_scored()):
            prediction = program(stream=ordered[number])
        cast.check()
        error = all_broke(prediction)
        if error:
            raise InfrastructureError(f"stream {ordered[number].name}: every task broke; the first: {error}")
        return prediction

    for prediction in in_threads(run, range(orders), threads):
        on_report(prediction.report)
        rated_run(prediction.report, ratings)
    return ratings


def rate_examples(
    stage: Stage,
    module: dspy.Module,
    examples: Sequence[Any],
    metric: Rate,
    cast: Cast,
    *,
    threads: int = 1,
    on_scored: Callable[[], None] = lambda: None,
) -> Ratings:
    """The metric of each example. One that broke counts as 0; where all do, ``InfrastructureError``.

    By task. Verdicts are weighted so that successes and failures count the same together, however many of each there
    are. ``on_scored`` is called after every example, from whichever thread did it.
    """
    ratings = Ratings()
    weights = _by_label(examples) if stage == "judge" else [None] * len(examples)
    errors: list[str] = []

    def run(example: Any) -> tuple[float, str]:
        found = rated(example)
        on_scored()
        return found

    def rated(example: Any) -> tuple[float, str]:
        try:
            with cast.playing():
                return float(metric(example, module(**example.inputs()))), ""
        except (BackboneError, MissingDependency):
            raise
        except Exception as exc:  # noqa: BLE001 (an example that breaks counts as 0, whatever broke it)
            return 0.0, describe_error(exc, MOST_SAID)
        finally:
            cast.check()

    for example, weight, (score, error) in zip(examples, weights, in_threads(run, examples, threads), strict=True):
        ratings.add(example.task.id, score, weight=weight, broken=bool(error))
        errors += [error] if error else []
    if examples and len(errors) == len(examples):
        raise InfrastructureError(f"all {len(errors)} examples broke; the first: {errors[0]}")
    return ratings


def _by_label(examples: Sequence[Any]) -> list[float]:
    """What each verdict counts, so that whoever always says the same is right half of the time."""
    counts = Counter(example.success for example in examples)
    return [1 / counts[example.success] for example in examples]


def in_threads(function: Callable[[Any], T], inputs: Sequence[Any], threads: int) -> list[T]:
    """``function`` of each input, in order; each in this context. No input is ever started twice.

    After a failure, or an interrupt, nothing more is started.
    """
    if threads == 1:
        return [function(each) for each in inputs]
    pool = ThreadPoolExecutor(threads)
    try:
        jobs = [pool.submit(copy_context().run, function, each) for each in inputs]
        wait(jobs, return_when=FIRST_EXCEPTION)
    finally:
        pool.shutdown(cancel_futures=True)
    return [job.result() for job in jobs]  # jobs start in order, so the first failure precedes all that is cancelled
