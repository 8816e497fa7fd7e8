"""Before and after, on the streams that nothing was written from; and what happens where that breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rb_dspy.compile.answers import Cast
from rb_dspy.compile.measure import rate_examples, rate_stream
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.plan import Examples, Plan
from rb_dspy.compile.progress import Teller
from rb_dspy.compile.ratings import Ratings
from rb_dspy.compile.result import Scores
from rb_dspy.compile.scores import Comparison, compare
from rb_dspy.compile.state import save_program
from rb_dspy.compile.truth import check_known, say_left_out
from rb_dspy.errors import RBError, Unscored, describe_error
from rb_dspy.matts import BankProgram
from rb_dspy.stream import TaskStream


@contextmanager
def kept(found: Callable[[], BankProgram | None], place: Path | None) -> Iterator[None]:
    """Whatever ``Exception`` ends the block, what was ``found`` is not lost: it is in ``Unscored``, and in ``place``.

    Where that is None there is nothing to lose, and what broke is raised as it is.
    """
    try:
        yield
    except Exception as exc:  # also what is not ours: who is told how far it is may raise anything
        program = found()
        if program is None:
            raise
        try:
            if place is not None:
                save_program(program, place)
            where = "in program of this error" if place is None else f"in {place}, and the same compile goes on there"
        except RBError as unsaved:
            where = f"in program of this error only ({unsaved})"
        code = exc.exit_code if isinstance(exc, RBError) else RBError.exit_code
        raise Unscored(
            f"the prompts that were found are {where}; what came after broke: {describe_error(exc)}", program, code
        ) from exc


def scores_of(
    plan: Plan, program: BankProgram, examples: Examples, cast: Cast, teller: Teller, *, changed: bool
) -> Scores:
    """The program of ``plan`` against ``program``, on dev and held-out."""

    def scored(name: str, stream: TaskStream, of_stream: Sequence[Any]) -> Comparison:
        count = plan.orders * len(stream) if plan.stage == "all" else len(of_stream)
        teller.phase(f"scoring {name} before", count)
        before = rated(plan.work, stream, of_stream)
        teller.phase(f"scoring {name} after", count if changed else 0)
        after = rated(program, stream, of_stream) if changed else before
        check_known(stream, before, after)
        say_left_out(stream, before, after)
        return compare(before, after)

    def rated(of: BankProgram, stream: TaskStream, of_stream: Sequence[Any]) -> Ratings:
        module = plan.module(of)
        if plan.stage == "all":
            return rate_stream(
                module, stream, cast, orders=plan.orders, seed=plan.seed, threads=plan.threads, on_scored=teller.score
            )
        metric = metric_for(plan.stage, plan.work)
        return rate_examples(plan.stage, module, of_stream, metric, cast, threads=plan.threads, on_scored=teller.score)

    return Scores(
        dev=scored("dev", plan.streams.dev, examples.all_dev),
        held_out=scored("held-out", plan.streams.held_out, examples.held_out),
    )
