"""Run a program over a stream of tasks with one bank, so that every task can learn from those before it."""

from __future__ import annotations

import contextvars
import inspect
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import dspy

from rb_dspy.backbones import Ledger, metered
from rb_dspy.backbones.usage import total_usage
from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.bank.admission import checked_name
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.environments.scored import Ended
from rb_dspy.errors import ConfigError, InfrastructureError, InputError, InvalidVector, RBError, UnparseableOutput
from rb_dspy.learner import check_bank
from rb_dspy.matts import MaTTS
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.redaction import redact
from rb_dspy.schema import Task, Usage, cleaned
from rb_dspy.stream.journal import Journal, Record
from rb_dspy.stream.progress import Counter, Progress
from rb_dspy.stream.report import RunReport, TaskResult
from rb_dspy.stream.stream import TaskStream
from rb_dspy.text import summary_line

_OF_ONE_TASK = (InfrastructureError, UnparseableOutput, InputError, InvalidVector)
"""Errors that affect only one task."""


class Program(Protocol):
    """A program for a stream: ``ReasoningBank``, ``MaTTS``, or anything that is called in the same way."""

    environments: EnvironmentFactory

    def __call__(
        self, *, task: Any, bank: MemoryBank, environments: EnvironmentFactory, run_id: str, learn: bool
    ) -> dspy.Prediction:
        """Do ``task`` (a ``Task``, or text) in ``environments``, and learn from it if ``learn``."""
        ...

    def resume(self, pending: Pending, environments: EnvironmentFactory) -> dspy.Prediction:
        """Learn from pending rollouts, after those that are missing were done in ``environments``."""
        ...


@dataclass(frozen=True)
class Policy:
    """What a run does about tasks that break, or that were not finished."""

    tries: int = 1
    """How often a task that breaks is tried. With several, an unparseable answer of the judge or the distiller is asked
    for again too, until the rollout is appended without lessons."""
    stop_after: int | None = 3
    """The run ends after this many tasks in a row whose server, environment or scoring failed; None: never."""
    afresh: bool = False
    """A task that has no result, but left a rollout or lessons in the bank, is forgotten and done again. Else the run
    goes on from what the bank has."""
    remedy: str = ""
    """What the error of ``stop_after`` says at its end; default: to continue the run."""


def run_stream(
    program: Program,
    stream: TaskStream | Iterable[Task | str | Mapping[str, Any]],
    bank: MemoryBank,
    *,
    run_id: str | None = None,
    learn: bool = True,
    environments: EnvironmentFactory | None = None,
    on_result: Callable[[TaskResult], object] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    stop_after: int | None = 3,
    journal: Journal | Record | str | Path | None = None,
) -> RunReport:
    """Run ``program`` over the tasks of ``stream`` in order. Lessons of a task are in ``bank`` before the next begins.

    An interrupted run (Ctrl-C, a crash, a full disk) continues if it is called again with its ``run_id``: it first
    learns from its pending rollouts in the bank (a ``MaTTS`` completes them to its k), then does the tasks that it has
    not learned from. An error of one task is stored in ``TaskResult.error``, and the run continues; if the task's
    rollout is pending, the next call with this ``run_id`` learns from it.

    Args:
        program: Does the tasks.
        stream: A stream, or a list of tasks, texts or dicts; see ``TaskStream``. A text in a list is passed to the
            program as text.
        bank: Read, and appended to if ``learn``.
        run_id: Name of the run; by default a new one, see ``RunReport.run_id``.
        learn: If False, every task is done once more with the current bank, which is not changed.
        environments: Used instead of the program's own.
        on_result: Called after each task, in this thread.
        on_progress: Called after each task, too. By default a notebook shows a line, and a script shows nothing.
        stop_after: The run ends after this many tasks in a row whose server, environment or scoring failed; None:
            never.
        journal: Stores a row for each task as it is done: a folder, a PostgreSQL URL, or a run (``Record``) that was
            started with these tasks. A run that is continued with it knows the outcome of its last rollout and what
            its unfinished tasks have used, and does only tasks that have no row or that broke.

    Returns:
        The results of this call, in order; resumed tasks first.

    Raises:
        BackboneError: A language model cannot be used at all.
        ConfigError: A setting is wrong for every task.
        InfrastructureError: ``stop_after`` tasks in a row failed.
        BankError: The bank cannot be read or written.
        InputError: Before anything is done: an argument is invalid, two tasks have the same id, or another process
            does this run.

    An exception that ends a run, also ``KeyboardInterrupt``, has the results so far, and with them the run id, in its
    attribute ``report``.
    """
    if not (callable(program) and hasattr(program, "environments") and hasattr(program, "resume")):
        raise InputError(f"got {type(program).__name__} for program; expected a ReasoningBank, or a MaTTS")
    if inspect.iscoroutinefunction(on_result) or inspect.iscoroutinefunction(on_progress):
        raise InputError(
            "on_result or on_progress is async, and run_stream is not; pass a plain function, such as queue.put_nowait"
        )
    if run_id is not None:
        checked_name("run id", run_id)
    check_bank(bank)
    if isinstance(stream, Iterator):
        stream = list(stream)
    tasks = TaskStream.of(stream)
    texts = {task.id: each for task, each in zip(tasks, stream, strict=True) if isinstance(each, str)}
    run_id = run_id or f"run-{uuid.uuid4().hex[:12]}"
    ids = [task.id for task in tasks]
    given = Journal.at(journal) if isinstance(journal, str | Path) else journal
    try:
        if given is None:
            record = Record({"run_id": run_id, "tasks": ids})
        elif isinstance(given, Record):
            record = given
        else:
            record = given.start(ids, run_id, stream=tasks.name, digest=tasks.digest, learn=learn)
            if record.head.get("learn", learn) != learn:
                raise InputError(f"the run {run_id!r} was started with learn={not learn}; choose another run_id")
        if record.tasks != ids or (given is not record and record.head.get("digest", tasks.digest) != tasks.digest):
            raise InputError(f"the run {run_id!r} has other tasks; pass the same ones, or another run_id")
        done = set(record.done) if journal is not None else bank.learned(run_id) if learn else set()
        run = Run(program, bank, record, learn=learn, policy=Policy(stop_after=stop_after), texts=texts)
        run.keep_outcomes(environments or program.environments)
        counter = Counter(len(ids), sum(id in done for id in ids), on_progress)

        def add(result: TaskResult) -> None:
            if on_result is not None:
                on_result(result)
            counter.add(result)

        with record.writing():
            return run.over(tasks, done, on_result=add)
    finally:
        if isinstance(given, Journal) and given is not journal:
            given.close()


