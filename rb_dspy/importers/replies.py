"""Logs of model calls and whole responses of client libraries, as messages."""

from __future__ import annotations

from typing import Any

from rb_dspy.content import as_text
from rb_dspy.errors import InvalidTrajectory

_REQUEST = ("messages", "contents", "prompt")
_REPLY = ("response", "choices", "candidates", "outputs", "output", "completion", "reply")
"""Fields of a log that hold the request and the reply; the first that is not empty is read."""

_INSIDE = ("messages", "output", "choices", "candidates", "message", "content")
"""Fields of a response that hold its messages, items, choices or message."""


def is_log(data: dict[str, Any]) -> bool:
    """Whether this is a log of one model call: request and reply, as in ``dspy.LM.history``."""
    return any(key in data for key in _REQUEST) and any(data.get(key) for key in _REPLY)


def messages(logs: list[dict[str, Any]]) -> list[Any]:
    """The messages of several calls, each once: a request repeats what was said before it."""
    found: list[Any] = []
    before: list[Any] = []
    for i, log in enumerate(logs):
        request, reply = _request(log), _reply(log)
        pairs = enumerate(zip(before, request, strict=False))
        same = next((at for at, (old, new) in pairs if old != new), min(len(before), len(request)))
        if i and same == len(before) < len(request) and _is_assistants(request[same]):
            same += 1  # the earlier reply
        found += request[same:]
        if request and reply and _is_assistants(request[-1]) and isinstance(reply[-1], dict):
            text = as_text(reply[-1].get("content"))
            is_same = bool(text) and not reply[-1].get("tool_calls") and text == as_text(request[-1].get("content"))
            reply = [] if is_same or request[-1] == reply[-1] else reply  # the messages end with it
        found += reply
        before = request
    return found


def response(data: Any) -> list[Any] | None:
    """The messages or items of a reply; None if its form is unknown. The first of several choices counts."""
    if isinstance(data, str):
        return [{"role": "assistant", "content": data}]
    if isinstance(data, list) and data:
        first = data[0]
        return data if isinstance(first, dict) and (first.get("role") or first.get("type")) else response(first)
    if not isinstance(data, dict):
        return None
    for key in _INSIDE:
        inner = data.get(key)
        if isinstance(inner, dict) or (inner and isinstance(inner, list) and key != "content"):
            return response({"role": "assistant", **inner} if isinstance(inner, dict) else inner)
    if data.get("role") or data.get("content") is not None:
        return [{"role": "assistant", **data}]
    if isinstance(data.get("text"), str) or data.get("tool_calls"):  # an output of DSPy, an older choice
        return [{**data, "role": "assistant", "content": data.get("text")}]
    return None


def _request(log: dict[str, Any]) -> list[Any]:
    request = next((log[key] for key in _REQUEST if log.get(key) is not None), None)
    if isinstance(request, str) and log.get("messages") is None:
        return [{"role": "user", "content": request}]
    if not isinstance(request, list):
        raise InvalidTrajectory(f"the messages are a {type(request).__name__}; expected a list")
    return request


def _reply(log: dict[str, Any]) -> list[Any]:
    key = next((key for key in _REPLY if log.get(key)), None)
    if key is None:
        return []
    reply = response(log[key])
    if reply is None:
        raise InvalidTrajectory(
            f"the reply under {key!r} is a {type(log[key]).__name__} of an unknown form; expected a text, a message or"
            " the response of a client library: pass one under 'answer', or the messages alone"
        )
    return reply


def _is_assistants(message: Any) -> bool:
    return isinstance(message, dict) and (message.get("role") or message.get("type")) in ("assistant", "model", "ai")
