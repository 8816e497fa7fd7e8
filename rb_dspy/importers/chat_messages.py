"""Chat messages of OpenAI, Anthropic, Bedrock, Gemini, the AI SDK and agents that use their forms."""

from __future__ import annotations

from typing import Any

from rb_dspy.content import THOUGHTS, as_json, as_text, join, kind, part_text, typed, verbatim
from rb_dspy.errors import InvalidTrajectory
from rb_dspy.importers.conversation import Conversation

ROLES = {
    **dict.fromkeys(("human", "data", "exit"), "user"),  # ``exit``: the end of mini-swe-agent
    **dict.fromkeys(("ai", "model"), "assistant"),
    "function": "tool",
    "developer": "system",
}
"""Other names of the four roles."""

CALLS = ("tool_use", "tool_call", "tool-call", "function_call", "custom_tool_call")
"""Types of the content blocks that call a tool, or suffixes of such types (``server_tool_use``)."""

_RESULTS = ("tool_result", "tool-result")
_SKIPPED = ("redacted_thinking", "redacted-reasoning", "cache_point", "tool-approval-request")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "tool_plan")
_CONTENT = {"content", "parts", "refusal", "audio", "images", "function_call", *_THOUGHTS}
_CALL_LISTS = {"tool_calls", "invalid_tool_calls", "toolInvocations"}


def matches(message: dict[str, Any]) -> bool:
    """Whether this is a chat message."""
    return "role" in message or isinstance(message.get("parts"), list)


def read(message: dict[str, Any], conversation: Conversation) -> None:
    """Add a message to the conversation. The texts of system messages are skipped."""
    role = message.get("role") or "user"  # Gemini's default
    role = ROLES.get(str(role), role)
    if role not in ("user", "assistant", "system", "tool"):
        raise InvalidTrajectory(f"unknown role {str(role)[:40]!r}; expected user, assistant, tool or system")
    others = message.keys() - {"role", "type", "id", "name"}
    if others and others.isdisjoint(_CONTENT | _CALL_LISTS):
        raise InvalidTrajectory(
            f"a message has no content (its fields: {', '.join(sorted(others))[:80]!r}); expected 'content', 'parts' or"
            " 'tool_calls'"
        )
    parts = _parts(message)
    if role == "assistant":
        _read_assistant(message, parts, conversation)
    elif role == "tool" and not any(map(_is_result, parts)):
        read_result(message, message.get("content"), conversation)
    else:
        for part in parts:
            if role != "system" or _is_result(part):
                _read_part(part, conversation)


def read_call(call: Any, conversation: Conversation, observation: str = "") -> None:
    """Add a tool call, nested under ``function`` or flat."""
    if not isinstance(call, dict):
        raise InvalidTrajectory(f"a tool call is a {type(call).__name__}; expected a dict with 'name' and arguments")
    inner = next((call[key] for key in ("function", "custom") if isinstance(call.get(key), dict)), call)
    name = _first(inner, "name", "toolName", "language")
    if not name or not isinstance(name, str):
        raise InvalidTrajectory("a tool call has no name; expected a text under 'name'")
    arguments = verbatim(_first(inner, "arguments", "args", "input", "rawInput", "code"))
    id = verbatim(_first(call, "call_id", "toolUseId", "toolCallId", "id"))
    conversation.call(name, arguments, id, observation)


def read_result(result: dict[str, Any], content: Any, conversation: Conversation) -> None:
    """Add the result of a tool: ``content`` of the message, block or item ``result``."""
    failed = bool(result.get("is_error") or result.get("isError")) or result.get("status") in ("error", "failed")
    failed |= result.get("outcome") not in (None, "OUTCOME_OK")  # of Gemini's code execution
    if isinstance(content, dict) and kind(result) == "tool-result" and "value" in content:  # the AI SDK's
        failed |= kind(content).startswith("error")
        content = content["value"]
    elif isinstance(content, dict) and len(content) == 1 and "response" in result:  # Gemini's client wraps values
        failed |= "error" in content
        content = next((content[key] for key in ("result", "output", "error") if key in content), content)
    names = ("tool_call_id", "tool_use_id", "toolUseId", "toolCallId", "call_id")
    id = verbatim(_first(result, *names, *(("id",) if _is_result(result) else ())))
    conversation.result(as_text(content), id, as_text(_first(result, "name", "tool_name", "toolName")), failed)


