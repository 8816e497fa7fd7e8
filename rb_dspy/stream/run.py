"""Run a program over a stream of tasks with one bank, so that every task can learn from those before it."""

from __future__ import annotations

import contextvars
import inspect
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import dspy

from rb_dspy.backbones import metered
from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.bank.admission import checked_name
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import ConfigError, InfrastructureError, InputError, InvalidVector, UnparseableOutput
from rb_dspy.matts import MaTTS
from rb_dspy.program import check_bank
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Task
from rb_dspy.stream.report import RunReport, TaskResult
from rb_dspy.stream.stream import TaskStream
from rb_dspy.text import summary_line

OF_ONE_TASK = (InfrastructureError, UnparseableOutput, InputError, InvalidVector)
"""Errors that affect only one task."""


class Program(Protocol):
    """A program for a stream: ``ReasoningBank``, ``MaTTS``, or anything that is called in the same way."""

    environments: EnvironmentFactory

    def __call__(
        self, *, task: Any, bank: MemoryBank, environments: EnvironmentFactory, run_id: str, learn: bool
    ) -> dspy.Prediction:
        """Do ``task`` (a ``Task``, or text) in ``environments``, and learn from it if ``learn``."""
        ...

    def resume(self, pending: Pending) -> dspy.Prediction:
        """Learn from pending rollouts."""
        ...


def run_stream(
    program: Program,
    stream: TaskStream | Iterable[Task | str | Mapping[str, Any]],
    bank: MemoryBank,
    *,
    run_id: str | None = None,
    learn: bool = True,
    environments: EnvironmentFactory | None = None,
    on_result: Callable[[TaskResult], object] | None = None,
    stop_after: int | None = 3,
) -> RunReport:
    """Run ``program`` over the tasks of ``stream`` in order. Lessons of a task are in ``bank`` before the next begins.

    An interrupted run (Ctrl-C, a crash, a full disk) continues if it is called again with its ``run_id``: it first
    learns from its pending rollouts in the bank, then does the tasks that it has not learned from. An error of one task
    is stored in ``TaskResult.error``, and the run continues; if the task's rollout is pending, the next call with this
    ``run_id`` learns from it.

    Args:
        program: Does the tasks.
        stream: A stream, or a list of tasks, texts or dicts; see ``TaskStream``. A text in a list is passed to the
            program as text.
        bank: Read, and appended to if ``learn``.
        run_id: Name of the run; by default a new one, see ``RunReport.run_id``.
        learn: If False, every task is done once more with the current bank, which is not changed.
        environments: Used instead of the program's own.
        on_result: Called after each task, in this thread.
        stop_after: The run ends after this many tasks in a row whose server, environment or scoring failed; None:
            never.

    Returns:
        The results of this call, in order; resumed tasks first.

    Raises:
        BackboneError: A language model cannot be used at all.
        ConfigError: A setting is wrong for every task.
        InfrastructureError: ``stop_after`` tasks in a row failed.
        BankError: The bank cannot be read or written.
        InputError: Before anything is done: an argument is invalid, or two tasks have the same id.

    An exception that ends a run, also ``KeyboardInterrupt``, has the results so far, and with them the run id, in its
    attribute ``report``.
    """
    if not (callable(program) and hasattr(program, "environments") and hasattr(program, "resume")):
        raise InputError(f"got {type(program).__name__} for program; expected a ReasoningBank, or a MaTTS")
    if inspect.iscoroutinefunction(on_result):
        raise InputError("on_result is async, and run_stream is not; pass a plain function, such as queue.put_nowait")
    if run_id is not None:
        checked_name("run id", run_id)
    check_bank(bank)
    if isinstance(stream, Iterator):
        stream = list(stream)
    tasks = TaskStream.of(stream)
    texts = {task.id: each for task, each in zip(tasks, stream, strict=True) if isinstance(each, str)}
    report = RunReport(run_id or f"run-{uuid.uuid4().hex[:12]}")
    pending = bank.pending(run_id=run_id) if learn and run_id else []
    learned = bank.learned(run_id) if learn and run_id else set()
    report.skipped = sum(task.id in learned for task in tasks)
    scored = ScoredEnvironments(environments or program.environments)

    def do(task: Task) -> TaskResult:
        prediction = program(
            task=texts.get(task.id, task), bank=bank, environments=scored, run_id=report.run_id, learn=learn
        )
        return _scored(program, task, prediction, scored)

    def resume(waiting: Pending) -> TaskResult:
        return TaskResult(waiting.task, program.resume(waiting), resumed=True)

    positions = {task.id: number for number, task in enumerate(tasks, 1)}
    done = learned | {waiting.task.id for waiting in pending}
    jobs = [(waiting.task, partial(resume, waiting)) for waiting in pending]
    jobs += [(task, partial(do, task)) for task in tasks if task.id not in done]
    failed = 0
    try:
        for task, job in jobs:
            with forgetful(), metered() as ledger:
                try:
                    result = job()
                    broke = bool(result.error) and result.outcome is None  # its scoring failed
                except ConfigError:
                    raise
                except OF_ONE_TASK as exc:
                    broke = isinstance(exc, InfrastructureError)
                    result = TaskResult(task, error=summary_line(exc))
            failed = failed + 1 if broke else 0
            result = replace(result, usage=ledger.usage(), run_id=report.run_id, position=positions.get(task.id))
            report.results.append(result)
            if on_result is not None:
                on_result(result)
            if failed and failed == stop_after:
                raise InfrastructureError(
                    f"{failed} tasks in a row failed; the last one: {result.error}; {report.score()} so far; fix this,"
                    f" then continue run {report.run_id!r}"
                )
    except BaseException as exc:
        exc.report = report  # type: ignore[attr-defined]
        raise
    return report


def forgetful() -> AbstractContextManager[None]:
    """Keep dspy from storing every call until the process ends: 17 KB of history each, and the trace.

    A trace that somebody collects in a ``dspy.context``, such as an optimizer, is kept.
    """
    everyone = contextvars.Context().run(lambda: dspy.settings.trace)
    trace: dict[str, list[Any]] = {"trace": []} if dspy.settings.trace is everyone else {}
    context: AbstractContextManager[None] = dspy.context(disable_history=True, **trace)
    return context


def _scored(program: Program, task: Task, prediction: dspy.Prediction, scored: ScoredEnvironments) -> TaskResult:
    """Return the result of a finished task, with the ground truth of every rollout."""
    result = TaskResult(task, prediction)
    chosen, ids = scored.rollout_of(task.id, prediction.trajectory), [each.rollout_id for each in result.rollouts]
    errors = [scored.broke(task.id, rollout_id) for rollout_id in (chosen, *ids)]
    sequential = isinstance(program, MaTTS) and program.config.mode == "sequential"
    return replace(
        result,
        outcome=scored.outcome(task.id, chosen),
        outcomes=tuple(scored.outcome(task.id, rollout_id) for rollout_id in ids),
        passes=tuple(each for id in ids for each in scored.passes(task.id, id)) if sequential else (),
        error=next(filter(None, errors), ""),
    )
