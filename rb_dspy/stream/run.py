"""Running a program over a stream with one bank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from inspect import iscoroutine, iscoroutinefunction
from os import PathLike
from typing import Any, Literal, Protocol, TypeVar

import dspy

from rb_dspy.backbones import metered
from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import ConfigError, InfrastructureError, InputError, InvalidVector
from rb_dspy.matts import MaTTS
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import RoleUsage, Task, Usage
from rb_dspy.steps.events import Drafted, Event, Withheld, listening
from rb_dspy.steps.ingest import as_task, check_bank, check_run
from rb_dspy.stream.report import RunReport
from rb_dspy.stream.result import TaskResult, rollouts
from rb_dspy.stream.tasks import TaskStream

Given = TypeVar("Given")
T = TypeVar("T")


class Program(Protocol):
    """What can be run over a stream: ``ReasoningBank``, ``MaTTS``, or what behaves like one of them."""

    environments: EnvironmentFactory

    def __call__(
        self, *, task: Any, bank: MemoryBank, environments: EnvironmentFactory, run_id: str
    ) -> dspy.Prediction:
        """Do the task, a ``Task`` or a text, in these environments, and learn from it."""
        ...

    def resume(self, ingest: Ingest) -> dspy.Prediction:
        """Learn from what waits in a bank."""
        ...


MAX_BROKEN_IN_A_ROW = 3
"""A run ends when so many tasks in a row broke: a server that is down would only use up the stream."""

STALE = timedelta(hours=1)
"""Rollouts of another run that have waited so long are nobody's any more: a living run learns within minutes."""


