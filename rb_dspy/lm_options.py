"""What a configuration may hand to ``dspy.LM`` besides what has a key of its own: nothing that is a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_OWN = {
    "model": "model",
    "api_base": "api_base",
    "base_url": "api_base",
    "api_key": "api_key_env",
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "timeout": "timeout",
    "cache": "cache",
}
"""Settings of a language model -> the key of a backbone that they have."""

_NOT_HERE = frozenset(
    {"async_engine", "callbacks", "finetuning_model", "launch_kwargs", "messages", "n", "num_retries", "prompt"}
    | {"prompt_cache", "provider", "request", "rollout_id", "stream", "train_kwargs"}
)
"""What is Python's, or the business of who asks."""

_KINDS = ("chat", "text", "responses")

_SECRET_NAME = re.compile(
    r"(?:api|access|private|signing)[_-]?key|(?<!cache)(?:^|[_-])key$|secret|passw|authorization|credential|cookie"
    r"|bearer|(?:^|[_-])auth(?:$|[_-])|(?:^|[_-])token(?:$|_provider)|(?:^|[_-])(?:sig|signature|jwt)$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where the next word of a name in camel case begins."""
_SECRET_VALUE = re.compile(
    r"(?:Bearer|Basic)\s+\S+|(?:sk|pk|rk|gsk|hf|xai|r8|gh[pousr])[-_][\w-]{16,}|AIza[\w-]{16,}|eyJ[\w.-]{16,}"
    r"|[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]*@\S*",
    re.IGNORECASE,
)


def wrong_with(options: Mapping[str, Any]) -> str:
    """Why ``options`` are refused; empty where they can be used. No value is in it, since it may be a secret."""
    for name in options:
        if name in _OWN:
            return f"{name!r} belongs in the key {_OWN[name]} of the backbone"
        if name in _NOT_HERE:
            return f"{name!r} cannot be set here; expected what a request takes, as top_p, seed or extra_body"
    if options.get("model_type", "chat") not in _KINDS:
        return f"model_type: expected one of {', '.join(_KINDS)}"
    for place, value in _each("", options):
        names = _CAMEL.sub("_", place).split(".")
        if any(map(_SECRET_NAME.search, names)) or (isinstance(value, str) and _is_secret(value)):
            return (
                f"{place!r} looks like a secret; keys come from the environment only: name the variable in api_key_env"
            )
        if not isinstance(value, str | int | float | bool | Mapping | list | tuple | None):
            return f"{place!r} is a {type(value).__name__}; expected texts, numbers, true or false, lists and tables"
    return ""


def _is_secret(value: str) -> bool:
    return _SECRET_VALUE.fullmatch(value.strip()) is not None


def _each(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value, tables and lists included, and where it stands."""
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    for name, each in inner:
        where = f"{place}.{name}" if place else str(name)
        yield where, each
        yield from _each(where, each)
