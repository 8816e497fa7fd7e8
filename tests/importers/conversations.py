"""One conversation in the formats of several client libraries, and stand-ins for the objects of two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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


@dataclass
class Turn:
    """What happens next: the user says ``text``; the assistant says it, and calls a tool if it has a ``result``."""

    text: str
    is_user: bool = False
    thought: str = ""
    result: str | None = None
    failed: bool = False
    tool: str = "lookup"


Script = list[Turn]

SCRIPT = [
    Turn(ASKED, is_user=True),
    Turn("I will look it up", result="charged twice"),
    Turn("", result="refused", failed=True, tool="refund"),
    Turn("Done!"),
]


def _rendered(
    script: Script,
    user: Callable[[str], Any],
    assistant: Callable[[int, Turn], Any],
    result: Callable[[int, Turn], Any] = lambda i, turn: None,
) -> list[Any]:
    messages = []
    for i, turn in enumerate(script):
        messages.append(user(turn.text) if turn.is_user else assistant(i, turn))
        if turn.result is not None:
            messages.append(result(i, turn))
    return [message for message in messages if message is not None]


def bedrock(script: Script) -> list[Any]:
    """Also of Strands Agents."""

    def assistant(i: int, turn: Turn) -> Any:
        content: list[Any] = [{"text": turn.text}] if turn.text else []
        if turn.thought:
            content.insert(0, {"reasoningContent": {"reasoningText": {"text": turn.thought, "signature": "s"}}})
        if turn.result is not None:
            content.append({"toolUse": {"toolUseId": f"t{i}", "name": turn.tool, "input": {"order": 1}}})
        return {"role": "assistant", "content": content}

    def result(i: int, turn: Turn) -> Any:
        fields = {"toolUseId": f"t{i}", "status": "error" if turn.failed else "success"}
        return {"role": "user", "content": [{"toolResult": {**fields, "content": [{"text": turn.result}]}}]}

    return _rendered(script, lambda text: {"role": "user", "content": [{"text": text}]}, assistant, result)


def gemini(script: Script) -> list[Any]:
    def assistant(i: int, turn: Turn) -> Any:
        parts: list[Any] = [{"text": turn.text}] if turn.text else []
        if turn.thought:
            parts.insert(0, {"text": turn.thought, "thought": True})
        if turn.result is not None:
            parts.append({"functionCall": {"name": turn.tool, "args": {"order": 1}}, "thoughtSignature": "s"})
        return {"role": "model", "parts": parts}

    def result(i: int, turn: Turn) -> Any:
        response = {"error" if turn.failed else "result": turn.result}
        return {"role": "user", "parts": [{"functionResponse": {"name": turn.tool, "response": response}}]}

    return _rendered(script, lambda text: {"role": "user", "parts": [{"text": text}]}, assistant, result)


def gemini_objects(script: Script) -> list[Any]:
    """With the names of the Python client, as its objects dump them."""
    names = {"functionCall": "function_call", "functionResponse": "function_response"}
    return [
        {"parts": [{names.get(key, key): value for key, value in part.items()} for part in message["parts"]]}
        | {"role": role}
        for message in gemini(script)
        for role in [message["role"]]
    ]


def agentscope(script: Script) -> list[Any]:
    def assistant(i: int, turn: Turn) -> Any:
        content: list[Any] = [{"type": "text", "text": turn.text}] if turn.text else []
        if turn.thought:
            content.insert(0, {"type": "thinking", "thinking": turn.thought})
        if turn.result is not None:
            content.append({"type": "tool_use", "id": f"t{i}", "name": turn.tool, "input": {"order": 1}})
        return {"name": "Desk", "role": "assistant", "content": content, "metadata": None}

    def result(i: int, turn: Turn) -> Any:
        output = [{"type": "text", "text": f"[error] {turn.result}" if turn.failed else turn.result}]
        block = {"type": "tool_result", "id": f"t{i}", "name": turn.tool, "output": output}
        return {"name": "system", "role": "system", "content": [{"type": "text", "text": "A note."}, block]}

    return _rendered(script, lambda text: {"name": "user", "role": "user", "content": text}, assistant, result)


def ai_sdk_4(script: Script) -> list[Any]:
    """UI messages of version 4: parts, and most of it again beside them."""

    def assistant(i: int, turn: Turn) -> Any:
        parts: list[Any] = [{"type": "step-start"}]
        if turn.thought:
            details = [{"type": "text", "text": turn.thought}]
            parts.append({"type": "reasoning", "reasoning": turn.thought, "details": details})
        parts += [{"type": "text", "text": turn.text}] if turn.text else []
        fields: dict[str, Any] = {"content": turn.text, "reasoning": turn.thought}
        if turn.result is not None:
            call = {"state": "result", "toolCallId": f"t{i}", "toolName": turn.tool, "args": {"order": 1}}
            call["result"] = f"[error] {turn.result}" if turn.failed else turn.result
            parts.append({"type": "tool-invocation", "toolInvocation": call})
            fields["toolInvocations"] = [call]
        return {"id": f"m{i}", "role": "assistant", **fields, "parts": parts}

    def user(text: str) -> Any:
        return {"id": "u", "role": "user", "content": text, "parts": [{"type": "text", "text": text}]}

    return list(_rendered(script, user, assistant))


def ai_sdk_without_parts(script: Script) -> list[Any]:
    """As in early versions."""
    return [
        {key: value for key, value in message.items() if key != "parts"} if message["role"] == "assistant" else message
        for message in ai_sdk_4(script)
    ]


def ai_sdk_5(script: Script) -> list[Any]:
    """UI messages since version 5: one message has all steps of the assistant; tools are named or dynamic."""
    messages: list[Any] = []
    for i, turn in enumerate(script):
        if turn.is_user or not messages or messages[-1]["role"] == "user":
            messages.append({"id": f"m{i}", "role": "user" if turn.is_user else "assistant", "parts": []})
        parts = messages[-1]["parts"]
        if not turn.is_user:
            parts.append({"type": "step-start"})
        if turn.thought:
            parts.append({"type": "reasoning", "text": turn.thought, "state": "done"})
        if turn.text:
            parts.append({"type": "text", "text": turn.text, "state": "done"})
        if turn.result is not None:
            ended = {"state": "output-error", "errorText": turn.result}
            fields = ended if turn.failed else {"state": "output-available", "output": turn.result}
            named = {"type": f"tool-{turn.tool}"} if i % 2 else {"type": "dynamic-tool", "toolName": turn.tool}
            parts.append({**named, "toolCallId": f"t{i}", "input": {"order": 1}, **fields})
    return messages


def ai_sdk_model_messages(script: Script) -> list[Any]:
    def assistant(i: int, turn: Turn) -> Any:
        content: list[Any] = [{"type": "text", "text": turn.text}] if turn.text else []
        if turn.thought:
            content.insert(0, {"type": "reasoning", "text": turn.thought, "providerOptions": {"a": {}}})
        if turn.result is not None:
            call = {"type": "tool-call", "toolCallId": f"t{i}", "toolName": turn.tool, "input": {"order": 1}}
            content.append(call)
        return {"role": "assistant", "content": content}

    def result(i: int, turn: Turn) -> Any:
        output = {"type": "error-text" if turn.failed else "text", "value": turn.result}
        part = {"type": "tool-result", "toolCallId": f"t{i}", "toolName": turn.tool, "output": output}
        return {"role": "tool", "content": [part]}

    return _rendered(script, lambda text: {"role": "user", "content": text}, assistant, result)


def claude_code(script: Script) -> list[Any]:
    """One entry for each block of the assistant's messages, and entries about the session."""
    entries: list[Any] = [{"type": "summary", "summary": "A refund", "leafUuid": "u"}]

    def add(type: str, content: Any, **fields: Any) -> None:
        message = {"role": type, "content": content, **fields}
        entries.append({"type": type, "uuid": f"u{len(entries)}", "isSidechain": False, "message": message})

    for i, turn in enumerate(script):
        if turn.is_user:
            add("user", turn.text)
            continue
        if turn.thought:
            add("assistant", [{"type": "thinking", "thinking": turn.thought, "signature": "s"}], id=f"m{i}")
        if turn.text:
            add("assistant", [{"type": "text", "text": turn.text}], id=f"m{i}")
        if turn.result is not None:
            add(
                "assistant", [{"type": "tool_use", "id": f"t{i}", "name": turn.tool, "input": {"order": 1}}], id=f"m{i}"
            )
            block = {"type": "tool_result", "tool_use_id": f"t{i}", "content": turn.result, "is_error": turn.failed}
            add("user", [block])
        entries.append({"type": "file-history-snapshot", "messageId": f"m{i}", "snapshot": {}})
    return entries


