"""Addresses without passwords: what is printed may be kept in logs."""

from __future__ import annotations

import re
import shlex

_USER = re.compile(r"(?<=://)(?!/)\S*@")  # to the last @: a password may hold a slash
_SECRET = re.compile(
    r"(?i)([?&;#][^=&?#;\s]*(?:pass|pwd|token|secret|credential|auth|signature|\bsig\b|key)[^=&?#;\s]*=)[^&\s]*"
)


def without_secrets(text: str, hidden: str = "…") -> str:
    """``text`` with user and password of every address in it hidden, and query values that may be secrets."""
    return _SECRET.sub(lambda match: match[1] + hidden, _USER.sub(f"{hidden}@", text))


def registry_options(uri: str) -> str:
    """The options with which ``rb-dspy programs ...`` finds the registry at ``uri``, without its password."""
    setting = f"tracking.uri={without_secrets(uri, '...')}"
    return f" --set {shlex.quote(setting)}"
