"""Chat messages of other agents, in the formats that agents keep them in, as steps.

Read: OpenAI chat (``tool_calls``, the older ``function_call``), OpenAI responses (``function_call`` and its output as
items), Anthropic (``tool_use`` and ``tool_result`` parts), LangChain (``type`` for ``role``, flat tool calls; with all
but the type in ``data``, as ``messages_to_dict`` gives it, too). What is not understood is refused by name, never
dropped: a lost tool result would change what the judge sees. A tool's result may be anything, so what is not understood
in there stands as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rb_dspy.errors import InvalidTrajectory
from rb_dspy.schema import Step
from rb_dspy.steps.contents import SHOWN, TEXT, THOUGHT, as_json, flat, get, seen, words

_CHUNKS = {"HumanMessageChunk": "user", "AIMessageChunk": "assistant", "SystemMessageChunk": "system"}
"""What LangChain calls messages that were streamed and put together."""
_ROLES = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system", **_CHUNKS}
_WITH_DATA = ("human", "ai", "system", "tool", "function", "chat", *_CHUNKS)
_CALL = ("tool_use", "server_tool_use", "function_call", "custom_tool_call")
_RESULT = ("tool_result", "function_call_output", "custom_tool_call_output")


@dataclass
class Conversation:
    """What was read: the steps, what the agent was given first, and what it said last."""

    steps: list[Step] = field(default_factory=list)
    opening: str = ""
    answer: str | None = None


def is_message(element: Mapping[str, Any]) -> bool:
    """Whether ``element`` is a chat message, or an item of a responses log."""
    element = _opened(element)
    return (
        "role" in element
        or element.get("type") in (*_ROLES, "user", "assistant", "system", "tool", "message")
        or (element.get("type") in (*_CALL, *_RESULT, *THOUGHT))
    )


def read(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """The conversation in ``messages``. Raises ``InvalidTrajectory``, naming the message.

    An assistant's text is the thought of the tool calls that follow it; text without calls is an action of its own,
    answered by the user's next message. The last such text is the answer. What the user says before the assistant's
    first turn is the opening; system messages are left out.
    """
    reader = _Reader()
    for i, message in enumerate(messages):
        reader.message(message, i)
    return reader.done()


@dataclass(frozen=True, eq=False)
class _Pending:
    """A call that has no result yet."""

    id: str
    name: str
    turn: int
    step: dict[str, str]


class _Reader:
    def __init__(self) -> None:
        self.steps: list[dict[str, str]] = []
        self.opening: list[str] = []
        self.answer: str | None = None
        self.said: list[str] = []
        """What the assistant said and has not acted upon yet."""
        self.pending: list[_Pending] = []
        """Calls without a result, in the order in which they were made. Some have no id, and some share one."""
        self.turn = 0
        """How often it was the assistant's turn to call."""

    def message(self, message: Mapping[str, Any], i: int) -> None:
        message = _opened(message)
        role = str(message.get("role") or message.get("type") or "")
        role = _ROLES.get(role, role)
        if "role" not in message and role in (*_CALL, *_RESULT, *THOUGHT):
            speaker = "user" if role in _RESULT else "assistant"
            self.part(message, speaker, i)
        elif role in ("assistant", "message"):
            self.flush()
            self.turn += 1
            if message.get("reasoning_content"):
                self.said.append(flat(message["reasoning_content"], i))
            before = len(self.steps)
            self.parts(message.get("content"), "assistant", i)
            if message.get("refusal"):
                self.text(flat(message["refusal"], i), "assistant")
            if message.get("audio"):
                self.text(flat(get(message["audio"], "transcript"), i) or "[audio]", "assistant")
            # LangChain repeats calls that stand in the content, as Anthropic has them, in `tool_calls`.
            repeated = {call.id: call.step for call in self.pending if any(call.step is s for s in self.steps[before:])}
            for call in message.get("tool_calls") or ():
                if str(get(call, "id")) not in repeated:
                    self.call(call, i)
            for call in message.get("invalid_tool_calls") or ():
                id = str(get(call, "id"))
                step = repeated[id] if id in repeated else self.call(call, i)
                step["observation"] = _marked(str(get(call, "error") or "the call could not be read"), True)
            if message.get("function_call"):
                self.call(message["function_call"], i)
        elif role == "tool":
            self.flush()
            result = flat(message.get("content"), i)
            failed = message.get("status") == "error" or message.get("is_error")
            self.result(message.get("tool_call_id") or message.get("call_id"), message, _marked(result, failed), i)
        elif role == "user":
            self.flush()
            self.parts(message.get("content"), "user", i)
        elif role != "system":
            raise InvalidTrajectory(f"message {i}: unknown role {role!r}; expected user, assistant, tool or system")

    def parts(self, content: Any, speaker: str, i: int) -> None:
        if content is None:
            return
        if isinstance(content, str):
            self.text(content, speaker)
        elif isinstance(content, Sequence):
            for part in content:
                if isinstance(part, str):
                    self.text(part, speaker)
                else:
                    self.part(part, speaker, i)
        else:
            raise InvalidTrajectory(f"message {i}: content is a {type(content).__name__}; expected text or parts")

    def part(self, part: Any, speaker: str, i: int) -> None:
        kind = str(get(part, "type"))
        if kind in TEXT:
            self.text(words(part, i), speaker)
        elif kind in THOUGHT:
            self.text(words(part, i), "assistant")
        elif kind in _CALL:
            self.call(part, i)
        elif kind in _RESULT:
            self.flush()
            content = get(part, "content") if get(part, "content") is not None else get(part, "output")
            result = _marked(flat(content, i), get(part, "is_error"))
            self.result(get(part, "tool_use_id") or get(part, "call_id"), part, result, i)
        elif kind in SHOWN:
            self.text(seen(part, i), speaker)
        elif kind != "redacted_thinking":
            raise InvalidTrajectory(
                f"message {i}: a part of type {kind!r} is not understood; leave it out or make it text"
            )

    def text(self, text: str, speaker: str) -> None:
        if not text:
            return
        if speaker == "assistant":
            self.said.append(text)
        elif self.steps:
            last = self.steps[-1]
            last["observation"] = "\n".join(filter(None, [last["observation"], text]))
        else:
            self.opening.append(text)

    def call(self, call: Any, i: int) -> dict[str, str]:
        name, action = _action(call, i)
        step = {"thought": "\n".join(self.said), "action": action, "observation": ""}
        self.said = []
        self.answer = None
        self.steps.append(step)
        id = str(get(call, "call_id") or get(call, "id") or f"{i}.{len(self.steps)}")
        self.pending.append(_Pending(id, name, self.turn, step))
        return step

    def result(self, id: Any, result: Any, text: str, i: int) -> None:
        call = self.called(id, str(get(result, "name") or get(result, "tool_name") or ""))
        if call is None:
            raise InvalidTrajectory(f"message {i}: a tool's result without a tool call before it, id {id!r}")
        self.pending.remove(call)
        self.turn += 1
        call.step["observation"] = "\n".join(filter(None, [call.step["observation"], text]))

    def called(self, id: Any, name: str) -> _Pending | None:
        """The call that a result is of. Calls that share an id are told apart by their names, else by their order, and
        so are those of older formats, which carry no id.
        """
        of_id = self.pending if id is None else [call for call in self.pending if call.id == str(id)]
        named = [call for call in of_id if call.name == name]
        if id is None and not named:
            return of_id[0] if of_id else None
        # An id that comes again, or a name, is of the last turn that called so: an earlier one was given up.
        found = named or of_id
        return next((call for call in found if call.turn == found[-1].turn), None)

    def flush(self) -> None:
        """What the assistant said without calling a tool is an action of its own."""
        if self.said:
            self.answer = "\n".join(self.said)
            self.steps.append({"thought": "", "action": self.answer, "observation": ""})
            self.said = []

    def done(self) -> Conversation:
        self.flush()
        if not self.steps:
            raise InvalidTrajectory("the messages hold nothing that the assistant said or did")
        return Conversation([Step(**step) for step in self.steps], "\n".join(self.opening), self.answer)


def _opened(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """``message`` without the ``data`` that LangChain's own dicts have around all but its type."""
    data = message.get("data")
    if "role" in message or "content" in message or not isinstance(data, Mapping):
        return message
    return {**data, "type": message["type"]} if message.get("type") in _WITH_DATA else message


def _action(call: Any, i: int) -> tuple[str, str]:
    """The name, and ``name(arguments)``, of a tool call, nested as in chat APIs or flat."""
    inner = get(call, "function") or get(call, "custom") or call
    name = get(inner, "name")
    if not name:
        raise InvalidTrajectory(f"message {i}: a tool call without a name")
    given = next((get(inner, key) for key in ("arguments", "args", "input") if get(inner, key) is not None), "")
    text = given if isinstance(given, str) else as_json(given)
    return str(name), f"{name}({text})"


def _marked(result: str, failed: Any) -> str:
    return f"[error] {result}" if failed else result