def run_stream(
    program: Program,
    stream: TaskStream | Sequence[Task | str],
    bank: MemoryBank,
    *,
    run_id: str,
    on_result: Callable[[TaskResult], None] = lambda result: None,
    resume: Literal["own", "all"] = "own",
    learn: bool = True,
    skip: Callable[[Task], bool] = lambda task: False,
) -> RunReport:
    """Run ``program`` over ``stream`` in order; every task's experience is in ``bank`` before the next begins.

    ``learn=False`` only retrieves and acts, to measure what a bank is worth as it is: nothing is judged or learned,
    the bank is not written to (``open(..., at=...)`` gives one that refuses it), every task is done whatever the bank
    has seen, and nothing is resumed. With ``RetrieveConfig(k=0)`` as well there is no memory at all.

    ``run_id`` names the run; a new run needs a new one, since a task is learned from once a run. The same one goes on
    with a run that was stopped: a task that it has learned from asks no model and is not in the report again.

    A task whose rollout waits in the bank (``MemoryBank.pending``) is not done again but learned from: with
    ``resume="own"`` a rollout of this run, or one that has waited for ``STALE``, since other runs may be at theirs now;
    with ``"all"`` any, for who names every run anew. Those of a run that is at work elsewhere, as this one says of
    itself (``MemoryBank.running``), are left to it. Of two who learn from one rollout all the same, what either has
    first counts for both, and only the work is done twice; where others of its call were still under way, see
    ``MemoryBank.ingest``. Several rollouts that wait together are for ``MaTTS``, which takes a single one as well; any
    other program leaves them where they are.

    ``skip`` is asked just before each task; one for which it says True is left out, and is not in the report.

    A task that breaks, or that cannot be used, is recorded with its error and the run goes on; so is one whose lessons
    get a vector that cannot be used (``InvalidVector``), whose rollout waits. What would break every task that follows
    ends the run: ``BackboneError``, ``ConfigError``, any other ``BankError``, and ``InfrastructureError`` when
    ``MAX_BROKEN_IN_A_ROW`` tasks broke. A rate limit breaks a task only after it was waited for, as long as
    ``BackboneConfig.patience`` says, and each longer wait is logged. What was done stays in the bank.

    No ``Task`` is shown what was learned from a task of its id first, whatever ``bank`` held before; a text is, as in a
    call of the program. Raises ``InputError``, before anything is done, for what is no program, no stream of tasks, no
    bank or no name of a run, for two tasks with one id, for an async ``on_result`` or ``skip``, for the ``on_result``
    of a ``Tracker.stream_run`` of another name, and where a run of this name is at work on this bank.
    """
    _check(program, resume)
    for name, function in (("on_result", on_result), ("skip", skip)):
        if iscoroutinefunction(function):
            raise _is_async(name)
    check_bank(bank)
    if run_id == "":
        raise InputError("run_id is empty; expected a name for the run, since a task is learned from once a run")
    check_run(run_id)
    tracked = getattr(getattr(on_result, "__self__", None), "tracked_run_id", run_id)
    if tracked != run_id:
        raise other_run(run_id, tracked)
    tasks = tasks_of(stream)
    report = RunReport(run_id)
    scored = ScoredEnvironments(program.environments)
    broken = 0
    how: dict[str, Any] = {} if learn else {"learn": False}
    at_work = bank.running(run_id) if learn else nullcontext()
    with (
        at_work,
        dspy.context(disable_history=True),
    ):  # a history keeps some 17 KB of every call for the life of the process
        for position, (task, given) in enumerate(zip(tasks, stream, strict=True), 1):
            if learn and _learned_from(bank, task, run_id):
                report.skipped += 1
                continue
            if _called("skip", skip, task):
                continue
            ingest = _waiting(program, bank, task, run_id, resume) if learn else None
            told = ingest is not None and ingest.state.told  # as broken, with what it had used
            drafted: list[Drafted | Withheld] = []

            def hear(event: Event, drafted: list[Drafted | Withheld] = drafted) -> None:
                if isinstance(event, Drafted | Withheld):
                    drafted.append(event)

            with metered() as ledger, listening(hear):
                try:
                    if ingest is not None:
                        prediction = program.resume(ingest)
                    else:
                        prediction = program(task=given, bank=bank, environments=scored, run_id=run_id, **how)
                except ConfigError:  # an InputError, but none of this task's
                    raise
                except (InfrastructureError, InputError, InvalidVector) as exc:
                    broken += not isinstance(exc, InputError)
                    result = TaskResult(task, usage=ledger.usage(), error=str(exc), resumed=ingest is not None)
                else:
                    broken = 0
                    if ingest is not None:
                        usage = ledger.usage() if told else _with_rollouts(ledger.usage(), ingest)
                        result = TaskResult(task, prediction, usage=usage, resumed=True)
                    else:
                        result = _scored(program, task, prediction, scored, ledger.usage())
            dropped = Counter(why for each in drafted for why in each.dropped)
            said = sum(each.kept + len(each.dropped) for each in drafted if isinstance(each, Drafted))
            proposed = max(said, dropped.total())  # what waited may have been written before
            result = replace(result, unreadable=ledger.unreadable(), proposed=proposed, dropped=dropped)
            result = replace(result, run_id=run_id, position=position)
            report.results.append(result)
            _called("on_result", on_result, result)
            if broken == MAX_BROKEN_IN_A_ROW:
                raise InfrastructureError(f"{broken} tasks in a row broke; the last one: {result.error}")
    return report


def _check(program: Program | object, resume: str) -> None:
    if not (callable(program) and hasattr(program, "environments") and hasattr(program, "resume")):
        raise InputError(f"got {type(program).__name__} for a program; expected a ReasoningBank, or MaTTS around one")
    if resume not in ("own", "all"):
        raise InputError(f"resume={resume!r}; expected 'own' or 'all'")


def as_stream(stream: TaskStream | Sequence[Task | str] | object) -> TaskStream:
    """``stream``, or a stream of what ``run_stream`` takes in its place. Raises ``InputError`` for anything else."""
    return stream if isinstance(stream, TaskStream) else TaskStream("tasks", tuple(tasks_of(stream)))


