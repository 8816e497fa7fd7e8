"""Running a program over a stream with one bank, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

import dspy
import pydantic

from rb_dspy.backbones import metered
from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InfrastructureError, InputError, InvalidVector
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Outcome, RoleUsage, Task, Trajectory, Usage
from rb_dspy.stream.tasks import TaskStream


@dataclass(frozen=True)
class TaskResult:
    """One task of a run. ``outcome`` is ground truth, read after the program was done; None where there is none.

    ``error`` is set instead of ``prediction`` when infrastructure broke: the task is neither success nor failure.
    """

    task: Task
    prediction: dspy.Prediction | None = None
    outcome: Outcome | None = None
    usage: Usage = field(default_factory=dict)
    error: str = ""
    resumed: bool = False
    """The rollout waited in the bank, since who did it ended before it was learned from; nobody knows its outcome any
    more."""

    @property
    def agreed(self) -> bool | None:
        """Whether the judge said what the environment says; None where one of them said nothing."""
        if self.prediction is None or self.outcome is None or self.prediction.verdict.label == "unknown":
            return None
        return bool((self.prediction.verdict.label == "success") == self.outcome.success)


class Summary(pydantic.BaseModel):
    """A run in numbers. Rates are None where there is nothing to count."""

    tasks: int
    infrastructure_errors: int
    solved: int
    """By ground truth."""
    scored: int
    """Tasks that have ground truth and no infrastructure error."""
    judged: int
    """Of the scored, those with a verdict other than unknown."""
    agreements: int
    """Of the judged, those where the judge said what the environment says."""
    unknown_verdicts: int
    mean_steps: float | None
    items: int
    usage: Usage

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def success_rate(self) -> float | None:
        """Solved of scored."""
        return self.solved / self.scored if self.scored else None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def judge_agreement(self) -> float | None:
        """Agreements of judged."""
        return self.agreements / self.judged if self.judged else None


@dataclass
class RunReport:
    """What came of a run so far."""

    run_id: str
    results: list[TaskResult] = field(default_factory=list)

    def summary(self) -> Summary:
        """The run in numbers."""
        done = [result.prediction for result in self.results if result.prediction is not None]
        scored = [result for result in self.results if result.prediction is not None and result.outcome is not None]
        agreed = [result.agreed for result in scored if result.agreed is not None]
        steps = [len(prediction.trajectory.steps) for prediction in done]
        return Summary(
            tasks=len(self.results),
            infrastructure_errors=sum(bool(result.error) for result in self.results),
            solved=sum(result.outcome.success for result in scored if result.outcome is not None),
            scored=len(scored),
            judged=len(agreed),
            agreements=sum(agreed),
            unknown_verdicts=sum(prediction.verdict.label == "unknown" for prediction in done),
            mean_steps=sum(steps) / len(steps) if steps else None,
            items=sum(len(prediction.memory_items) for prediction in done),
            usage=_total([result.usage for result in self.results]),
        )


MAX_BROKEN_IN_A_ROW = 3
"""A run ends when so many tasks in a row broke: a server that is down would only use up the stream."""

STALE = timedelta(hours=1)
"""Rollouts of another run that have waited so long are nobody's any more: a living run learns within minutes."""


def run_stream(
    program: ReasoningBank,
    stream: TaskStream | Sequence[Task],
    bank: MemoryBank,
    *,
    run_id: str,
    on_result: Callable[[TaskResult], None] = lambda result: None,
    resume: Literal["own", "all"] = "own",
) -> RunReport:
    """Run ``program`` over ``stream`` in order; every task's experience is in ``bank`` before the next begins.

    ``run_id`` names the run; a new run needs a new one, since a task is learned from once a run. The same one goes on
    with a run that was stopped: a task that it has learned from asks no model and is not in the report again.

    A task whose rollout waits in the bank (``MemoryBank.pending``) is not done again but learned from: with
    ``resume="own"`` a rollout of this run, or one that has waited for ``STALE``, since other runs may be at theirs now;
    with ``"all"`` any, for who names every run anew and knows that no other runs beside it. Where one does, both learn
    from the rollout, what either has first counts for both, and only the work is done twice.

    A task that breaks, or that cannot be used, is recorded with its error and the run goes on; so is one whose lessons
    get a vector that cannot be used (``InvalidVector``), whose rollout waits. What would break every task that follows
    ends the run: ``BackboneError``, any other ``BankError``, and ``InfrastructureError`` when ``MAX_BROKEN_IN_A_ROW``
    tasks broke. What was done stays in the bank. Raises ``InputError`` for two tasks with one id.
    """
    task_id, times = Counter(task.id for task in stream).most_common(1)[0] if len(stream) else ("", 0)
    if times > 1:
        raise InputError(f"the task id {task_id!r} stands {times} times in this stream; ids must differ")
    report = RunReport(run_id)
    scored = ScoredEnvironments(program.environments)
    broken = 0
    with dspy.context(disable_history=True):  # a history keeps some 17 KB of every call for the life of the process
        for task in stream:
            if run_id and bank.known(task, Trajectory(task_id=task.id), run_id=run_id) is not None:
                continue
            ingest = _waiting(bank, task, run_id, resume)
            resumed = ingest is not None
            with metered() as ledger:
                try:
                    if ingest is not None:
                        prediction = program.resume(ingest)
                    else:
                        prediction = program(task=task, bank=bank, environments=scored, run_id=run_id)
                except (InfrastructureError, InputError, InvalidVector) as exc:
                    broken += not isinstance(exc, InputError)
                    result = TaskResult(task, usage=ledger.usage(), error=str(exc), resumed=resumed)
                else:
                    broken = 0
                    outcome = None if resumed else scored.outcome(task.id, prediction.trajectory.rollout_id)
                    result = TaskResult(task, prediction, outcome, ledger.usage(), resumed=resumed)
            report.results.append(result)
            on_result(result)
            if broken == MAX_BROKEN_IN_A_ROW:
                raise InfrastructureError(f"{broken} tasks in a row broke; the last one: {result.error}")
    return report


def _waiting(bank: MemoryBank, task: Task, run_id: str, resume: Literal["own", "all"]) -> Ingest | None:
    """The rollout of a task that is to be learned from instead of doing it: this run's before another's."""
    found = [ingest for ingest in bank.pending() if ingest.task == task and len(ingest.state.trajectories) == 1]
    own = [ingest for ingest in found if ingest.state.run_id == run_id]
    others = [ingest for ingest in found if resume == "all" or _stale(ingest.state.created_at)]
    return next(iter(own[::-1] + others[::-1]), None)


def _stale(created_at: str) -> bool:
    """Whether it is long since; a time that nobody knows is."""
    return not created_at or datetime.now(UTC) - datetime.fromisoformat(created_at) > STALE


def _total(usages: Sequence[Usage]) -> Usage:
    total: Usage = {}
    for usage in usages:
        for role, used in usage.items():
            total[role] = total.get(role, RoleUsage()) + used
    return total