def openai(script: Script) -> list[Any]:
    def assistant(i: int, turn: Turn) -> Any:
        calls = [_openai_call(f"t{i}", turn.tool)] if turn.result is not None else None
        return {"role": "assistant", "content": turn.text, "tool_calls": calls, "reasoning_content": turn.thought}

    def result(i: int, turn: Turn) -> Any:
        content = f"[error] {turn.result}" if turn.failed else turn.result
        return {"role": "tool", "tool_call_id": f"t{i}", "content": content}

    return _rendered(script, lambda text: {"role": "user", "content": text}, assistant, result)


def call_log(script: Script) -> Any:
    """A log of the last model call: the request under ``messages``, the reply under ``response``."""
    messages = openai(script)
    if script[-1].is_user or script[-1].result is not None:
        return {"messages": messages, "response": None}
    return {"messages": messages[:-1], "response": {"id": "r", "choices": [{"index": 0, "message": messages[-1]}]}}


def dspy_history(script: Script) -> list[Any]:
    """Entries of ``dspy.LM.history``: each call repeats what was said before."""
    messages = openai(script)
    at = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    entry = {"prompt": None, "kwargs": {}, "usage": {}, "uuid": "x"}
    return [
        {**entry, "messages": messages[:i], "outputs": [{**messages[i], "text": messages[i]["content"]}]} for i in at
    ]


SCRIPTED = {
    "bedrock": bedrock,
    "gemini": gemini,
    "gemini objects": gemini_objects,
    "agentscope": agentscope,
    "ai sdk 4": ai_sdk_4,
    "ai sdk without parts": ai_sdk_without_parts,
    "ai sdk 5": ai_sdk_5,
    "ai sdk model messages": ai_sdk_model_messages,
    "claude code": claude_code,
    "a log of a call": call_log,
    "dspy history": dspy_history,
    "openai from a script": openai,
}

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
    **{name: partial(render, SCRIPT) for name, render in SCRIPTED.items()},
    "a tuple": lambda: tuple(openai_messages()),
}
