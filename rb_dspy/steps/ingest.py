"""Trajectories of agents that are not ours: chat messages, plain dicts, or a ``Trajectory``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import dspy
import pydantic

from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.bank.admission import checked_name
from rb_dspy.errors import InputError, InvalidTask, InvalidTrajectory
from rb_dspy.schema import Task, Trajectory
from rb_dspy.steps import messages, predictions
from rb_dspy.steps.ask import Do, Routine
from rb_dspy.wording import first_misfit

Foreign: TypeAlias = Trajectory | dspy.Prediction | dspy.History | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A trajectory; a dict with ``steps`` (or a trajectory's own fields); a list of chat messages, or of step dicts; what
an agent of DSPy's gives: its prediction, or the trajectory in it.
"""


def as_task(task: Task | str | object) -> Task:
    """``task``, or a task made of an instruction; its id is derived from the text, so equal text is the same task.

    Raises ``InvalidTask`` for anything else.
    """
    if isinstance(task, Task):
        return task
    if not isinstance(task, str):
        raise InvalidTask(
            f"got {type(task).__name__} for a task; expected a Task, or text that says what is to be done"
        )
    digest = hashlib.sha256(task.encode("utf-8", "replace")).hexdigest()[:16]
    return Task(id=f"text/{digest}", instruction=task)


def checked(task: Task | str | object, bank: MemoryBank | object, run_id: str | object = "") -> tuple[Task, bool]:
    """``as_task(task)`` of a call whose ``bank`` and ``run_id`` can be used; and whether it is another occasion.

    A text that comes again is: what it taught before is what a memory is for. A ``Task`` is a single thing to do, which
    must not be told what came of it, whatever its id looks like: the tasks of a stream may have been a bank's texts.
    Raises ``InputError``.
    """
    check_bank(bank)
    check_run(run_id)
    return as_task(task), isinstance(task, str)


def check_bank(bank: MemoryBank | object) -> None:
    """Raise ``InputError`` for what is no bank."""
    if not isinstance(bank, MemoryBank):
        raise InputError(
            f"got {type(bank).__name__} for a bank; expected a MemoryBank: MemoryBank.open(path, scope=...) gives one"
        )


def free(task: Task, bank: MemoryBank, rollout_ids: Sequence[Sequence[str]], run_id: str) -> Routine[None]:
    """Refuse an attempt that could not be kept, before anything is paid for: see ``MemoryBank.check_attempt``."""
    look = partial(bank.check_attempt, task, *rollout_ids, run_id=run_id)
    if run_id:
        yield Do("looking whether the attempt can be kept", look)
    else:
        look()  # of a run without a name nothing is looked up


def check_run(run_id: str | object) -> None:
    """Raise ``InputError`` for what names no run, before anything is paid for that could not be kept then."""
    if run_id != "":
        checked_name("run id", run_id)


def waiting(ingest: Ingest | object) -> Ingest:
    """``ingest``, of a call that is to learn from it. Raises ``InputError`` for anything else."""
    if not isinstance(ingest, Ingest):
        raise InputError(
            f"got {type(ingest).__name__} for rollouts that wait; expected an Ingest: bank.pending() gives them"
        )
    return ingest


def unclaimed(ingest: Ingest) -> Routine[None]:
    """Raise ``InputError`` where a living run goes on with these rollouts: both would pay for what one keeps."""
    if (yield Do("looking whether their run is at work", lambda: ingest.elsewhere)):
        raise InputError(
            f"task {ingest.task.id}: left to the run {ingest.state.run_id!r}, which is at work now; learn from these"
            " rollouts when it has ended, if they still wait"
        )


def as_trajectory(task: Task, given: Foreign | object) -> Trajectory:
    """``given`` as a trajectory of ``task``.

    Its rollout id, where it has none, is derived from its content: learning twice from one trajectory is learning once.
    Raises ``InvalidTrajectory`` for what cannot be read, naming the element.
    """
    if isinstance(given, Trajectory):
        if given.task_id != task.id:
            raise InvalidTrajectory(f"the trajectory is of the task {given.task_id!r}, not of {task.id!r}")
        return given
    if isinstance(given, dspy.Prediction):
        return _from_dict(task, predictions.read(given))
    if isinstance(given, dspy.History):
        return as_trajectory(task, given.messages)
    if isinstance(given, Mapping):
        return _from_dict(task, {"steps": predictions.numbered(given)} if predictions.is_numbered(given) else given)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidTrajectory(
            f"got {type(given).__name__}; expected a Trajectory, a dict with 'steps', a list of messages or steps,"
            " or what an agent of DSPy's gives"
        )
    elements = [_plain(element, i) for i, element in enumerate(given)]
    if not elements:
        raise InvalidTrajectory("the trajectory is empty; expected at least one message or step")
    if all(messages.is_message(element) for element in elements):
        said = messages.read(elements)
        return Trajectory(
            task_id=task.id,
            steps=tuple(said.steps),
            answer=said.answer,
            first_observation=said.opening,
            rollout_id=_digest(elements),
            stop_reason="external",
        )
    if all("action" in element for element in elements):
        return _from_dict(task, {"steps": elements})
    if predictions.is_code(elements):
        return _from_dict(task, {"steps": predictions.code(elements)})
    if all("tool_calls" in element for element in elements):
        return _from_dict(task, predictions.tool_calls(elements))
    raise InvalidTrajectory("a list of dicts needs 'role' in each (chat messages) or 'action' in each (steps)")


def _from_dict(task: Task, given: Mapping[str, Any]) -> Trajectory:
    if "messages" in given and "steps" not in given:
        read = as_trajectory(task, given["messages"])
        # Beside the messages others keep what is no part of a trajectory: tools, the model's name.
        own = {name: given[name] for name in Trajectory.model_fields if name in given}
        return as_trajectory(task, _validated({**dict(read), **own})) if own else read
    fields = {"task_id": task.id, "stop_reason": "external", **given}
    fields.setdefault("rollout_id", _digest(given))
    read = as_trajectory(task, _validated(fields))
    if not read.steps and read.answer is None:
        raise InvalidTrajectory("the trajectory is empty; expected 'steps', 'messages' or an 'answer'")
    return read


def _validated(fields: Mapping[str, Any]) -> Trajectory:
    try:
        return Trajectory.model_validate(fields)
    except pydantic.ValidationError as exc:
        raise InvalidTrajectory(f"{first_misfit(exc)}; expected steps of thought, action, observation") from None


def _plain(element: Any, i: int) -> dict[str, Any]:
    """An element as a dict: mappings, and message objects of the common client libraries."""
    if isinstance(element, Mapping):
        return dict(element)
    if hasattr(element, "model_dump"):
        plain: dict[str, Any] = element.model_dump()
        return plain
    raise InvalidTrajectory(f"element {i} is a {type(element).__name__}; expected a dict")


def _digest(given: Any) -> str:
    try:
        text = json.dumps(given, sort_keys=True, default=str)
    except (TypeError, ValueError) as exc:  # keys that do not compare; a value that holds itself
        raise InvalidTrajectory(f"the trajectory has no JSON form: {exc}") from None
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
