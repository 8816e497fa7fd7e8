"""Which parts of a run teach a step something, and which do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rb_dspy.compile.evidence import decisive_step
from rb_dspy.compile.examples import INPUTS, agent_example, judge_example, select_example
from rb_dspy.compile.stages import Stage
from rb_dspy.schema import Outcome, Task, Trajectory, Verdict
from rb_dspy.stream import RunReport

UNKNOWN = "no ground truth"
"""Why the rollouts of a task teach nothing where nobody knows their outcome."""


class Gathered:
    """Examples, and what was left out and why, by stage. The same thing is never taught twice."""

    def __init__(self) -> None:
        self.taught: dict[Stage, list[Any]] = {stage: [] for stage in INPUTS}
        self.left_out: dict[Stage, Counter[str]] = {stage: Counter() for stage in INPUTS}
        self._seen: set[object] = set()

    def teach(self, stage: Stage, example: Any) -> None:
        """Take ``example``."""
        self.taught[stage].append(example)

    def leave(self, why: str, *stages: Stage, times: int = 1) -> None:
        """Count what is not taken."""
        for stage in stages:
            self.left_out[stage][why] += times

    def again(self, stage: Stage, task: Task, *rollouts: Trajectory) -> bool:
        """Whether the same was done on this task before; then it is counted as left out."""
        what = (stage, task.id, tuple(_actions(rollout) for rollout in rollouts))
        if what in self._seen:
            self.leave("the same was done before", stage)
            return True
        self._seen.add(what)
        return False


def gathered(reports: Sequence[RunReport]) -> Gathered:
    """Only what teaches:

    ======  ========================================
    judge   rollouts with ground truth, none twice
    select  several rollouts that differ in reward
    agent   tasks with ground truth
    ======  ========================================
    """
    found = Gathered()
    for done in (done for report in reports for done in _done(report)):
        if not any(done.outcomes):
            found.leave(UNKNOWN, *INPUTS)
            continue
        _judge(found, done)
        _select(found, done)
        found.teach("agent", agent_example(done.task, done.prediction.memory))
    return found


_NOBODYS = Verdict(label="unknown", reasons="nobody judged")
"""Of a rollout of a run that learned nothing."""


@dataclass(frozen=True)
class _Done:
    """A task that came to its end; rollouts, verdicts and outcomes are aligned."""

    task: Task
    prediction: Any
    rollouts: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    outcomes: tuple[Outcome | None, ...]

    def known(self) -> list[tuple[Trajectory, Verdict, Outcome]]:
        """The rollouts whose ground truth is known."""
        every = zip(self.rollouts, self.verdicts, self.outcomes, strict=True)
        return [(rollout, verdict, outcome) for rollout, verdict, outcome in every if outcome is not None]


def _done(report: RunReport) -> Iterator[_Done]:
    for result in report.results:
        if result.prediction is not None:
            verdicts = result.prediction.get("verdicts") or (result.prediction.verdict,)
            outcomes = result.outcomes or (None,) * len(result.rollouts)
            said = tuple(verdict or _NOBODYS for verdict in verdicts)
            yield _Done(result.task, result.prediction, result.rollouts, said, outcomes)


def _judge(found: Gathered, done: _Done) -> None:
    known = done.known()
    for rollout, _, outcome in known:
        if found.again("judge", done.task, rollout):
            continue
        others = [(other, ended.success) for other, _, ended in known]
        parts = any(ended is not outcome.success for _, ended in others)
        step = decisive_step(rollout, outcome.success, others) if parts else None
        found.teach("judge", judge_example(done.task, rollout, outcome, step))


def _select(found: Gathered, done: _Done) -> None:
    rewards = [outcome.reward if outcome else None for outcome in done.outcomes]
    if len(rewards) < 2 or None in rewards:
        found.leave("fewer than two rollouts, or one without ground truth", "select")
    elif len(set(rewards)) == 1:
        found.leave("all rollouts got the same reward", "select")
    elif not found.again("select", done.task, *done.rollouts):
        known = [reward for reward in rewards if reward is not None]
        found.teach("select", select_example(done.task, done.rollouts, done.verdicts, known))


def _actions(rollout: Trajectory) -> tuple[str, ...]:
    return tuple(step.action for step in rollout.steps)
