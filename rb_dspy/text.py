"""Normalize, print and count text. No text is rejected because of its characters."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable

import pydantic

from rb_dspy.redaction import redact

MAX_TEXT = 10_000_000
"""Longest thought, action or observation that is stored, in characters; the rest is cut, and the text says so."""

_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"} | {0x7F: "\u2421"}
"""Control characters -> their visible symbols: NUL becomes U+2400."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_EXECUTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Terminals act on these: controls except tab and line feed, line separators, directional overrides and isolates."""
_INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)
_CJK = re.compile(
    r"[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff]"
)


def normalize(text: str, limit: int = MAX_TEXT) -> str:
    """Normalize ``text`` for storage: valid Unicode without control characters, at most ``limit`` characters.

    Control characters except tabs and line ends become their visible symbols (NUL: U+2400), a lone surrogate becomes
    U+FFFD, and everything else stays: soft hyphens, joiners, zero-width spaces, byte-order and directional marks.
    """
    if len(text) > limit:
        head = max(0, limit - 40)  # room for the remark, so that stored text is not cut again when it is read
        text = f"{text[:head]}… [{len(text) - head} characters cut]"
    if text.isprintable():  # true for most single lines, and much faster
        return text
    if not text.isascii() and _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # joins surrogate pairs
    return text.translate(_CONTROLS) if _CONTROL.search(text) else text


def printable(text: str) -> str:
    """Escape the characters of ``text`` that a terminal would act on, such as ``\\x1b``."""
    return _EXECUTED.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def html_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table for a notebook. Everything in it is escaped."""

    def cells(tag: str, each: Iterable[object]) -> str:
        style = ' style="text-align: left"'
        return "".join(f"<{tag}{style}>{html.escape(printable(str(cell)))}</{tag}>" for cell in each)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', columns)}</tr></thead>" if body else ""
    return f"<p><b>{html.escape(printable(title))}</b></p><table>{head}<tbody>{body}</tbody></table>"


def invisible(text: str) -> str:
    """The first character of ``text`` that a reader of a name cannot see, as ``U+200B``; empty if there is none."""
    match = None if text.isprintable() else _INVISIBLE.search(text)
    return "" if match is None else f"U+{ord(match[0]):04X}"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of ``text``: 3.5 characters per token; one per Chinese, Japanese or Korean character."""
    cjk = 0 if text.isascii() else len(_CJK.findall(text))
    return math.ceil(cjk + (len(text) - cjk) / 3.5)


def counted(number: int, singular: str, plural: str = "") -> str:
    """Format a count: ``1 lesson``, ``2,000 lessons``. Pass ``plural`` if it is not ``singular`` with an s."""
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def summary_line(exc: BaseException, limit: int | None = None) -> str:
    """The message of ``exc`` in one line without keys, cut at ``limit`` characters; its type if it has no message."""
    message = redact(" ".join(str(exc).split()))
    if limit is not None and len(message) > limit:
        message = f"{message[:limit]}…"
    return message or type(exc).__name__


def first_error(exc: pydantic.ValidationError) -> tuple[str, str]:
    """Return the location of the first error (``a.0.b``), and its message with a lower-case first letter."""
    error = exc.errors(include_url=False, include_context=False)[0]
    message = error["msg"].removeprefix("Value error, ")
    return ".".join(map(str, error["loc"])), message[:1].lower() + message[1:]
