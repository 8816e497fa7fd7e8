"""Whether an answer is the right one, whatever a sentence, a quotation, Markdown or LaTeX puts around it.

What is right is looked for as it is written: marks of its own, as in ``~p``, ``5!``, ``/etc`` or ``*.txt``, are part of
it, and an answer without them is another.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import groupby

from rb_dspy.environments.single_turn import unwrapped

_COMBINING = 30
"""Combining marks in a row that a text has at most (Unicode's Stream-Safe Text Format, UAX 15)."""

_MOST = 200
"""Characters that may stand around what is right; also what keeps the search short."""

_LAYERS = 6
"""Quotation, emphasis and the like around one another that are taken off what is right."""

_GROUPED = re.compile(r"[+-]?(?!0)\d{1,3}(,\d{3})+(\.\d+)?")
"""A number whose commas group thousands, as in ``1,000``; ``0,500`` is half of one to who writes it."""

_NUMBER = re.compile(r"[-+\u2212]?[.\d][\w.,+-]*")
"""Where a number may stand in an answer."""

_QUOTES = "\"'`“”‘’"
_LATEX = r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\{"

_BEFORE = re.compile(rf"[\s{_QUOTES}….,;:]|(?<!.)\*\s|=\s|(?P<paired>{_LATEX}|\\[(\[]|[*_$])")
"""A mark before an answer: a quotation's, one that ends what was said before, a bullet, ``=``; or one of a pair."""

_AFTER = re.compile(rf"[\s{_QUOTES}….,;:!?]|(?P<paired>\\[)\]]|[}}*_$])")
"""A mark after an answer: a quotation's or a sentence's; or one of a pair."""

_AROUND = re.compile(
    rf"""\*\*(?P<bold>(?:[^\s*/.]|\.(?=\d))(?:.*[^\s*/.])?)\*\* | (?P<quote>["'`])(?P<quoted>.+)(?P=quote)
    | [“‘](?P<curly>.+)[”’] | \$\$?(?P<math>[^$]+?)\$\$? | {_LATEX}(?P<latex>.*)\}}
    | \\\((?P<inline>.*)\\\) | \\\[(?P<display>.*)\\\]""",
    re.VERBOSE,
)
"""What is around all of a right answer. Single stars and underscores are its own: ``*foo*``, ``__init__``."""

_INSIDE = ("bold", "quoted", "curly", "math", "latex", "inline", "display")

_BEGINS = re.compile(rf"^(?:(?:[.,;:…]+|[*=])\s|\.{{3,}}|[{_QUOTES}]+(?=[^\W\d_]{{2}}))\s*")
"""A mark that begins a right answer and is none of its own, as that of ``:root`` is."""

_ENDS = re.compile(rf"(?:(?<=[^\W\d_]{{2}})[\s{_QUOTES}….,;:!?/]+|[\s….,;:]+)$")
"""Marks that end one and are none of its own: ``Yes!`` is Yes, but ``5!`` is not 5, nor ``x'`` x."""


class Rights:
    """Right answers. ``text in rights``: whether ``text`` is one of them, or the same number as one.

    Case and white space make no difference, nor does what a sentence, quotes, ``**bold**`` or ``\\boxed{}`` put around.
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._texts = {reading for answer in answers for reading in _readings(answer)}
        self._numbers = {_number(text) for text in self._texts} - {None}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __contains__(self, answer: str) -> bool:
        return any(self._meant(given) for given in {folded(answer), folded(unwrapped(answer))})

    def _meant(self, given: str) -> bool:
        if given in self._texts or any(_decorated(given, right) for right in self._texts):
            return True
        found = _NUMBER.search(given) if self._numbers else None
        candidate = found[0].rstrip(".,_") if found else ""
        return _number(candidate) in self._numbers and _decorated(given, candidate)


def folded(text: str) -> str:
    """``text`` without regard to case and white space."""
    return " ".join(_composed(text).casefold().split())


def _composed(text: str) -> str:
    """NFKC, which for thousands of marks in a row takes a good part of a second."""
    if text.isascii():
        return text
    marks = (sum(1 for _ in run) for is_mark, run in groupby(text, _is_mark) if is_mark)
    return text if max(marks, default=0) > _COMBINING else unicodedata.normalize("NFKC", text)


@cache
def _is_mark(character: str) -> bool:
    """Whether it is put in order with its neighbours: also one that is no mark, and is taken apart into some."""
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) > 0


def _number(text: str) -> Decimal | None:
    """``text`` as a number, None where it is none: ``3`` and ``3.0`` are one answer, and so are ``-3`` and ``−3``.

    Commas may group thousands, as in ``1,000``. Elsewhere they may be a list's or a decimal's: ``2,3`` is no number.
    """
    plain = text.replace("\u2212", "-")
    try:
        found = Decimal(plain.replace(",", "") if _GROUPED.fullmatch(plain) else plain)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def _readings(right: str) -> list[str]:
    """A right answer as it is written, and without what quotes, ends or emphasises it; never nothing."""
    found = [folded(right), folded(unwrapped(right))]
    for _ in range(_LAYERS):
        bare = found[-1]
        around = _AROUND.fullmatch(bare)
        inside = next(filter(None, around.group(*_INSIDE)), "") if around else _ENDS.sub("", _BEGINS.sub("", bare))
        if inside.strip() in ("", bare):
            break
        found.append(inside.strip())
    return [text for text in found if text]


def _decorated(given: str, right: str) -> bool:
    """Whether ``given`` is ``right`` with nothing but marks around it."""
    if not right or len(given) - len(right) > _MOST:
        return False
    start = given.find(right)
    while start >= 0:
        if _only_marks(given[:start], right, given[start + len(right) :]):
            return True
        start = given.find(right, start + 1)
    return False


def _only_marks(before: str, right: str, after: str) -> bool:
    if right[0].isdigit() and before.endswith((".", ",")):
        return False  # another number
    if _number(right) is not None:
        before = before.removesuffix("=")
    if right[-2:].isalpha() and len(right) > 1:
        after = after.removeprefix("/")  # of a folder, or an address
    opened, closed = _marks(_BEFORE, before), _marks(_AFTER, after)
    return opened is not None and closed is not None and [_closing(mark) for mark in reversed(opened)] == closed


def _marks(kind: re.Pattern[str], text: str) -> list[str] | None:
    """Those of ``text`` that come in pairs; None where it holds anything but marks."""
    found, at = [], 0
    while at < len(text):
        mark = kind.match(text, at)
        if mark is None:
            return None
        found += [mark["paired"]] if mark["paired"] else []
        at = mark.end()
    return found


def _closing(mark: str) -> str:
    return {"\\(": "\\)", "\\[": "\\]"}.get(mark, "}" if mark.startswith("\\") else mark)
