"""Addresses as they may be printed: what is printed may be kept in logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import ascii_letters, digits
from urllib.parse import unquote

_NAME = re.compile(r"[?&;#]([^=&?#;]*)=")
"""What stands behind a path for the one who is meant; drivers and servers take passwords there as well."""

_SECRET = re.compile(
    r"pass|pwd|token|credential|secret|auth(?!or)|signature|\bsig\b|(?<!mon)key(?!board)|odbc_connect", re.IGNORECASE
)
"""Names of secrets. (What is given to ODBC is another list of such pairs.)"""

_WORD = re.compile(r"\S+")
_OF_SCHEME = f"{ascii_letters}{digits}+.-_"
_CLOSING = "\"'`)]}>,.:;"
"""What may stand behind an address in a text."""


def without_secrets(address: str, hidden: str = "…") -> str:
    """``address`` without who enters, and with what: before its host or in its query. Other texts stay.

    Where nobody can tell where a secret ends, what is not one is hidden as well.
    """
    scheme, sign, rest = address.partition("://")
    if not sign:
        forgotten = re.match(r"([A-Za-z][\w+.-]+:)/?[^/@\s]+@", address)  # the slashes were
        if forgotten:
            return f"{forgotten[1]}{hidden}@{address.rpartition('@')[2]}"
        behind = min((at for at in map(address.find, "?#") if at >= 0), default=len(address))
        return address[:behind] + _pairs(address[behind:], hidden)
    if not rest.startswith("/"):  # else it has no host, and an @ is part of a path
        if any("@" in rest[first:last] for first, last in _secrets(rest)):
            return f"{scheme}{sign}{hidden}"  # it may end before a host, or be all of a password
        before, at, host = rest.rpartition("@")
        rest = f"{hidden}@{host}" if at else before + host
    return f"{scheme}{sign}{_pairs(rest, hidden)}"


def without_secrets_in(text: str) -> str:
    """``text`` with ``without_secrets`` of every address in it; a secret with a space in it is not found."""
    return _WORD.sub(lambda word: _word_without_secrets(word[0]), text)


def _word_without_secrets(word: str) -> str:
    scheme, sign, _ = word.partition("://")
    if sign:
        first = len(scheme.rstrip(_OF_SCHEME))
    else:  # of some addresses, what stands behind the host
        first = min((at for at in map(word.find, "/?") if at >= 0), default=len(word))
    address = word[first:].rstrip(_CLOSING)
    return f"{word[:first]}{without_secrets(address)}{word[first + len(address) :]}"


def _pairs(text: str, hidden: str) -> str:
    parts, at = [], 0
    for first, last in _secrets(text):
        parts += [text[at:first], hidden]
        at = last
    return "".join([*parts, text[at:]])


def _secrets(text: str) -> Iterator[tuple[int, int]]:
    """Where secrets begin and end."""
    last = 0
    for found in _NAME.finditer(text):
        if found.start() >= last and _SECRET.search(unquote(found[1])):
            end = text.find("&", found.end())
            last = len(text) if end < 0 else end
            yield found.end(), last
