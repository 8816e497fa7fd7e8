"""What came of a call, where it was no answer: a refusal, a tool call, thinking only, or nothing at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dspy import lm15

_MOST = 120
"""Characters of a model's own words, in a message."""


@dataclass(frozen=True)
class Came:
    """What a server sent; ``finish`` is its reason to end, in dspy's words or in its own."""

    text: str = ""
    finish: str = ""
    refusal: str = ""
    tools: tuple[str, ...] = ()
    thought: bool = False
    any: bool = True
    """Whether there was anything that could have been an answer."""


def last_of(lm: Any) -> Came | None:
    """What came of the last call in an LM's history; None where there is none, or none that can be read."""
    entry = lm.history[-1] if lm.history else None
    response = entry["response"] if isinstance(entry, dict) else None
    if isinstance(response, list | tuple):  # of several candidates
        response = response[0] if response else None
    if isinstance(response, lm15.Response):
        return _native(response)
    dump = getattr(response, "model_dump", None)
    return _chat(dump()) if callable(dump) else None


def told(came: Came, cap: int | None) -> str:
    """One line: why it is no answer, and what to do. ``cap``: of tokens, as it was asked for."""
    if came.refusal:
        return f"it refused to answer: {' '.join(came.refusal.split())[:_MOST]}"
    if came.finish == "content_filter":
        return "the provider's content filter kept the answer back (finish reason content_filter)"
    if came.finish == "length":
        went = "went into thinking" if came.thought and not came.text.strip() else "did not hold the answer"
        tokens = "the tokens it may use" if cap is None else f"{cap:,} tokens"
        return f"{tokens} {went} (finish reason length): raise the role's max_tokens"
    if came.text.strip():
        return ""
    if came.tools:
        return f"it called a tool ({', '.join(came.tools)[:_MOST]}) that nobody gave it, instead of answering"
    if not came.any:
        return (
            "the server sent nothing that could be an answer (no choices): check that api_base is the address of a"
            " model's API, to the letter, and sends nobody elsewhere"
        )
    only = "thinking only" if came.thought else "an answer without text"
    return f"it gave {only} (finish reason {came.finish or 'unknown'})"


def _native(response: lm15.Response) -> Came:
    parts = response.message.parts
    texts = [part.text for part in parts if isinstance(part, lm15.TextPart)]
    thought = any(isinstance(part, lm15.ThinkingPart) for part in parts)
    tools = tuple(part.name for part in parts if isinstance(part, lm15.ToolCallPart))
    refusal = " ".join(part.text for part in parts if isinstance(part, lm15.RefusalPart))
    sent = response.provider_data or {}
    silent = not (tools or refusal or thought or any(texts))
    lacks = silent and not any(sent.get(name) for name in ("choices", "content", "output", "candidates", "timings"))
    return Came("".join(texts), response.finish_reason, refusal, tools, thought, any=not lacks)


def _chat(sent: dict[str, Any]) -> Came:
    """Of a response of litellm's."""
    choices = sent.get("choices") or []
    if not choices:
        return Came(any=False)
    message = choices[0].get("message") or {}
    calls = message.get("tool_calls") or []
    return Came(
        text=str(message.get("content") or choices[0].get("text") or ""),
        finish=str(choices[0].get("finish_reason") or ""),
        refusal=str((message.get("provider_specific_fields") or {}).get("refusal") or message.get("refusal") or ""),
        tools=tuple(str((call.get("function") or {}).get("name")) for call in calls),
        thought=bool(message.get("reasoning_content")),
    )
