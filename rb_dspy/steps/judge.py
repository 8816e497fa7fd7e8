"""Judge: did the rollout do what the task asked? Decided without ground truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction

import dspy

from rb_dspy import signatures
from rb_dspy.config import JudgeConfig
from rb_dspy.errors import ConfigError, InfrastructureError, UnparseableOutput
from rb_dspy.protocols import Judge as JudgeProtocol
from rb_dspy.schema import Label, Task, Trajectory, Verdict
from rb_dspy.steps.answered import choice, words
from rb_dspy.steps.ask import Ask, Do, Routine, adrive, awaited, drive, never_awaited
from rb_dspy.steps.events import Judged, emit
from rb_dspy.steps.fit import fitted
from rb_dspy.steps.place import Place
from rb_dspy.steps.played import played
from rb_dspy.steps.predict import Predict
from rb_dspy.steps.view import final_state, view

_WHAT = "the judge"

_ASYNC = "the judge is async: await acall, alearn or aresume instead of this call, or give a plain function"


class Judge(dspy.Module):
    """LLM-as-a-judge (paper, section 3.2).

    An answer that cannot be read after one repair gives ``unknown``, never failure.
    """

    predict = Place()

    def __init__(self, config: JudgeConfig | None = None) -> None:
        super().__init__()
        self.config = config or JudgeConfig()
        self.predict = Predict(signatures.Judge)

    def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
        """A verdict on ``trajectory``."""
        return drive(self._routine(task, trajectory))

    async def aforward(self, task: Task, trajectory: Trajectory) -> Verdict:
        """``forward`` for asyncio."""
        return await adrive(self._routine(task, trajectory))

    def _routine(self, task: Task, trajectory: Trajectory) -> Routine[Verdict]:
        try:
            said = yield from fitted(partial(self._ask, task, trajectory), self.config.view_tokens)
            label = choice(said, "label", Label, "success or failure")
        except UnparseableOutput as exc:
            verdict = Verdict(label="unknown", reasons=str(exc))
        else:
            verdict = Verdict(label=label, reasons=words(said, "reasons"))
        emit(Judged(task, trajectory, verdict))
        return verdict

    def _ask(self, task: Task, trajectory: Trajectory, view_tokens: int) -> Ask:
        return Ask(
            role="judge",
            predict=self.predict,
            inputs={
                "task": task.instruction,
                "trajectory": view(trajectory, view_tokens),
                "final_state": final_state(trajectory, min(400, view_tokens)),
            },
            temperature=self.config.temperature,
            max_tokens=self.config.max_tokens,
        )


@dataclass(frozen=True)
class Judging:
    """Wanted: a judge's word on a rollout. It may be anybody's judge, so it is checked, and gets no ground truth.

    What it raises that is not ours becomes an ``InfrastructureError``, also where something inside it was cancelled:
    only who cancels this call cancels the caller. An async one is awaited in ``arun``; ``run`` raises ``ConfigError``
    for it. What it asks of the language model in its context is asked of the judge's, and counted as that.
    """

    judge: JudgeProtocol
    task: Task
    trajectory: Trajectory

    def run(self) -> Verdict:
        check_plain(self.judge)
        with _unread(), self._played():
            said = self._do().run()
        if isawaitable(said):
            never_awaited(said)
            raise ConfigError(_ASYNC)
        return _checked(said)

    async def arun(self) -> Verdict:
        with _unread(), self._played():
            if not (isinstance(self.judge, dspy.Module) and hasattr(self.judge, "aforward")):
                said = await self._do().arun()
                with awaited(_WHAT):
                    return _checked(await said if isawaitable(said) else said)
            with awaited(_WHAT):
                return _checked(await self.judge.acall(self.task.without_ground_truth(), self.trajectory))

    def _played(self) -> AbstractContextManager[None]:
        return nullcontext() if type(self.judge) is Judge else played("judge")

    def _do(self) -> Do:
        return Do(_WHAT, partial(self.judge, self.task.without_ground_truth(), self.trajectory))


def check_judge(judge: JudgeProtocol | object) -> None:
    """Raise ``ConfigError`` for what is no judge."""
    if not callable(judge) or isinstance(judge, type):
        given = f"the class {judge.__name__}" if isinstance(judge, type) else repr(judge)
        raise ConfigError(
            f"got {given} for a judge; expected a function of a task and a trajectory that gives a Verdict; which"
            " language model judges is said by Backbones(judge=...)"
        )


def check_plain(judge: JudgeProtocol) -> None:
    """Raise ``ConfigError`` for a judge that is known to be async, in a call that could not await it: before anything
    is paid for. One that only gives something awaitable is known by what it gives.
    """
    if isinstance(judge, dspy.Module):  # by its class: a module warns of who looks at its ``forward``
        forward = getattr(type(judge), "forward", None) or getattr(type(judge), "aforward", None)
    else:
        forward = judge.__call__
    if iscoroutinefunction(forward) or iscoroutinefunction(judge):
        raise ConfigError(_ASYNC)


@contextmanager
def _unread() -> Iterator[None]:
    """An answer that a judge of somebody else's could not read costs this rollout; our own judge abstains."""
    try:
        yield
    except UnparseableOutput as exc:
        raise InfrastructureError(f"{_WHAT} broke: {exc}") from exc


def _checked(verdict: object) -> Verdict:
    if not isinstance(verdict, Verdict):
        raise InfrastructureError(f"the judge gave {verdict!r}; expected a Verdict")
    return verdict
