"""Keys and addresses of language models, so that they can be taken out of errors that quote them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from rb_dspy.config import BackboneConfig

_NAMES = ("key", "token", "secret", "password", "base", "url", "headers", "endpoint", "credentials")
"""What a setting of an LM is called, in part, that must not be seen. Counts of tokens are no text, and stay."""
_SHORTEST = 4
HIDDEN = "[hidden]"

# What looks like a key or an address is hidden too: an error may come from a language model that nobody told of.
_LIKE_SECRETS = re.compile(
    r"""
      \b[a-z][a-z0-9+.-]*://[^\s'"<>(){},;]+            # an address with its scheme
    | (?P<before>\bBearer\s+|\bapi[ _-]?key(?:\ provided)?\s*[:=]\s*|\bhost=|\b(?:to|at|host)\s+(?=[\w-]+:\d\d))
      (?:'[^']*'|"[^"]*"|[^\s'",;)]+)                   # what follows such words
    | \b(?:sk|pk|rk|gsk|hf|xai|r8)[-_][\w*-]{8,}        # keys as the usual providers make them
    | \[(?=[^\]]*:[^\]]*:)[0-9a-f:.]+\](?::\d{1,5})?    # IPv6
    | \b(?:\d{1,3}\.){3}\d{1,3}\b(?::\d{1,5}\b)?        # IPv4
    | \blocalhost\b(?::\d{1,5}\b)?
    | \b[a-z][\w-]*(?:\.[\w-]+)*\.(?!(?:py|jsonl?|toml|txt|csv|db|sqlite|ya?ml|md|log):)[a-z][\w-]*:\d{2,5}\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


class Hidden:
    """``hidden(text)`` is ``text`` without the keys and addresses of some language models, nor what looks like one."""

    def __init__(self, lms: Iterable[Any] = ()) -> None:
        found = {text for lm in lms for text in _texts(_settings(lm))}
        self._texts = sorted((text for text in found if len(text) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for known in self._texts:
            text = text.replace(known, HIDDEN)
        return _LIKE_SECRETS.sub(lambda found: f"{found['before'] or ''}{HIDDEN}", text)


def _settings(lm: Any) -> Any:
    """How an LM, or the configuration of one, is set up."""
    if isinstance(lm, BackboneConfig):
        return {**lm.options, "api_base": lm.api_base, "api_key": os.environ.get(lm.api_key_env or "")}
    return getattr(lm, "kwargs", {})


def _texts(settings: Any, *, sensitive: bool = False) -> Iterable[str]:
    """Texts among the settings of an LM that must not be seen; of an address its host as well."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            named = any(part in str(name).lower() for part in _NAMES)
            yield from _texts(value, sensitive=sensitive or named)
    elif isinstance(settings, str) and sensitive:
        yield settings
        host, _, path = settings.partition("://")[2].partition("/")
        host = host.rpartition("@")[2]
        yield from (host, path)
        if "." in (name := host.partition(":")[0]):  # else it may be a word, as the name of a model's provider is
            yield name
