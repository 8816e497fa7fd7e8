"""Chat messages of OpenAI (tool calls, the older function calls) and Anthropic (content blocks)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rb_dspy.errors import InvalidTrajectory
from rb_dspy.importers.content import THOUGHTS, as_text, kind, part_text, verbatim
from rb_dspy.importers.conversation import Conversation

ROLES = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system"}
"""Other names of the four roles."""

CALLS = ("tool_use", "tool_call", "function_call", "custom_tool_call")
"""Types of the content blocks that call a tool, or suffixes of such types (``server_tool_use``)."""


def matches(message: dict[str, Any]) -> bool:
    """Whether this is a chat message."""
    return "role" in message


def read(message: dict[str, Any], conversation: Conversation) -> None:
    """Add a message to the conversation. System messages are skipped."""
    role = ROLES.get(str(message["role"]), message["role"])
    if role == "assistant":
        _read_assistant(message, conversation)
    elif role == "user":
        for part in _parts(message.get("content")):
            _read_part(part, conversation, conversation.observe)
    elif role == "tool":
        read_result(message, message.get("content"), conversation)
    elif role != "system":
        raise InvalidTrajectory(f"unknown role {str(role)[:40]!r}; expected user, assistant, tool or system")


def read_call(call: Any, conversation: Conversation, observation: str = "") -> None:
    """Add a tool call, nested under ``function`` or flat."""
    if not isinstance(call, dict):
        raise InvalidTrajectory(f"a tool call is a {type(call).__name__}; expected a dict with 'name' and arguments")
    inner = next((call[key] for key in ("function", "custom") if isinstance(call.get(key), dict)), call)
    name = inner.get("name")
    if not name or not isinstance(name, str):
        raise InvalidTrajectory("a tool call has no name; expected a text under 'name'")
    arguments = next((inner[key] for key in ("arguments", "args", "input") if inner.get(key) is not None), "")
    conversation.call(name, verbatim(arguments), id=_id(call, "call_id", "id"), observation=observation)


def read_result(result: dict[str, Any], content: Any, conversation: Conversation) -> None:
    """Add the result of a tool: ``content`` of the message, block or item ``result``."""
    failed = bool(result.get("is_error")) or result.get("status") in ("error", "failed")
    id, name = _id(result, "tool_call_id", "tool_use_id", "call_id"), result.get("name") or result.get("tool_name")
    conversation.result(as_text(content), id, as_text(name), failed)


def _read_assistant(message: dict[str, Any], conversation: Conversation) -> None:
    conversation.begin_turn()
    conversation.think(as_text(message.get("reasoning_content") or message.get("reasoning")))
    for part in _parts(message.get("content")):
        _read_part(part, conversation, conversation.say)
    conversation.say(as_text(message.get("refusal")))
    if isinstance(message.get("audio"), dict):
        conversation.say(part_text({"transcript": message["audio"].get("transcript"), "type": "audio"}))
    for call in _parts(message.get("tool_calls")):
        read_call(call, conversation)
    for call in _parts(message.get("invalid_tool_calls")):
        error = call.get("error") if isinstance(call, dict) else None
        read_call(call, conversation, f"[error] {as_text(error) or 'the call could not be parsed'}")
    if message.get("function_call"):
        read_call(message["function_call"], conversation)


def _read_part(part: Any, conversation: Conversation, add: Callable[[str], None]) -> None:
    if isinstance(part, str):
        add(part)
    elif not isinstance(part, dict):
        raise InvalidTrajectory(f"content holds a {type(part).__name__}; expected text, or a dict with 'type'")
    elif kind(part).endswith(CALLS):
        read_call(part, conversation)
    elif kind(part).endswith("tool_result"):
        read_result(part, part.get("content", part.get("output")), conversation)
    elif kind(part) in THOUGHTS:
        conversation.think(part_text(part))
    elif kind(part) != "redacted_thinking":
        add(part_text(part))


def _parts(content: Any) -> list[Any]:
    if content is None or content == "":
        return []
    return content if isinstance(content, list) else [content]


def _id(part: dict[str, Any], *names: str) -> str:
    return next((str(part[name]) for name in names if part.get(name) not in (None, "")), "")