def tasks_of(stream: TaskStream | Sequence[Task | str] | object) -> list[Task]:
    """The tasks of a stream, texts as the tasks that they stand for.

    Raises ``InputError`` for what is no stream of tasks, and for two tasks with one id.
    """
    if isinstance(stream, str | bytes | PathLike) or not (isinstance(stream, Iterable) and isinstance(stream, Sized)):
        raise InputError(
            f"got {type(stream).__name__} for a stream; expected a TaskStream, or a list of Task:"
            " TaskStream.from_jsonl(path) reads a file"
        )
    tasks = []
    for number, each in enumerate(stream, 1):
        try:
            tasks.append(as_task(each))
        except InputError as exc:
            raise type(exc)(f"task {number} of the stream: {exc}") from None
    task_id, times = Counter(task.id for task in tasks).most_common(1)[0] if tasks else ("", 0)
    if times > 1:
        raise InputError(f"the task id {task_id!r} stands {times} times in this stream; ids must differ")
    return tasks


def _called(name: str, function: Callable[[Given], T], value: Given) -> T:
    """What ``function`` gives. Raises ``InputError`` for a coroutine: nobody would await it, and a result were lost."""
    given = function(value)
    if iscoroutine(given):  # of one that only the call shows to be async
        given.close()
        raise _is_async(name)
    return given


def other_run(run_id: str, tracked: str) -> InputError:
    """Of results of the run ``run_id`` that are handed to who keeps those of the run ``tracked``."""
    return InputError(
        f"the run is called {run_id!r}, and the stream_run that is to keep it {tracked!r}; give both one run_id"
    )


def _is_async(name: str) -> InputError:
    return InputError(
        f"{name} is async, and run_stream awaits nothing; give a plain function, such as queue.put_nowait, or await the"
        " program yourself, task by task (program.acall)"
    )


def _learned_from(bank: MemoryBank, task: Task, run_id: str) -> bool:
    """Whether this run has learned from the task already, from one rollout or from several."""
    return bank.experience_of(task.id, run_id) is not None


def _waiting(
    program: Program, bank: MemoryBank, task: Task, run_id: str, resume: Literal["own", "all"]
) -> Ingest | None:
    """What is to be learned from instead of doing the task: this run's before another's, of those the newest."""
    several = isinstance(program, MaTTS)
    found = [
        ingest for ingest in bank.pending() if ingest.task == task and (several or len(ingest.state.trajectories) == 1)
    ]
    own = [ingest for ingest in found if ingest.state.run_id == run_id]
    others = [ingest for ingest in found if resume == "all" or _stale(ingest.state.created_at)]
    left = (ingest for ingest in own[::-1] + others[::-1] if not ingest.elsewhere)
    return next(left, None)


def _stale(created_at: str) -> bool:
    """Whether it is long since; a time that nobody knows is."""
    return not created_at or datetime.now(UTC) - datetime.fromisoformat(created_at) > STALE


def _with_rollouts(usage: Usage, ingest: Ingest) -> Usage:
    """With what the rollouts had used, which no report has counted: the run that did them was stopped."""
    counted = dict(usage)
    for trajectory in ingest.state.trajectories:
        for role, used in trajectory.usage.items():
            counted[role] = counted.get(role, RoleUsage()) + used
    return counted


def _scored(
    program: Program, task: Task, prediction: dspy.Prediction, scored: ScoredEnvironments, usage: Usage
) -> TaskResult:
    """A task that was done just now, with the ground truth of every rollout."""
    ids = [trajectory.rollout_id for trajectory in rollouts(prediction)]
    broke = next(filter(None, (scored.broke(task.id, id) for id in (prediction.trajectory.rollout_id, *ids))), "")
    refined = isinstance(program, MaTTS) and program.config.mode == "sequential"
    return TaskResult(
        task,
        prediction,
        scored.outcome(task.id, prediction.trajectory.rollout_id),
        usage,
        error=broke,
        outcomes=tuple(scored.outcome(task.id, id) for id in ids),
        passes=tuple(outcome for id in ids for outcome in scored.passes(task.id, id)) if refined else (),
    )