def _read_assistant(message: dict[str, Any], parts: list[Any], conversation: Conversation) -> None:
    conversation.begin_turn()
    if not any(isinstance(part, dict) and kind(part) in THOUGHTS for part in parts):  # else the same again
        conversation.think(as_text(_first(message, *_THOUGHTS)))
    for part in parts:
        _read_part(part, conversation, is_said=True)
    conversation.say(as_text(message.get("refusal")))
    if isinstance(message.get("audio"), dict):
        conversation.say(part_text({"transcript": message["audio"].get("transcript"), "type": "audio"}) or "")
    for call in _listed(message.get("tool_calls")):
        read_call(call, conversation)
    for call in _listed(message.get("invalid_tool_calls")):
        error = call.get("error") if isinstance(call, dict) else None
        read_call(call, conversation, f"[error] {as_text(error) or 'the call could not be parsed'}")
    if message.get("function_call"):
        read_call(message["function_call"], conversation)


def _read_part(part: Any, conversation: Conversation, is_said: bool = False) -> None:
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    elif not isinstance(part, dict):
        raise InvalidTrajectory(f"content holds a {type(part).__name__}; expected text, or a dict with 'type'")
    said, part = part.get("text"), typed(part)
    name, text = kind(part), part_text(part)
    if said and name.endswith((*CALLS, *_RESULTS)):  # one part of Gemini or Bedrock with both
        _read_part({"type": "text", "text": said}, conversation, is_said)
    if name.endswith(CALLS):
        read_call(part, conversation, _known_result(part))
    elif name.endswith(_RESULTS):
        read_result(part, _first(part, "content", "output", "result", "response"), conversation)
    elif name in THOUGHTS or (is_said and name.startswith(("source", "data-"))):  # shown by the AI SDK beside the text
        conversation.think(as_json(part) if text is None else text)
    elif name == "step-start":  # of the AI SDK
        conversation.begin_turn()
    elif name in _SKIPPED:
        return
    elif not is_said:
        conversation.observe(as_json(part) if text is None else text)
    elif text is not None:
        conversation.say(text)
    else:
        raise InvalidTrajectory(
            f"a part of the assistant's message has the type {name[:40]!r} and the fields"
            f" {', '.join(sorted(part))[:80]!r}; expected a text, a thought, a tool call or a file"
        )


def _parts(message: dict[str, Any]) -> list[Any]:
    """The parts of a message. Messages of the AI SDK have them under ``parts``, and repeat some beside it."""
    content, parts = _listed(message.get("content")), _listed(message.get("parts"))
    said = "".join(as_text(part) for part in parts if isinstance(part, dict) and kind(part) == "text")
    content = [part for part in content if not parts or as_text(part) not in said]
    called = {str(typed(part).get("toolCallId", "")) for part in parts if isinstance(part, dict)} - {""}
    for call in _listed(message.get("toolInvocations")):
        if not isinstance(call, dict) or str(call.get("toolCallId", "")) not in called:
            parts.append({"type": "tool-invocation", "toolInvocation": call})
    for key, name in (("images", "image"), ("experimental_attachments", "file")):
        parts += [{"type": name, **(part if isinstance(part, dict) else {})} for part in _listed(message.get(key))]
    return content + parts


def _known_result(call: dict[str, Any]) -> str:
    """The result of a call that has it in the same part, as in the AI SDK's messages."""
    approval = call.get("approval")
    if isinstance(approval, dict) and approval.get("approved") is False:
        return join(["[error] the user denied the call", as_text(approval.get("reason"))])
    error = call.get("errorText")
    return f"[error] {as_text(error)}" if error else as_text(_first(call, "result", "output"))


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and kind(typed(part)).endswith(_RESULTS)


def _listed(content: Any) -> list[Any]:
    if content is None or content == "":
        return []
    return list(content) if isinstance(content, list) else [content]


def _first(part: dict[str, Any], *names: str) -> Any:
    return next((part[name] for name in names if part.get(name) not in (None, "")), None)
