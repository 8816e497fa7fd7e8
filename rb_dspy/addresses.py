"""Addresses as they may be printed: what is printed may be kept in logs."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(?P<name>[?&;#][^=&?#]*(?:pass|pwd|token|key|secret|credential|auth(?!or)|signature|\bsig\b)[^=&?#]*=)(?P<value>[^&]*)",
    re.IGNORECASE,
)
"""What stands behind a path for the one who is meant; drivers and servers take passwords there as well."""

_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://\S*")


def without_secrets(address: str, hidden: str = "…") -> str:
    """``address`` without who enters, and with what: before its host or in its query. Other texts stay.

    Where nobody can tell where a secret ends, what is not one is hidden as well.
    """
    scheme, sign, rest = address.partition("://")
    if sign and not rest.startswith("/"):  # else it has no host, and an @ is part of a path
        if any("@" in found["value"] for found in _SECRET.finditer(rest)):
            return f"{scheme}{sign}{hidden}"  # it may end before a host, or be all of a password
        before, at, host = rest.rpartition("@")
        rest = f"{hidden}@{host}" if at else before + host
    return _SECRET.sub(rf"\g<name>{hidden}", f"{scheme}{sign}{rest}")


def without_secrets_in(text: str) -> str:
    """``text`` with ``without_secrets`` of every address in it."""
    return _ADDRESS.sub(lambda found: without_secrets(found[0]), text)
