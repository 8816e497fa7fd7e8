"""Errors are kept in the bank and shown to people: no key may stand in them."""

from __future__ import annotations

import os
import re

_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHORTEST = 6
"""Values of fewer characters are ordinary words: replacing them would spoil the text and hide nothing."""

_SECRETS = re.compile(r"\bsk-[\w-]{8,}|(?i:\bbearer\s+)[\w.~+/=-]{6,}")


def redact(text: str) -> str:
    """``text`` with ``[redacted]`` for what may be a key: values of environment variables that are named as such, and
    what looks like an API key or a bearer token.
    """
    values = {value for name, value in os.environ.items() if any(word in name.upper() for word in _NAMES)}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, "[redacted]")
    return _SECRETS.sub("[redacted]", text)
