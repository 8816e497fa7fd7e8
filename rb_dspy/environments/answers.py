"""Compare an answer with accepted ones, whatever its case, white space, outer quotes and number format."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

from rb_dspy.schema import Outcome

_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’"}

_WHOLE = r"(0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)"
_NUMBER = re.compile(rf"[+-]?({_WHOLE}(e[+-]\d{{1,3}})?|{_WHOLE}?\.\d+(e[+-]?\d{{1,3}})?)", re.IGNORECASE)
"""A text that can only be a number. ``007``, ``12E3`` and ``1_2`` may be codes, and ``2,3`` a list."""


class AcceptedAnswers:
    """A set of accepted answers: ``text in accepted``.

    Case, white space, quotes or backticks around the text, and one full stop at its end make no difference. Numbers
    are compared by value: ``3`` is ``3.0`` and ``1,000`` is ``1000``. Every other character counts: ``5!`` is not
    ``5``, ``Paris, France`` is not ``Paris``, and a code such as ``007`` or ``12E3`` is not a number.
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._keys = {_key(answer) for answer in answers}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, answer: str) -> bool:
        return _key(answer) in self._keys

    def outcome(self, answer: str) -> Outcome:
        success = answer in self
        return Outcome(reward=float(success), success=success)


def unquoted(text: str) -> str:
    """Remove outer white space and all pairs of quotes or backticks around ``text``. Never leaves an empty text."""
    start, end = _stripped(text, 0, len(text))
    while end - start > 2 and _QUOTES.get(text[start]) == text[end - 1]:
        inner = _stripped(text, start + 1, end - 1)
        if inner[0] == inner[1]:
            break
        start, end = inner
    return text[start:end]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """``strip`` without a copy: the places of the first character that is no white space and after the last one."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _key(answer: str) -> str | Decimal:
    """Return a key that is equal for answers that count as the same."""
    text = unquoted(answer)
    if text.endswith(".") and not text.endswith(".."):
        text = unquoted(text.removesuffix(".")) or text
    number = _number(text)
    return " ".join(unicodedata.normalize("NFC", text).casefold().split()) if number is None else number


def _number(text: str) -> Decimal | None:
    plain = "".join(str(unicodedata.decimal(each, each)) for each in text).replace("\N{MINUS SIGN}", "-")
    return Decimal(plain.replace(",", "")) if _NUMBER.fullmatch(plain) else None
