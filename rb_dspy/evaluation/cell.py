"""One cell of an evaluation: an arm runs the tasks of one order, one by one, with its own bank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import dspy

from rb_dspy.backbones import metered
from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import ConfigError, InfrastructureError, InputError, UnparseableOutput
from rb_dspy.evaluation.records import TaskRecord
from rb_dspy.matts import BankProgram
from rb_dspy.schema import Task
from rb_dspy.steps import Memory
from rb_dspy.stream import TaskStream
from rb_dspy.stream.run import OF_ONE_TASK, forgetful
from rb_dspy.text import summary_line


@dataclass(frozen=True)
class CellRun:
    """Runs the tasks of one cell."""

    arm: str
    order: int
    program: BankProgram
    """The program that ``prepare`` returned."""
    environments: ScoredEnvironments
    bank: MemoryBank
    """The bank of this cell, or the shared bank of an arm that learns nothing."""
    run_id: str
    """Run id of the experiences that it stores."""
    learns: bool
    """Whether the bank is written to."""

    def play(
        self,
        stream: TaskStream,
        done: dict[str, TaskRecord],
        on_record: Callable[[TaskRecord], None],
        check: Callable[[], None],
        stop_after: int,
    ) -> None:
        """Run the tasks of ``stream`` that are not ``done``: task id -> record.

        ``check`` is called before each task, and raises if the evaluation must stop. Raises ``InfrastructureError`` if
        ``stop_after`` tasks in a row broke.
        """
        if self.learns:
            self._forget(done)
        broken = 0
        for position, task in enumerate(stream):
            if task.id in done:
                continue
            check()
            record = self._record(task, position)
            on_record(record)
            broken = broken + 1 if record.error else 0
            if broken and broken == stop_after:
                raise InfrastructureError(
                    f"evaluate: arm {self.arm}, order {self.order}: {broken} tasks in a row broke, the last with:"
                    f" {record.error}; fix this, then evaluate again with the same folder to continue"
                )

    def _forget(self, done: dict[str, TaskRecord]) -> None:
        """Remove experiences and pending rollouts of tasks without a record, left by a killed process."""
        learned = self.bank.learned(self.run_id)
        missing = [id for id, record in done.items() if not record.error and id not in learned]
        if missing:
            raise InputError(
                f"evaluate: {self.bank} has not learned from the task {missing[0]!r}, which has a record; the bank was"
                " changed or removed: pass another folder"
            )
        for pending in self.bank.pending(run_id=self.run_id):
            self.bank.delete(pending.id)
        for task_id in sorted(learned - done.keys()):
            experience = self.bank.experience_of(task_id, self.run_id)
            if experience is not None:
                self.bank.purge(experience.id)  # a deleted lesson would not be learned again

    def _record(self, task: Task, position: int) -> TaskRecord:
        """Run a task; if something breaks, retry once, whatever the outcome was."""
        started = time.monotonic()
        prediction, error, tries = None, "", 0
        with forgetful(), metered() as ledger:
            while prediction is None and tries < 2:
                tries += 1
                try:
                    prediction = self._attempt(task)
                    rollout_id = self.environments.rollout_of(task.id, prediction.trajectory)
                    error = self.environments.broke(task.id, rollout_id)
                    if error:
                        if prediction.experience is not None:
                            self.bank.purge(prediction.experience.id)  # so that the retry learns as the first try would
                        prediction = None
                except ConfigError:
                    raise
                except OF_ONE_TASK as exc:
                    error = summary_line(exc)
        for pending in self._pending(task) if error else ():
            self.bank.delete(pending.id)
        outcome = None
        shown, learned = Memory(), 0
        if prediction is not None:
            outcome = self.environments.outcome(task.id, rollout_id)
            shown, learned = prediction.memory, len(prediction.memory_items)
        return TaskRecord(
            arm=self.arm,
            order=self.order,
            position=position,
            task=task.id,
            solved=None if outcome is None or error else outcome.success,
            error=error,
            tries=tries,
            verdict=prediction.verdict.label if prediction is not None and prediction.verdict else None,
            steps=None if prediction is None else len(prediction.trajectory.steps),
            answer=prediction.trajectory.answer[:200] if prediction and prediction.trajectory.answer else None,
            shown=tuple((item.id, item.title) for item in shown.items),
            learned=learned,
            usage=ledger.usage(),
            seconds=round(time.monotonic() - started, 3),
        )

    def _attempt(self, task: Task) -> dspy.Prediction:
        """Run a task, or learn from its rollout if that is pending in the bank.

        If the answers of the judge or distiller cannot be parsed, it is asked again; then nothing is learned, and the
        agent's result counts.
        """
        while True:
            waiting = self._pending(task)
            try:
                if waiting:
                    return self.program.resume(waiting[0])
                return self.program(
                    task=task, bank=self.bank, environments=self.environments, run_id=self.run_id, learn=self.learns
                )
            except UnparseableOutput:
                if not self._pending(task):
                    raise

    def _pending(self, task: Task) -> list[Pending]:
        return self.bank.pending(run_id=self.run_id, task_id=task.id) if self.learns else []
