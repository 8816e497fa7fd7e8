"""A language model made from a function: its answer depends only on the prompt, never on time or the order of calls."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dspy
import pydantic_core
from dspy import lm15

from rb_dspy.backbones.call import ROLE
from rb_dspy.text import normalize

_ASKED = re.compile(r"\n\nRespond with (?:the corresponding output fields|a JSON object)[^\n]*\Z")
"""The output instructions that dspy's adapters add at the end of the last message; elsewhere the words are content."""

_ASKS = {
    "judge": {"reasons", "label"},
    "selector": {"analysis", "choice"},
    "checker": {"findings", "decision"},
    "distiller": {"memory_items"},
}
"""The output fields by which a role is told; see ``rb_dspy.signatures``. One call that judges and distills is the
judge's."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one call. ``prompt["name"]`` is the latest value of an input field, over all turns."""

    system: str
    messages: tuple[tuple[str, str], ...]
    """(role, text) of every message after the system's, oldest first."""
    temperature: float | None = None
    seed: int | None = None
    """The rollout's number, from 1 on; None for the first rollout, as for roles that have none."""
    asked_by: str = ""
    """The role of the call, if it is known."""

    @property
    def wants(self) -> tuple[str, ...]:
        """Names of the output fields, in order."""
        listed = self.system.split("Your output fields are:")[-1].split("All interactions will")[0]
        return tuple(re.findall(r"\d+\. `(\w+)`", listed))

    @property
    def role(self) -> str:
        """``judge``, ``selector``, ``checker`` or ``distiller`` (also of several rollouts), by the fields that its
        signature asks for, or because a memory asks; ``agent`` for any other call, such as those of your own agent.
        """
        other = "distiller" if self.asked_by == "distiller" else "agent"
        return next((role for role, fields in _ASKS.items() if fields.issubset(self.wants)), other)

    @property
    def text(self) -> str:
        """All text that the model reads."""
        return "\n".join([self.system, *(text for _, text in self.messages)])

    @property
    def turns(self) -> int:
        """How often the model has already answered in this conversation."""
        return sum(role == "assistant" for role, _ in self.messages)

    def __getitem__(self, name: str) -> str:
        values = self.all(name)
        if not values:
            raise KeyError(name)
        return values[-1]

    def get(self, name: str, default: str = "") -> str:
        """Return ``prompt[name]``, or ``default`` if the prompt has no such field."""
        return next(reversed(self.all(name)), default)

    def __contains__(self, name: str) -> bool:
        return bool(self.all(name))

    def all(self, name: str) -> list[str]:
        """Every value of an input field, oldest first."""
        found: list[str] = []
        for role, text in self.messages:
            if role == "user":
                body = _ASKED.sub("", text)
                parts = re.split(r"^\[\[ ## (\w+) ## \]\]\n", body, flags=re.MULTILINE)
                found += [value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True) if key == name]
        return found


@dataclass(frozen=True)
class Answer:
    """An answer with a provider's metadata: truncated, refused, thought only, or with tool calls."""

    said: Mapping[str, Any] | str = ""
    """Values of the output fields; or the raw text."""
    finish: Literal["stop", "length", "tool_call", "content_filter", "error"] = "stop"
    """The finish reason."""
    usage: tuple[int | None, int | None] | None = None
    """Tokens of the prompt and of the answer, each None if the provider reports none. None: estimated by length."""
    tool_calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """Name and arguments of each tool call."""
    thought: str = ""
    """The reasoning before the answer, if the provider returns it separately."""


Reply = Mapping[str, Any] | str | Answer
"""Values of the output fields; raw text, for answers that cannot be parsed; or an ``Answer``."""

Script = Callable[[Prompt], Reply]
"""May raise: dspy treats an ``lm15`` error as a failure of the provider."""


class ScriptedEngine:
    """A dspy engine that runs a script and stores every prompt in ``prompts``. Thread-safe."""

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __init__(self, script: Script, *, latency: float = 0.0) -> None:
        self.script = script
        self.latency = latency
        self.prompts: list[Prompt] = []
        self._lock = threading.Lock()

    def complete(self, request: lm15.Request) -> lm15.Response:
        if self.latency:
            time.sleep(self.latency)
        prompt = _read(request)
        with self._lock:
            self.prompts.append(prompt)
        reply = self.script(prompt)
        return _response(request, prompt, reply if isinstance(reply, Answer) else Answer(reply))

    def stream(self, request: lm15.Request) -> Any:
        """The answer as events."""
        return lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing to release."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ScriptedEngine:
        return self