@dataclass
class Run:
    """One run of a program with one bank: the only loop over tasks."""

    program: Program
    bank: MemoryBank
    record: Record
    learn: bool = True
    policy: Policy = Policy()
    texts: Mapping[str, str] = field(default_factory=dict)
    """Task id -> the text that the program gets instead of the task."""
    environments: ScoredEnvironments = field(default_factory=ScoredEnvironments)
    transcripts: bool = False
    """Whether the rollouts of each task are attached to its row, without keys and passwords."""
    _ledger: Ledger = field(default_factory=Ledger)
    _before: Usage = field(default_factory=dict)
    """What earlier parts of the run used for the task that is done now."""

    def keep_outcomes(self, factory: EnvironmentFactory) -> None:
        """Use environments of ``factory``, and store the outcome of each rollout in the record when it ends."""

        def on_end(task_id: str, rollout_id: str, ended: Ended) -> None:
            self.record.end(task_id, rollout_id, ended, self._used())

        self.environments = ScoredEnvironments(factory, self.record.ended, on_end)

    def over(
        self,
        tasks: Sequence[Task] | TaskStream,
        done: Collection[str],
        *,
        on_result: Callable[[TaskResult], object] | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> RunReport:
        """Do the tasks that are not ``done``, those with pending rollouts first. ``check`` may raise before each.

        Raises ``InfrastructureError`` if ``Policy.stop_after`` tasks in a row broke.
        """
        report = RunReport(self.record.id, skipped=sum(task.id in done for task in tasks))
        positions = {task.id: number for number, task in enumerate(tasks, 1)}
        if self.policy.afresh and self.learn:
            self._forget(done)
        own = {task.id: task for task in tasks}  # the bank has them without secrets
        waiting = [own.get(each.task.id, each.task) for each in self._waiting()]
        known = {task.id for task in waiting}
        failed = 0
        try:
            for task in [*waiting, *(task for task in tasks if task.id not in done and task.id not in known)]:
                check()
                result, broke = self._do(task)
                result = replace(result, run_id=self.record.id, position=positions.get(task.id))
                failed = failed + 1 if broke else 0
                report.results.append(result)
                if self.transcripts and result.prediction is not None:
                    rollouts = [cleaned(each, redact).model_dump(mode="json") for each in result.rollouts]
                    self.record.attach(task.id, {"trajectories": rollouts})
                self.record.add(result.row())
                if on_result is not None:
                    on_result(result)
                if failed and failed == self.policy.stop_after:
                    raise InfrastructureError(
                        f"{failed} tasks in a row failed; the last one: {result.error}; {report.score()} so far; fix"
                        f" this, then {self.policy.remedy or f'continue run {self.record.id!r}'}"
                    )
        except BaseException as exc:
            exc.report = report  # type: ignore[attr-defined]
            raise
        return report

    def _do(self, task: Task) -> tuple[TaskResult, bool]:
        """Do a task; returns its result, and whether a server, an environment or scoring failed at the last try."""
        started = time.monotonic()
        self._before = {} if self.policy.afresh else self.record.spent.get(task.id, {})
        with forgetful(), metered() as self._ledger:
            try:
                result, stops = self._try(task)
            except BaseException:  # a cap, Ctrl-C: the next part of the run counts what was paid
                with suppress(RBError):
                    self.record.spend(task.id, self._used())
                raise
        if self.policy.afresh and result.error:
            for pending in self._waiting(task):
                self.bank.delete(pending.id)
        seconds = round(time.monotonic() - started, 3)
        return replace(result, usage=self._used(), seconds=seconds), result.broke and stops

    def _try(self, task: Task) -> tuple[TaskResult, bool]:
        """Do a task, and again if it breaks and the policy says so. The flag: the error was not the task's own."""
        tries, stops, result = 0, True, TaskResult(task)
        while not tries or (result.broke and tries < self.policy.tries):
            tries, stops = tries + 1, True
            try:
                result = self._attempt(task)
            except ConfigError:
                raise
            except _OF_ONE_TASK as exc:
                stops = isinstance(exc, InfrastructureError)
                result = TaskResult(task, error=summary_line(exc))
            experience = result.prediction.experience if result.broke and result.prediction is not None else None
            if self.policy.afresh and experience is not None:
                self.bank.purge(experience.id)  # so that the next try learns as this one would have
        return replace(result, tries=tries), stops

    def _used(self) -> Usage:
        """What the task has used in all parts of the run."""
        return total_usage([self._before, self._ledger.usage()])

    def _attempt(self, task: Task) -> TaskResult:
        """Do a task, or learn from what an earlier try left in the bank."""
        resumed = bool(self._waiting(task))
        while True:
            waiting = self._waiting(task)
            try:
                if waiting:
                    prediction = self.program.resume(replace(waiting[0], task=task), self.environments)
                else:
                    prediction = self.program(
                        task=self.texts.get(task.id, task),
                        bank=self.bank,
                        environments=self.environments,
                        run_id=self.record.id,
                        learn=self.learn,
                    )
                break
            except UnparseableOutput:
                if self.policy.tries == 1 or not self._waiting(task):
                    raise
        return self._scored(task, prediction, resumed or bool(prediction.get("stored")))

    def _scored(self, task: Task, prediction: dspy.Prediction, resumed: bool) -> TaskResult:
        """The result of a finished task, with the ground truth of every rollout."""
        result, scored = TaskResult(task, prediction, resumed=resumed), self.environments
        submitted, ids = prediction.trajectory, [each.rollout_id for each in result.rollouts]
        chosen = submitted.rollout_id if len(ids) > 1 else scored.rollout_of(task.id, submitted)
        errors = [scored.broke(task.id, rollout_id) for rollout_id in (chosen, *ids)]
        sequential = isinstance(self.program, MaTTS) and self.program.config.mode == "sequential"
        outcomes = tuple(scored.outcome(task.id, rollout_id) for rollout_id in ids)
        return replace(
            result,
            outcome=scored.outcome(task.id, chosen),
            outcomes=outcomes if any(outcomes) or not resumed else (),
            passes=tuple(each for id in ids for each in scored.passes(task.id, id)) if sequential else (),
            error=next(filter(None, errors), ""),
        )

    def _waiting(self, task: Task | None = None) -> list[Pending]:
        """The pending rollouts of the run, or of one of its tasks."""
        if not self.learn:
            return []
        return self.bank.pending(run_id=self.record.id, **({} if task is None else {"task_id": task.id}))

    def _forget(self, done: Collection[str]) -> None:
        """Remove experiences and pending rollouts of tasks without a result, left by a killed process."""
        learned = self.bank.learned(self.record.id)
        missing = [id for id in done if not self.record.rows[id]["error"] and id not in learned]
        if missing:
            raise InputError(
                f"{self.bank} has not learned from the task {missing[0]!r}, which has a result; the bank was changed or"
                " removed: pass another folder"
            )
        for pending in self._waiting():
            self.bank.delete(pending.id)
        for task_id in sorted(learned - set(done)):
            experience = self.bank.experience_of(task_id, self.record.id)
            if experience is not None:
                self.bank.purge(experience.id)  # a deleted lesson would not be learned again


def forgetful() -> AbstractContextManager[None]:
    """Keep dspy from storing every call until the process ends: 17 KB of history each, and the trace.

    A trace that somebody collects in a ``dspy.context``, such as an optimizer, is kept.
    """
    everyone = contextvars.Context().run(lambda: dspy.settings.trace)
    trace: dict[str, list[Any]] = {"trace": []} if dspy.settings.trace is everyone else {}
    context: AbstractContextManager[None] = dspy.context(disable_history=True, **trace)
    return context
