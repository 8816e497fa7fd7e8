"""How the rollouts of a task come about: side by side, some first and more unless they agree, or one refined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rb_dspy.config import AdaptiveConfig
from rb_dspy.errors import InfrastructureError, RBError
from rb_dspy.protocols import EnvironmentFactory, Judge as JudgeProtocol
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps import Act, Memory, Refine, Refined
from rb_dspy.steps.ask import Routine, Stopped
from rb_dspy.steps.attempts import answer_key
from rb_dspy.steps.ended import Told
from rb_dspy.steps.events import RolloutLost, emit
from rb_dspy.steps.judge import Judging
from rb_dspy.steps.latch import Latch
from rb_dspy.steps.wanted import Call, Result, Sub, Together, values
from rb_dspy.wording import what_broke

Ruling = Verdict | RBError | None
"""A verdict, what broke the judge, or None for a rollout that is still to be judged."""


@dataclass(frozen=True)
class Lost:
    """A rollout that broke, and why."""

    rollout_id: str
    error: str


@dataclass
class Rollouts:
    """Those that came to their end, in the order of their numbers, and those that broke."""

    trajectories: list[Trajectory] = field(default_factory=list)
    verdicts: list[Ruling] = field(default_factory=list)
    """One for each trajectory."""
    lost: list[Lost] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    launched: int = 0
    """Rollouts that were begun; of sequential scaling, passes that were made."""
    saved: int = 0
    """Rollouts, or passes, that agreement made needless."""
    unconditional: int | None = None
    """Of the launched, the first so many were launched whatever came of others. None of passes, and of what waited."""
    meanwhile: Result = None
    """What came of ``SideBySide.meanwhile``, or what it raised; None where there is none."""

    def survivors(self, task: Task) -> Rollouts:
        """Itself. With nothing to learn from it raises: what broke them, where all say what others would meet as well;
        else that this task's infrastructure broke.
        """
        if self.trajectories:
            return self
        if all(_for_all(exc) for exc in self.errors):
            raise self.errors[0]
        raise InfrastructureError(
            f"task {task.id}: all {len(self.errors)} rollouts broke; the first: {self.errors[0]}"
        ) from self.errors[0]


Meanwhile = Callable[[], Routine[Any]]
"""What is done with all rollouts that came to their end, which may be none."""


@dataclass(frozen=True)
class SideBySide:
    """k rollouts that share what was retrieved, each in an environment of its own (paper, section 3.3: parallel).

    With ``judge`` each is judged as soon as it has ended. ``meanwhile`` begins when all have, while judges are still
    at it. ``adaptive`` launches some first, and no more once all verdicts and answers so far are the same. Once those
    can never be, it launches all that are left side by side: to wait for some of them could save none. Then there is no
    ``meanwhile``.
    """

    act: Act
    judge: JudgeProtocol | None
    k: int
    adaptive: AdaptiveConfig
    at_once: int | None = None
    meanwhile: Meanwhile | None = None

    def routine(self, task: Task, memory: Memory, environments: EnvironmentFactory, ended: Told) -> Routine[Rollouts]:
        done = Rollouts(unconditional=min(self.k, self.adaptive.first) if self.adaptive.enabled else self.k)
        while done.launched < self.k and not (done.launched and self._agreed(done)):
            numbers = range(done.launched, min(self.k, done.launched + self._wave(done)))
            none_goes_on = Latch(len(numbers))
            one = partial(self._one, task, memory, environments, ended, none_goes_on)
            jobs = [Sub(partial(one, number)) for number in numbers]
            if self.meanwhile is not None:
                jobs.append(Sub(partial(_beside, self.meanwhile, none_goes_on)))
            results = yield Together(jobs, self.at_once)
            if self.meanwhile is not None:
                done.meanwhile = results.pop()
            for number, result in zip(numbers, results, strict=True):
                if isinstance(result, Exception):
                    _lose(done, number, result)
                else:
                    trajectory, verdict = result
                    done.trajectories.append(trajectory)
                    done.verdicts.append(verdict)
            done.launched = numbers.stop
        done.saved = self.k - done.launched
        return done.survivors(task)

    def _one(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, ended: Told, latch: Latch, number: int
    ) -> Routine[tuple[Trajectory, Ruling]]:
        try:
            # Whatever it raises is a result: a loss is told at once, not when the last judge has ended.
            done = partial(ended, number)
            results = yield Together([Call(self.act, (task, memory, environments, number, done))])
            if isinstance(results[0], Exception) and not isinstance(results[0], Stopped):
                emit(RolloutLost(task, str(number), what_broke(results[0])))
            (trajectory,) = values(results)
            ended(number, trajectory)
        finally:
            latch.count()
        if self.judge is None:
            return trajectory, None
        try:
            return trajectory, (yield Judging(self.judge, task, trajectory))
        except RBError as exc:
            return trajectory, exc

    def _wave(self, done: Rollouts) -> int:
        if not (self.adaptive.enabled and _may_agree(done.trajectories, done.verdicts)):
            return self.k
        return self.adaptive.wave if done.launched else self.adaptive.first

    def _agreed(self, done: Rollouts) -> bool:
        return self.adaptive.enabled and agreed(done.trajectories, done.verdicts)


@dataclass(frozen=True)
class OneRefined:
    """k passes over one trajectory (paper, section 3.3: sequential)."""

    act: Act
    refine: Refine
    k: int

    def routine(self, task: Task, memory: Memory, environments: EnvironmentFactory, ended: Told) -> Routine[Rollouts]:
        done = Rollouts()
        refined: Refined = yield Call(self.refine, (self.act, task, memory, environments, self.k, ended))
        done.trajectories += refined.trajectories
        done.verdicts += [None] * len(refined.trajectories)
        done.launched = refined.passes
        if refined.lost:
            done.lost.append(Lost(str(refined.broken), refined.lost))
        else:
            done.saved = self.k - refined.passes
        return done


def agreed(trajectories: Sequence[Trajectory], verdicts: Sequence[Ruling]) -> bool:
    """Whether two or more rollouts have one verdict, which is not unknown, and one answer.

    Where no answer is given, failures do not agree: each may have failed in its own way.
    """
    return len(trajectories) > 1 and _may_agree(trajectories, verdicts)


def _may_agree(trajectories: Sequence[Trajectory], verdicts: Sequence[Ruling]) -> bool:
    """Whether rollouts agree as far as they have come; once they do not, no further one brings it about.

    A verdict that is unknown, also since the judge broke, and a failure without an answer agree with nothing.
    """
    labels = {verdict.label if isinstance(verdict, Verdict) else "unknown" for verdict in verdicts}
    answers = {answer_key(trajectory) for trajectory in trajectories}
    telling = labels <= {"success"} or (labels == {"failure"} and None not in answers)
    return len(answers) <= 1 and telling


def _beside(meanwhile: Meanwhile, none_goes_on: Latch) -> Routine[Any]:
    yield none_goes_on
    return (yield from meanwhile())


def _lose(done: Rollouts, number: int, error: Exception) -> None:
    """Take down what broke. It may be anything: a bug in somebody's environment must not cost the other rollouts."""
    done.errors.append(error)
    done.lost.append(Lost(str(number), what_broke(error)))


def _for_all(exc: Exception) -> bool:
    """Whether it is of our kinds and says more than that one rollout broke: bad input, no model, nothing installed."""
    return isinstance(exc, RBError) and not isinstance(exc, InfrastructureError)
