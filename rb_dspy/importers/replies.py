"""Whole responses of client libraries, and the reply beside the messages of a request."""

from __future__ import annotations

from typing import Any

from rb_dspy.content import as_text
from rb_dspy.errors import InvalidTrajectory

_MESSAGES = ("messages", "output")
"""Fields of responses that hold messages or items: the AI SDK's, OpenAI's ``Response``."""
_CHOICES = ("choices", "candidates")
"""OpenAI's ``ChatCompletion``, Gemini."""
_MESSAGE = ("message", "output", "content")
"""A choice, Ollama and Strands; Bedrock; one of Gemini's candidates."""

_REQUEST = ("messages", "contents", "prompt")
_REPLY = ("response", "choices", "candidates", "outputs", "output", "completion", "reply")
"""Fields of a log that hold the request and the reply; the first that is not empty is read."""


def is_log(data: dict[str, Any]) -> bool:
    """Whether this is a log of one model call: request and reply, as in ``dspy.LM.history``."""
    return any(key in data for key in _REQUEST) and any(data.get(key) for key in _REPLY)


def messages(logs: list[dict[str, Any]]) -> list[Any]:
    """The messages of several calls, each once: a request repeats what was said before it.

    Raises:
        InvalidTrajectory: A request is no list, or a reply has no known form.
    """
    found: list[Any] = []
    before: list[Any] = []
    for i, log in enumerate(logs):
        request, reply = _request(log), _reply(log)
        pairs = enumerate(zip(before, request, strict=False))
        same = next((at for at, (old, new) in pairs if old != new), min(len(before), len(request)))
        if i and same == len(before) < len(request) and _is_assistants(request[same]):
            same += 1  # the earlier reply
        found += request[same:]
        if not (request and reply and _is_repeated(reply[-1], request[-1])):
            found += reply
        before = request
    return found


def is_response(data: dict[str, Any]) -> bool:
    """Whether this may be the whole response of a client library."""
    return any(data.get(key) and isinstance(data[key], list | dict) for key in (*_MESSAGES, *_CHOICES, *_MESSAGE))


def response(data: Any) -> list[Any] | None:
    """The messages or items of a reply; None if its form is unknown. The first of several choices counts."""
    if isinstance(data, str):
        return [{"role": "assistant", "content": data}]
    if isinstance(data, list):
        if data and isinstance(data[0], dict) and (data[0].get("role") or data[0].get("type")):
            return data
        return response(data[0]) if data else None
    if not isinstance(data, dict):
        return None
    for key in _MESSAGES:
        if isinstance(data.get(key), list):
            return data[key] or None
    for key in _CHOICES:
        if data.get(key) and isinstance(data[key], list):
            return response(data[key][0])
    for key in _MESSAGE:
        if isinstance(data.get(key), dict):
            return response({"role": "assistant", **data[key]})
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
    reply = response({key: log[key]} if key in _CHOICES else log[key])
    if reply is None:
        raise InvalidTrajectory(
            f"the reply under {key!r} is a {type(log[key]).__name__} of an unknown form; expected a text, a message or"
            " the response of a client library"
        )
    return reply


def _is_assistants(message: Any) -> bool:
    return isinstance(message, dict) and (message.get("role") or message.get("type")) in ("assistant", "model", "ai")


def _is_repeated(reply: Any, last: Any) -> bool:
    """Whether the messages end with the reply."""
    if not _is_assistants(last) or not isinstance(reply, dict):
        return False
    text = as_text(reply.get("content"))
    return last == reply or bool(text and text == as_text(last.get("content")) and not reply.get("tool_calls"))