class AsyncScriptedEngine:
    """``ScriptedEngine`` for asyncio; shares its script and its prompts."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        return await asyncio.to_thread(self.engine.complete, request)

    async def stream(self, request: lm15.Request) -> Any:
        for event in lm15.response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Nothing to release."""


class ScriptedLM(dspy.LM):
    """A ``dspy.LM`` that passes ``rollout_id`` on as ``Prompt.seed``; dspy does not send it to engines."""

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        return super().__call__(prompt, messages=messages, **_seeded(self, kwargs))

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """``__call__`` for asyncio."""
        return await super().acall(prompt, messages=messages, **_seeded(self, kwargs))


def scripted_lm(script: Script, *, model: str = "scripted/lm", latency: float = 0.0, **kwargs: Any) -> Any:
    """A ``dspy.LM`` that answers with ``script``; ``lm.engine.prompts`` lists the prompts.

    ``script`` takes a ``Prompt`` and returns the output fields by name: ``prompt.wants`` lists them, ``prompt["task"]``
    is an input field, and ``"task" in prompt`` tests for one::

        def script(prompt):
            if "action" in prompt.wants:
                return {"thought": "Easy.", "action": "42"}
            if "label" in prompt.wants:
                return {"reasons": "It says 42.", "label": "success"}
            lesson = {"title": "Say 42", "description": "", "content": "Say it at once."}
            return {"analysis": "So it is.", "memory_items": [lesson]}

    A text is returned as it is; an ``Answer`` also sets finish reason, usage and tool calls.
    ``latency`` is in seconds a call. Not cached and not retried by default.
    """
    engine = ScriptedEngine(script, latency=latency)
    options = {"cache": False, "num_retries": 0, **kwargs}
    return ScriptedLM(model, engine=engine, async_engine=AsyncScriptedEngine(engine), **options)


def _seeded(lm: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    rollout = kwargs.get("rollout_id", lm.kwargs.get("rollout_id"))
    return kwargs if rollout is None or "request" in kwargs else {"seed": rollout, **kwargs}


def _read(request: lm15.Request) -> Prompt:
    system = request.system
    if not isinstance(system, str):
        system = "" if system is None else "".join(getattr(part, "text", "") for part in system)
    messages = tuple((message.role, normalize(message.text or "")) for message in request.messages)
    asked_by = dspy.settings.get(ROLE, "")
    return Prompt(system, messages, request.config.temperature, request.config.seed, asked_by)


def _response(request: lm15.Request, prompt: Prompt, answer: Answer) -> lm15.Response:
    said: object = answer.said
    if not isinstance(said, str | Mapping):
        raise TypeError(
            f"the script returned a {type(said).__name__}; expected the output fields by name, a text, or an Answer"
        )
    text = said if isinstance(said, str) else _render(said, as_json=request.config.response_format is not None)
    parts = [
        *([lm15.ThinkingPart(text=answer.thought)] if answer.thought else []),
        *([lm15.TextPart(text)] if text else []),
        *(lm15.ToolCallPart(f"call_{n}", name, {**given}) for n, (name, given) in enumerate(answer.tool_calls)),
    ]
    asked, told = answer.usage or (len(prompt.text) // 4, len(text) // 4)
    return lm15.Response(
        id=None,
        model=request.model,
        message=lm15.Message.assistant(parts or " "),
        finish_reason=answer.finish,
        usage=lm15.Usage(input_tokens=asked, output_tokens=told),
    )


def _render(reply: Mapping[str, Any], *, as_json: bool) -> str:
    plain = pydantic_core.to_jsonable_python(dict(reply))
    if as_json:
        return json.dumps(plain)
    fields = [
        f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}" for name, value in plain.items()
    ]
    return "\n\n".join([*fields, "[[ ## completed ## ]]"])
