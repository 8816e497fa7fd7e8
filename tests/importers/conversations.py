"""One conversation in the formats of several client libraries, and stand-ins for the objects of two of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pydantic
from openai.types.chat import ChatCompletionMessage

REFUND = [
    ("I will look it up", 'lookup({"order": 1})', "charged twice"),
    ("", 'refund({"order": 1})', "[error] refused"),
    ("", "Done!", ""),
]
"""Thought, action and observation of each step."""

ASKED = "Refund order 1"
ARGUMENTS = '{"order": 1}'


class Block(pydantic.BaseModel):
    """A content block with the attributes of those of ``anthropic``."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class AnthropicMessage(pydantic.BaseModel):
    """A message with the attributes of ``anthropic.types.Message``."""

    content: list[Block]
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"
    stop_reason: str = "end_turn"


@dataclass
class LangChainMessage:
    """A message with the attributes of those of ``langchain_core``."""

    type: str
    content: str | list[Any] = ""
    additional_kwargs: dict[str, Any] = field(default_factory=dict)
    response_metadata: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    id: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    invalid_tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tool_call_id: str | None = None
    status: str = "success"


def _openai_call(id: str, name: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}


def openai_messages() -> list[Any]:
    return [
        {"role": "developer", "content": "You are an agent."},
        {"role": "user", "content": [{"type": "text", "text": ASKED}]},
        {"role": "assistant", "content": "I will look it up", "tool_calls": [_openai_call("a", "lookup")]},
        {"role": "tool", "tool_call_id": "a", "content": "charged twice"},
        {"role": "assistant", "content": None, "tool_calls": [_openai_call("b", "refund")]},
        {"role": "tool", "tool_call_id": "b", "content": "[error] refused"},
        {"role": "assistant", "content": "Done!"},
    ]


def openai_objects() -> list[Any]:
    return [
        ChatCompletionMessage.model_validate(message) if message["role"] == "assistant" else message
        for message in openai_messages()
    ]


def openai_before_tools() -> list[Any]:
    lookup, refund = ({"name": name, "arguments": ARGUMENTS} for name in ("lookup", "refund"))
    return [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": "I will look it up", "function_call": lookup},
        {"role": "function", "name": "lookup", "content": "charged twice"},
        {"role": "assistant", "content": None, "function_call": refund},
        {"role": "function", "name": "refund", "content": "[error] refused"},
        {"role": "assistant", "content": "Done!"},
    ]


def _tool_result(id: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text, **fields}]}


def anthropic_messages() -> list[Any]:
    call = {"type": "tool_use", "input": {"order": 1}}
    said = {"type": "text", "text": "I will look it up"}
    return [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": [said, {**call, "id": "a", "name": "lookup"}]},
        _tool_result("a", "charged twice"),
        {"role": "assistant", "content": [{**call, "id": "b", "name": "refund"}]},
        _tool_result("b", "refused", is_error=True),
        {"role": "assistant", "content": [{"type": "text", "text": "Done!"}]},
    ]


def anthropic_objects() -> list[Any]:
    """Whole messages first, then only their content, as both are appended to a list of messages."""
    messages = anthropic_messages()
    for i in (1, 3, 5):
        message = AnthropicMessage(content=[Block.model_validate(part) for part in messages[i]["content"]])
        messages[i] = message if i < 5 else {"role": "assistant", "content": message.content}
    return messages


def response_items() -> list[Any]:
    def said(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    return [
        {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "xyz"},
        said("I will look it up"),
        {"type": "function_call", "id": "1", "call_id": "a", "name": "lookup", "arguments": ARGUMENTS},
        {"type": "function_call_output", "id": "2", "call_id": "a", "output": "charged twice"},
        {"type": "function_call", "id": "3", "call_id": "b", "name": "refund", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "[error] refused"}]},
        said("Done!"),
    ]


def langchain_objects() -> list[LangChainMessage]:
    """The first call is in Anthropic's form in the content, too, as ``langchain_anthropic`` has it."""
    lookup = {"type": "tool_use", "id": "a", "name": "lookup", "input": {"order": 1}}
    calls = [
        {"type": "tool_call", "id": id, "name": name, "args": {"order": 1}}
        for id, name in (("a", "lookup"), ("b", "refund"))
    ]
    said: list[Any] = [{"type": "text", "text": "I will look it up"}, lookup]
    return [
        LangChainMessage("system", "You are an agent."),
        LangChainMessage("human", ASKED),
        LangChainMessage("ai", said, tool_calls=calls[:1]),
        LangChainMessage("tool", "charged twice", name="lookup", tool_call_id="a"),
        LangChainMessage("AIMessageChunk", "", tool_calls=calls[1:]),
        LangChainMessage("tool", "refused", tool_call_id="b", status="error"),
        LangChainMessage("ai", "Done!"),
    ]


def langchain_dicts() -> list[dict[str, Any]]:
    """As ``model_dump`` gives them."""
    return [dict(vars(message)) for message in langchain_objects()]


def langchain_saved() -> list[dict[str, Any]]:
    """As ``messages_to_dict`` gives them."""
    return [{"type": message["type"], "data": message} for message in langchain_dicts()]


def langchain_dumped() -> list[dict[str, Any]]:
    """As ``langchain_core.load.dumpd`` gives them."""
    return [
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "X"], "kwargs": message}
        for message in langchain_dicts()
    ]


FORMATS = {
    "openai": openai_messages,
    "openai objects": openai_objects,
    "openai before tools": openai_before_tools,
    "anthropic": anthropic_messages,
    "anthropic objects": anthropic_objects,
    "responses": response_items,
    "langchain objects": langchain_objects,
    "langchain messages_to_dict": langchain_saved,
    "langchain dumpd": langchain_dumped,
    "langgraph state": lambda: {"messages": langchain_objects(), "remaining_steps": 7},
    "a tuple": lambda: tuple(openai_messages()),
}
