"""Convert rollouts of other agents to trajectories.

One file per format: ``trajectory`` (our own fields and steps, SWE-agent), ``chat_messages`` (OpenAI, Anthropic,
Bedrock, Gemini, the AI SDK), ``langchain``, ``responses`` (OpenAI), ``dspy_agents``, ``sessions`` (Claude Code) and
``replies`` (logs of model calls). One list may mix the message formats, as client libraries do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import dspy
import pydantic

from rb_dspy.content import plain
from rb_dspy.errors import InvalidTrajectory
from rb_dspy.importers import chat_messages, dspy_agents, langchain, replies, responses, sessions, trajectory
from rb_dspy.importers.conversation import Conversation
from rb_dspy.schema import Task, Trajectory

__all__ = ["Foreign", "to_trajectory"]

Foreign: TypeAlias = Trajectory | dspy.Prediction | pydantic.BaseModel | Mapping[str, Any] | Sequence[Any]
"""A ``Trajectory`` or its fields as a dict; a list of step dicts; a list of messages or items (dicts, or objects of the
client library) or of a session's entries; a state, log or file that has it under ``messages``; a whole response; the
prediction of a DSPy agent, its ``trajectory`` or its ``history``.
"""

_Fields = dict[str, Any]

_READERS = (
    (responses.matches, responses.read),
    (langchain.matches, langchain.read),
    (chat_messages.matches, chat_messages.read),
)
"""Of the elements of a conversation: whether it is of a format, and how to read it. The first match counts."""


def to_trajectory(task: Task, rollout: Foreign) -> Trajectory:
    """Read the rollout of another agent as a trajectory of ``task``.

    The rollout id is a digest of the content unless the rollout has a ``rollout_id``, so an equal rollout gets an equal
    id. The answer is the agent's last text, if no tool call follows it.

    Raises:
        InvalidTrajectory: The rollout is empty, belongs to another task, or cannot be read.
    """
    if isinstance(rollout, dspy.Prediction) and isinstance(rollout.get("trajectory"), Trajectory):
        rollout = rollout["trajectory"]
    if isinstance(rollout, Trajectory):
        result = rollout
    else:
        data = plain(rollout)
        if not isinstance(data, dict | list):
            raise InvalidTrajectory(
                f"got {type(rollout).__name__} for a trajectory; expected a Trajectory, a dict with 'steps' or"
                " 'messages', a list of messages or steps, or the prediction of a DSPy agent"
            )
        fields = _read(data, is_prediction=isinstance(rollout, dspy.Prediction))
        result = trajectory.validate({"task_id": task.id, "stop_reason": "external", **fields})
    if result.task_id != task.id:
        raise InvalidTrajectory(f"the trajectory belongs to task {result.task_id!r}; expected task {task.id!r}")
    return result


def _read(data: _Fields | list[Any], is_prediction: bool = False) -> _Fields:
    """Read the fields of a ``Trajectory`` from plain data."""
    fields = {"rollout_id": _digest(data)}
    if isinstance(data, list):
        return fields | _read_list(data)
    has_messages = "messages" in data or "contents" in data or replies.is_log(data)
    if has_messages and not is_prediction and "steps" not in data:
        return _read(replies.messages([data])) | trajectory.beside_messages(data)
    turns = data.get("trajectory", data.get("history"))
    if not is_prediction and isinstance(turns, list) and isinstance(data.get("info"), dict):  # a file of SWE-agent
        return fields | _read_list(turns) | trajectory.beside_messages(data)
    if is_prediction or "trajectory" in data or "history" in data:
        if turns and not isinstance(turns, dict | list):
            raise InvalidTrajectory(f"the trajectory is a {type(turns).__name__}; expected a list or a dict")
        inner = _read(turns) if turns else {}
        inner.pop("rollout_id", None)  # a digest of the turns alone, without the answer
        return fields | dspy_agents.read_prediction(data, inner)
    if dspy_agents.is_numbered(data):
        return fields | {"steps": dspy_agents.numbered_steps(data)}
    if _reader(data):
        return fields | _read_list([data])
    response = None if "answer" in data or "steps" in data else replies.response(data)
    return fields | (_read_list(response) if response else trajectory.read(data))


def _read_list(elements: list[Any]) -> _Fields:
    if not elements:
        raise InvalidTrajectory("the trajectory is empty; expected at least one message or step")
    for i, element in enumerate(elements):
        if not isinstance(element, dict):
            raise InvalidTrajectory(f"element {i} is a {type(element).__name__}; expected a message or a step")
    if all(trajectory.is_step(element) and _reader(element) is None for element in elements):
        return {"steps": trajectory.read_steps(elements)}
    if dspy_agents.is_history(elements):
        return dspy_agents.read_history(elements)
    if all(map(replies.is_log, elements)):
        return _read_list(replies.messages(elements))
    conversation = Conversation()
    for i, element in enumerate(sessions.messages(elements)):
        reader = _reader(element)
        if reader is None:
            raise InvalidTrajectory(
                f"element {i} is neither a message nor a step (its fields: {', '.join(sorted(element))[:80]!r});"
                " expected 'role' or a known 'type' in each (messages), or 'action' in each (steps)"
            )
        try:
            reader(element, conversation)
        except InvalidTrajectory as exc:
            raise InvalidTrajectory(f"message {i}: {exc}") from None
    return conversation.fields()


def _reader(element: _Fields) -> Callable[[_Fields, Conversation], None] | None:
    return next((read for matches, read in _READERS if matches(element)), None)


def _digest(data: Any) -> str:
    try:
        text = json.dumps(data, sort_keys=True)
    except ValueError as exc:  # an integer with thousands of digits
        raise InvalidTrajectory(f"the trajectory cannot be written as JSON: {exc}") from None
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
