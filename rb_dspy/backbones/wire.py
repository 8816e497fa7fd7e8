"""dspy's requests as llama.cpp takes them, and its answers as dspy takes them."""

from __future__ import annotations

from typing import Any

from dspy import lm15
from dspy.clients.engines.base import validate_request

from rb_dspy.backbones.runtime import Answer

_ROLES = {"user": "user", "assistant": "assistant", "developer": "system"}
_EXTENSIONS = frozenset({"grammar", "metadata", "logit_bias"})


def body_of(request: lm15.Request, *, default_seed: int, candidate: int) -> dict[str, Any]:
    """The JSON body for a request; what cannot be carried is refused, never dropped.

    A GBNF grammar is taken from ``Config.extensions["grammar"]``, or from ``extensions["metadata"]["grammar"]``: dspy
    3.4 lets an adapter's ``metadata=`` through to an engine, and no other name of ours. ``candidate`` counts the
    samples of one request and is added to the seed. No temperature means 0. Sampling settings are spelled out,
    so that another version of the library does not sample differently.

    Raises ``lm15.UnsupportedFeatureError`` or ``lm15.InvalidRequestError``.
    """
    try:
        validate_request(request)
    except (TypeError, ValueError) as error:
        raise lm15.InvalidRequestError(str(error), provider="local") from error
    config = request.config
    if request.tools or config.tool_choice is not None:
        raise _unsupported("tools")
    if config.reasoning is not None:
        raise _unsupported("config.reasoning")
    body: dict[str, Any] = {
        "messages": _messages(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": config.temperature or 0.0,
        "top_p": 0.95 if config.top_p is None else config.top_p,
        "top_k": config.top_k or 40,
        "min_p": 0.05,
        "seed": (default_seed if config.seed is None else config.seed) + candidate,
    }
    if config.max_tokens is not None:
        body["max_tokens"] = config.max_tokens
    if config.stop:
        body["stop"] = list(config.stop)
    if config.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": max(1, config.logprobs)}  # none at all for 0
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(config, name) is not None:
            body[name] = getattr(config, name)
    return body | _format(config)


def _format(config: lm15.Config) -> dict[str, Any]:
    extensions = config.extensions or {}
    unknown = set(extensions) - _EXTENSIONS
    if unknown:
        raise _unsupported(f"config.extensions.{min(unknown)}")
    metadata = extensions.get("metadata") or {}
    grammar = extensions.get("grammar") or (metadata.get("grammar") if isinstance(metadata, dict) else None)
    body = {"logit_bias": extensions["logit_bias"]} if "logit_bias" in extensions else {}
    wanted = config.response_format
    if grammar is not None:
        if not isinstance(grammar, str) or wanted is not None:
            raise lm15.InvalidRequestError(
                "a grammar is GBNF text, and excludes response_format; give one of them", provider="local"
            )
        return body | {"grammar": grammar}
    if wanted is None:
        return body
    if wanted["type"] == "json_schema":
        return body | {"response_format": {"type": "json_schema", "json_schema": {"schema": wanted["schema"]}}}
    return body | {"response_format": {"type": "json_object"}}


def _messages(request: lm15.Request) -> list[dict[str, str]]:
    messages = []
    if request.system is not None:
        parts = (lm15.TextPart(request.system),) if isinstance(request.system, str) else request.system
        messages.append({"role": "system", "content": _text(parts, "system")})
    for index, message in enumerate(request.messages):
        where = f"messages[{index}]"
        if message.role not in _ROLES:
            raise _unsupported(where)
        messages.append({"role": _ROLES[message.role], "content": _text(message.parts, where)})
    return messages


def _text(parts: tuple[Any, ...], where: str) -> str:
    for index, part in enumerate(parts):
        if not isinstance(part, lm15.TextPart):
            raise _unsupported(f"{where}.parts[{index}]")
    return "".join(part.text for part in parts)


def _unsupported(feature: str) -> lm15.UnsupportedFeatureError:
    return lm15.UnsupportedFeatureError(
        f"the embedded engine takes text messages only; it cannot carry {feature}", provider="local", feature=feature
    )


def response_of(request: lm15.Request, answer: Answer) -> lm15.Response:
    """dspy's response; ``provider_data["timings"]`` holds llama.cpp's own counts and speeds."""
    details = answer.usage.get("prompt_tokens_details") or {}
    return lm15.Response(
        id=None,
        model=request.model,
        message=lm15.Message.assistant(answer.text),
        finish_reason="length" if answer.finish == "length" else "stop",
        usage=lm15.Usage(
            input_tokens=answer.usage.get("prompt_tokens"),
            output_tokens=answer.usage.get("completion_tokens"),
            cache_read_tokens=details.get("cached_tokens"),
        ),
        logprobs=tuple(_logprob(entry, request.config.logprobs or 0) for entry in answer.logprobs) or None,
        provider_data={"timings": answer.timings},
    )


def _logprob(entry: dict[str, Any], count: int) -> lm15.TokenLogprob:
    others = entry["top_logprobs"][:count]
    top = tuple(lm15.TopLogprob(token=other["token"], logprob=other["logprob"]) for other in others)
    return lm15.TokenLogprob(token=entry["token"], logprob=entry["logprob"], top=top)
