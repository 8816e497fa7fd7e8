"""Before and after, on the streams that nothing was written from; and what happens where that breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rb_dspy.compile.answers import Cast
from rb_dspy.compile.measure import rate_examples, rate_stream
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.plan import Examples, Plan
from rb_dspy.compile.progress import Teller
from rb_dspy.compile.result import Scores
from rb_dspy.compile.scores import Comparison, Ratings, compare
from rb_dspy.compile.stages import Program
from rb_dspy.compile.state import save_program
from rb_dspy.errors import InfrastructureError, RBError
from rb_dspy.stream.tasks import TaskStream


class Unscored(InfrastructureError):
    """The optimizer was done, and what came after it broke. What it found is in ``program``, unscored.

    The cause is in ``__cause__``, and the command line exits with what that would.
    """

    def __init__(self, message: str, program: Program, exit_code: int) -> None:
        super().__init__(message)
        self.program = program
        self.exit_code = exit_code


@contextmanager
def kept(program: Program, place: Path | None) -> Iterator[None]:
    """Whatever breaks inside the block, ``program`` is not lost: it is in ``Unscored``, and in ``place``."""
    try:
        yield
    except RBError as exc:
        try:
            if place is not None:
                save_program(program, place)
            where = "in program of this error" if place is None else f"in {place}, and the same compile goes on there"
        except RBError as unsaved:
            where = f"in program of this error only ({unsaved})"
        raise Unscored(
            f"the prompts that were found are {where}; what came after broke: {exc}", program, exc.exit_code
        ) from exc


def scores_of(plan: Plan, program: Program, examples: Examples, cast: Cast, teller: Teller, *, changed: bool) -> Scores:
    """The program of ``plan`` against ``program``, on dev and held-out."""

    def scored(name: str, stream: TaskStream, of_stream: Sequence[Any]) -> Comparison:
        teller.phase(f"scoring {name} before")
        before = rated(plan.work, stream, of_stream)
        teller.phase(f"scoring {name} after")
        return compare(before, rated(program, stream, of_stream) if changed else before)

    def rated(of: Program, stream: TaskStream, of_stream: Sequence[Any]) -> Ratings:
        module = plan.module(of)
        if plan.stage == "all":
            return rate_stream(module, stream, cast, orders=plan.orders, seed=plan.seed, threads=plan.threads)
        metric = metric_for(plan.stage, plan.work)
        return rate_examples(plan.stage, module, of_stream, metric, cast, threads=plan.threads)

    return Scores(
        dev=scored("dev", plan.streams.dev, examples.all_dev),
        held_out=scored("held-out", plan.streams.held_out, examples.held_out),
    )
