"""Text as it can be stored and shown."""

from __future__ import annotations

import regex

MAX_TEXT = 10_000_000
"""Longest thought, action or observation that is kept, in characters; the rest is cut and said so."""

# Control, format and surrogate characters, less line ends, tabs, and the joiners of Persian, Indic and emoji text.
_HIDDEN = regex.compile(r"(?V1)[\p{Cc}\p{Cf}\p{Cs}--[\t\n\r\u200c\u200d]]")

_HIDDEN_ASCII = bytes(code for code in range(128) if _HIDDEN.match(chr(code)))

_MARK = 40
"""Room for saying that a text was cut."""


def hidden_characters(text: str) -> list[tuple[int, str]]:
    """Positions and code points of characters that a reader cannot see.

    Control characters, lone surrogates, format characters (zero-width space, byte-order mark, bidirectional overrides,
    tags). Line ends, tabs, joiners and variation selectors are ordinary text and are not reported.
    """
    if text.isprintable():  # as in ``visible``
        return []
    return [(found.start(), f"U+{ord(found[0]):04X}") for found in _HIDDEN.finditer(text)]


def visible(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` as it can be stored and shown: hidden characters replaced by U+FFFD, and cut at ``limit`` characters."""
    if len(text) > limit:
        kept = max(0, limit - _MARK)  # so that what is read again is not cut again
        text = f"{text[:kept]}… [{len(text) - kept} characters cut]"
    if text.isprintable():  # most are, on one line, and this is twenty times as fast
        return text
    if text.isascii():  # several lines, or hidden characters
        plain = text.encode()
        if len(plain.translate(None, _HIDDEN_ASCII)) == len(plain):  # nothing was left out, in a tenth of the time
            return text
    return str(_HIDDEN.sub("\ufffd", text))
