"""Keys and addresses of language models, so that they can be taken out of errors that quote them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_NAMES = ("key", "token", "secret", "password", "base", "url", "headers", "endpoint", "credentials")
"""What a setting of an LM is called, in part, that must not be seen. Counts of tokens are no text, and stay."""
_SHORTEST = 4
HIDDEN = "[hidden]"


class Hidden:
    """``hidden(text)`` is ``text`` without the keys and addresses of some language models."""

    def __init__(self, lms: Iterable[Any] = ()) -> None:
        found = {text for lm in lms for text in _texts(getattr(lm, "kwargs", {}))}
        self._texts = sorted((text for text in found if len(text) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for known in self._texts:
            text = text.replace(known, HIDDEN)
        return text


def _texts(settings: Any, *, sensitive: bool = False) -> Iterable[str]:
    """Texts among the settings of an LM that must not be seen; of an address its host as well."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            named = any(part in str(name).lower() for part in _NAMES)
            yield from _texts(value, sensitive=sensitive or named)
    elif isinstance(settings, str) and sensitive:
        yield settings
        host, _, path = settings.partition("://")[2].partition("/")
        yield from (host, host.rpartition("@")[2], path)
