"""Refine: the agent checks its own work, and corrects it, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import metered
from rb_dspy.config import RefineConfig
from rb_dspy.errors import RBError, UnparseableOutput
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Check, Task, Trajectory
from rb_dspy.signatures.check import Before, Decision
from rb_dspy.steps.act import Act
from rb_dspy.steps.answered import choice, words
from rb_dspy.steps.ask import Ask, Routine, Stopped, adrive, drive
from rb_dspy.steps.ended import Told
from rb_dspy.steps.events import Checked, RolloutLost, emit
from rb_dspy.steps.fit import fitted
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.opening import Opened, within
from rb_dspy.steps.place import Place
from rb_dspy.steps.predict import Predict
from rb_dspy.steps.view import final_state, view
from rb_dspy.steps.wanted import Sub, Together
from rb_dspy.wording import what_broke


@dataclass(frozen=True)
class Refined:
    """The attempts, oldest first; more than one where an environment could not go on."""

    trajectories: tuple[Trajectory, ...]
    passes: int
    """Passes that were made: the first attempt, and checks."""
    lost: str = ""
    """What broke the last attempt; empty if nothing did."""
    broken: int = 0
    """The number of the attempt that broke, of which there may be a trajectory up to that point."""


class Refine(dspy.Module):
    """Sequential scaling (paper, section 3.3): ``passes`` over one trajectory; the first is the attempt itself.

    Each further pass is a check, which confirms or revises; a thorough one at first, shorter ones later. A revision
    goes on in the same environment where that can be reopened (``Reopens``), with what the check found; else it is a
    new attempt in a fresh environment, which gets the findings with its first observation. The checks stand in the
    trajectories, so that judge, contraster and distiller read them. A check that cannot be read confirms.
    """

    first = Place()
    again = Place()

    def __init__(self, config: RefineConfig | None = None) -> None:
        super().__init__()
        self.config = config or RefineConfig()
        self.first = Predict(signatures.CheckFirst)
        self.again = Predict(signatures.CheckAgain)

    def forward(
        self,
        act: Act,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        passes: int,
        ended: Told = lambda number, trajectory: None,
    ) -> Refined:
        """Raises what broke the first attempt; what breaks later leaves what was reached before.

        ``ended`` is given each attempt, with its number, as it comes to its end and after each further pass, for who is
        interrupted or dies; it must not raise.
        """
        return drive(self._routine(act, task, memory, environments, passes, ended))

    async def aforward(
        self,
        act: Act,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        passes: int,
        ended: Told = lambda number, trajectory: None,
    ) -> Refined:
        """``forward`` for asyncio."""
        return await adrive(self._routine(act, task, memory, environments, passes, ended))

    def _routine(
        self,
        act: Act,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        passes: int,
        ended: Told,
    ) -> Routine[Refined]:
        work = _Work(checks_left=passes - 1, ended=ended)
        again = True
        while again:
            # Whatever it raises is a result: a bug that is not ours must not cost what was reached before either.
            (result,) = yield Together([Sub(partial(self._attempt, act, task, memory, environments, work))])
            if isinstance(result, Exception):
                if not work.attempts or isinstance(result, Stopped):
                    raise result
                why = what_broke(result)
                emit(RolloutLost(task, str(work.number), why))
                return Refined(tuple(work.attempts), work.passes, why, work.number)
            again = result
        return Refined(tuple(work.attempts), work.passes)

    def _attempt(
        self, act: Act, task: Task, memory: Memory, environments: EnvironmentFactory, work: _Work
    ) -> Routine[bool]:
        """One environment, and as many passes over what is done in it as it allows; whether a fresh one is wanted."""
        work.number = len(work.attempts)
        passes = partial(self._passes, act, task, memory, work)
        return (yield from within(task, environments, work.number, passes, act.config.step_seconds))

    def _passes(self, act: Act, task: Task, memory: Memory, work: _Work, fresh: Opened) -> Routine[bool]:
        number = work.number
        checks: tuple[Check, ...] = ()
        with metered() as ledger:

            def keep() -> None:
                work.keep(number, episode.trajectory(ledger.usage(), checks))

            episode = act.episode(task, memory, fresh, number, keep)
            episode.begin(_told(work.findings))
            yield from episode.play()
            while work.checks_left:
                check = yield from self._check(task, work.attempts[number], work.findings)
                checks = (*checks, check)
                work.findings.append(check.findings)
                work.checks_left -= 1
                work.passes += 1
                keep()
                emit(Checked(task, check, str(number)))
                if check.decision == "revise":
                    if not (yield from episode.reopened(_told([check.findings]))):
                        return True
                    try:
                        yield from episode.play()
                    except RBError:  # what was done is kept whole, also when it breaks
                        keep()
                        raise
                elif self.config.until_confirmed:
                    work.checks_left = 0
        return False

    def _check(self, task: Task, trajectory: Trajectory, findings: Sequence[str]) -> Routine[Check]:
        """A look back; ``findings`` are those of earlier ones, of earlier attempts too."""
        earlier = "\n".join(f"{number}. {found}" for number, found in enumerate(findings, 1))

        def ask(view_tokens: int) -> Ask:
            return Ask(
                role="agent",
                predict=self.again if findings else self.first,
                inputs={
                    "task": task.instruction,
                    "trajectory": view(trajectory, view_tokens),
                    "final_state": final_state(trajectory, min(400, view_tokens)),
                    **({"earlier_checks": earlier} if findings else {}),
                },
                temperature=self.config.temperature,
                max_tokens=self.config.max_tokens,
                rollout=len(findings),
            )

        after = len(trajectory.steps)
        try:
            said = yield from fitted(ask, self.config.view_tokens)
            decision = choice(said, "decision", Decision | Before, "confirm or revise")
        except UnparseableOutput as exc:
            return Check(after=after, findings=f"not checked: {exc}", decision="confirm")
        return Check(after=after, findings=words(said, "findings"), decision=decision)


@dataclass
class _Work:
    """What was reached so far."""

    checks_left: int
    ended: Told
    attempts: list[Trajectory] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    number: int = 0
    passes: int = 1

    def keep(self, number: int, trajectory: Trajectory) -> None:
        self.attempts[number:] = [trajectory]
        self.ended(number, trajectory)


def _told(findings: Sequence[str]) -> str:
    """What checks found, as the agent reads it when it goes on or begins anew; empty for no checks."""
    if not findings:
        return ""
    return "You checked your work on this task before, and found:\n" + "\n".join(f"- {found}" for found in findings)
