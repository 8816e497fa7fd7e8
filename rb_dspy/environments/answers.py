"""Compare an answer with accepted ones, whatever its case, white space, outer quotes and number format."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’"}

_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
"""A number whose commas group digits, as in ``1,000``. Other commas may belong to a list: ``2,3`` is not a number."""


class AcceptedAnswers:
    """A set of accepted answers: ``text in accepted``.

    Case, white space, quotes or backticks around the text, and one full stop at its end make no difference. Numbers
    are compared by value: ``3`` is ``3.0`` and ``1,000`` is ``1000``. Every other character counts: ``5!`` is not
    ``5``, and ``Paris, France`` is not ``Paris``.
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._keys = {_key(answer) for answer in answers}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, answer: str) -> bool:
        return _key(answer) in self._keys


def unquoted(text: str) -> str:
    """Remove outer white space and all pairs of quotes or backticks around ``text``. Never leaves an empty text."""
    text = text.strip()
    while len(text) > 2 and _QUOTES.get(text[0]) == text[-1] and (inner := text[1:-1].strip()):
        text = inner
    return text


def _key(answer: str) -> str | Decimal:
    """Return a key that is equal for answers that count as the same."""
    text = unquoted(answer)
    if text.endswith(".") and not text.endswith(".."):
        text = unquoted(text.removesuffix(".")) or text
    number = _number(text)
    return " ".join(unicodedata.normalize("NFC", text).casefold().split()) if number is None else number


def _number(text: str) -> Decimal | None:
    plain = text.replace("\N{MINUS SIGN}", "-")
    try:
        number = Decimal(plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
