"""Messages of LangChain and LangGraph: objects, their dicts, and their saved forms."""

from __future__ import annotations

from typing import Any

from rb_dspy.content import kind
from rb_dspy.importers import chat_messages
from rb_dspy.importers.conversation import Conversation

_TYPES = ("human", "user", "ai", "assistant", "system", "tool", "function", "chat")

_ADDITIONAL_KEYS = ("reasoning_content", "refusal", "function_call")
"""Fields that are only in ``additional_kwargs``."""


def matches(message: dict[str, Any]) -> bool:
    """Whether this is a message of LangChain."""
    return _type(_unwrap(message)) in _TYPES


def read(message: dict[str, Any], conversation: Conversation) -> None:
    """Add a message to the conversation."""
    message = _unwrap(message)
    role = message.get("role") or _type(message)
    content, extra = message.get("content"), message.get("additional_kwargs")
    if isinstance(content, list) and (message.get("tool_calls") or message.get("invalid_tool_calls")):
        # Content repeats the same calls in the provider's form.
        content = [part for part in content if not (isinstance(part, dict) and kind(part) in chat_messages.CALLS)]
    aside = {name: extra[name] for name in _ADDITIONAL_KEYS if name in extra} if isinstance(extra, dict) else {}
    if message.get("tool_calls"):
        aside.pop("function_call", None)
    chat_messages.read({**message, **aside, "role": role, "content": content}, conversation)


def _type(message: dict[str, Any]) -> str:
    """The type of a message, or of a streamed one that was added up (``HumanMessageChunk``)."""
    name = kind(message)
    return name.removesuffix("MessageChunk").lower() if name.endswith("MessageChunk") else name


def _unwrap(message: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message that was saved with ``messages_to_dict`` (``data``) or ``dumpd`` (``kwargs``)."""
    for name in ("data", "kwargs"):
        fields = message.get(name)
        if isinstance(fields, dict) and "role" not in message and "content" not in message:
            return {"type": message.get("type"), **fields}
    return message
