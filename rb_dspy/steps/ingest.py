"""Trajectories of agents that are not ours: chat messages with tool calls, plain dicts, or a ``Trajectory``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from rb_dspy.errors import InvalidTrajectory
from rb_dspy.schema import Step, Task, Trajectory

Foreign = Trajectory | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A trajectory; a dict with ``steps`` (or a trajectory's own fields); a list of chat messages, or of step dicts."""


def as_task(task: Task | str) -> Task:
    """``task``, or a task made of an instruction; its id is derived from the text, so equal text is the same task."""
    if isinstance(task, Task):
        return task
    digest = hashlib.sha256(task.encode("utf-8", "replace")).hexdigest()[:16]
    return Task(id=f"text/{digest}", instruction=task)


def as_trajectory(task: Task, given: Foreign | object) -> Trajectory:
    """``given`` as a trajectory of ``task``.

    Its rollout id, where it has none, is derived from its content: learning twice from one trajectory is learning once.
    Raises ``InvalidTrajectory`` for what cannot be read, naming the element.
    """
    if isinstance(given, Trajectory):
        return given
    if isinstance(given, Mapping):
        return _from_dict(task, given)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidTrajectory(
            f"got {type(given).__name__}; expected a Trajectory, a dict with 'steps', or a list of messages or steps"
        )
    elements = [_plain(element, i) for i, element in enumerate(given)]
    if not elements:
        raise InvalidTrajectory("the trajectory is empty; expected at least one message or step")
    if all("role" in element for element in elements):
        return _from_messages(task, elements)
    if all("action" in element for element in elements):
        return _from_dict(task, {"steps": elements})
    raise InvalidTrajectory("a list of dicts needs 'role' in each (chat messages) or 'action' in each (steps)")


def _from_dict(task: Task, given: Mapping[str, Any]) -> Trajectory:
    if "messages" in given and "steps" not in given:
        return as_trajectory(task, given["messages"])
    fields = {"task_id": task.id, "stop_reason": "external", **given}
    fields.setdefault("rollout_id", _digest(given))
    try:
        return Trajectory.model_validate(fields)
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidTrajectory(
            f"{where}: {first['msg'].lower()}; expected steps of thought, action, observation"
        ) from None


def _from_messages(task: Task, messages: list[dict[str, Any]]) -> Trajectory:
    """Chat messages: an assistant's text is the thought, each tool call an action, the tool's message its observation.

    An assistant message without tool calls is an action of its own, answered by the next user message; the last one is
    the answer. Messages before the first of the assistant are the first observation, less the system's.
    """
    steps: list[dict[str, Any]] = []
    pending: dict[str, dict[str, Any]] = {}
    opening: list[str] = []
    answer: str | None = None
    for i, message in enumerate(messages):
        role, text = message["role"], _text(message.get("content"), i)
        calls = message.get("tool_calls") or []
        if role == "assistant":
            answer = None
            for n, call in enumerate(calls):
                step = {"thought": text if n == 0 else "", "action": _call(call, i), "observation": ""}
                steps.append(step)
                pending[str(_get(call, "id") or f"{i}.{n}")] = step
            if not calls and text:
                steps.append({"thought": "", "action": text, "observation": ""})
                answer = text
        elif role in ("tool", "function"):
            known = pending.pop(str(message.get("tool_call_id")), None)
            if known is None:  # older formats carry no id: results come in the order of the calls
                known = pending.pop(next(iter(pending)), None) if pending else None
            if known is None:
                raise InvalidTrajectory(f"message {i}: a tool's result without a tool call before it")
            known["observation"] = text
        elif role in ("user", "system", "developer"):
            if role == "user" and steps:
                steps[-1]["observation"] = "\n".join(filter(None, [steps[-1]["observation"], text]))
                answer = None
            elif role == "user":
                opening.append(text)
        else:
            raise InvalidTrajectory(f"message {i}: unknown role {role!r}; expected user, assistant, tool or system")
    if not steps:
        raise InvalidTrajectory("the messages hold nothing that the assistant said or did")
    return Trajectory(
        task_id=task.id,
        steps=tuple(Step(**step) for step in steps),
        answer=answer,
        first_observation="\n".join(opening),
        rollout_id=_digest(messages),
        stop_reason="external",
    )


def _plain(element: Any, i: int) -> dict[str, Any]:
    """An element as a dict: mappings, and message objects of the common client libraries."""
    if isinstance(element, Mapping):
        return dict(element)
    if isinstance(element, pydantic.BaseModel):
        return element.model_dump()
    raise InvalidTrajectory(f"element {i} is a {type(element).__name__}; expected a dict")


def _text(content: Any, i: int) -> str:
    """The text of a message: a string, nothing, or a list of parts of which the text counts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part if isinstance(part, str) else _get(part, "text") for part in content]
        return "\n".join(str(part) for part in parts if part)
    raise InvalidTrajectory(f"message {i}: content is a {type(content).__name__}; expected text or a list of parts")


def _call(call: Any, i: int) -> str:
    """``name(arguments)`` of a tool call, in the nested form of chat APIs or the flat one."""
    function = _get(call, "function") or call
    name = _get(function, "name")
    if not name:
        raise InvalidTrajectory(f"message {i}: a tool call without a name")
    arguments = _get(function, "arguments")
    if arguments is None:
        arguments = _get(function, "args")
    if arguments is None:
        arguments = _get(function, "input") or ""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return f"{name}({text})"


def _get(thing: Any, key: str) -> Any:
    return thing.get(key) if isinstance(thing, Mapping) else getattr(thing, key, None)


def _digest(given: Any) -> str:
    text = json.dumps(given, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
