"""A label or a number in other words than were asked for, read only where one alone can be meant.

What is negated, doubted, compared, or beside another choice stays unread: a second call costs less than a wrong label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

_OPENING = "*_`\"'“‘«([{#"
_CLOSING = "*_`\"'”’»)]}"
_MARKS = re.escape(_OPENING) + r"\s"
_LONG = 2_000
"""Characters of a text that says more than one thing: a model that repeats itself, for one."""
_STEM = 4
"""Letters that forms of a word share: success, successful; failure, failed."""

_DOUBTS = {
    *("no", "not", "nor", "never", "neither", "none", "cannot", "without", "but", "however", "though", "although"),
    *("except", "unless", "yet", "if", "or", "wait", "actually", "rather", "instead", "perhaps", "maybe", "probably"),
    *("possibly", "partly", "partial", "partially", "almost", "nearly", "unclear", "unsure", "uncertain", "doubt"),
    *("doubtful", "only", "wrong", "false", "incorrect", "hardly", "barely", "otherwise", "correction", "mistake"),
}
_AGAINST = {
    *("bad", "worse", "worst", "fail", "fails", "failed", "loses", "lost", "loops", "than", "other", "after", "before"),
    "beats",
}
"""What may be said of a number that was not chosen."""
_CARDINALS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_NUMBERS = {word: number for words in (_CARDINALS, _ORDINALS) for number, word in enumerate(words, 1)}


def says_one_thing(annotation: Any) -> bool:
    """Whether a field of this type is an integer, or one of several choices."""
    return annotation is int or get_origin(annotation) is Literal


def read_meant(read: Callable[[str], Any], annotation: Any, name: str, text: str) -> Any:
    """``read(text)``, of the field ``name``; where that raises ``ValueError``, what is meant, if it is clear."""
    try:
        return read(text)
    except ValueError:
        if len(text) > _LONG:
            raise
        found = meant_integer(text, name) if annotation is int else meant_choice(text, get_args(annotation), name)
        if found is None:
            raise
        return found


def meant_choice(text: str, choices: Sequence[Any], name: str) -> Any:
    """The choice that ``text``, the value of the field ``name``, gives in another case, with marks around it or with
    words of its own after it; None where that is none, or may be another.
    """
    text = re.sub(rf"^{_named(name)}(?:[:=]|\bis\b)", "", text.strip(), flags=re.IGNORECASE)
    first, _, rest = text.strip().lstrip("`* \n").partition("\n")
    said, *more = re.split(r"(?<=[.!;])\s+", first, maxsplit=1)
    bare = re.sub(r"^[-•]\s+", "", said.strip()).lstrip(_OPENING + " ").rstrip(_CLOSING + " .,;:!").casefold()
    found = [choice for choice in choices if str(choice).casefold() == bare]
    if len(found) != 1 or "?" in text:
        return None
    rest = "\n".join([*more, rest]).casefold()
    others = [str(choice).casefold() for choice in choices if choice is not found[0]]
    if _doubted(rest) or any(_speaks_of(rest, other) for other in others):
        return None
    stem = bare[:_STEM]
    return None if any(word.find(stem) > 0 for word in _words(rest)) else found[0]  # as "unsuccessful"


def meant_integer(text: str, name: str) -> int | None:
    """The one integer in ``text``, the value of the field ``name``, where it is given as the answer; else None."""
    label = rf"(?:{_named(name)}|(?:attempt|candidate|option|choice|number|answer)\b)"
    shape = rf"[{_MARKS}]*(?:{label}[{_MARKS}:=]*)?(\d+)[{re.escape(_CLOSING)}]*(?:\s+is\s+(?:the\s+)?best\b)?"
    match = re.match(shape, text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        return None
    found, rest = match[1], text.strip()[match.end() :].casefold()
    if not re.match(r"$|\s*\(|\s*\n|[.,;:]+(?:\s|$)", rest) or re.search(r"\d|\?", rest) or len(found) > 18:
        return None
    words = _words(rest)
    if _doubted(rest) or words & _AGAINST or any(_NUMBERS.get(word, int(found)) != int(found) for word in words):
        return None
    return int(found)


def _named(name: str) -> str:
    """The beginning of a text that repeats its field's name."""
    words = r"[\s_]+".join(map(re.escape, name.split("_")))
    return rf"[{_MARKS}]*(?:the\s+)?(?:final\s+)?{words}\b[{re.escape(_CLOSING)}\s]*"


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text))


def _doubted(text: str) -> bool:
    words = _words(text)
    return bool(words & _DOUBTS) or "?" in text or any(word.endswith(("n't", "n’t")) for word in words)


def _speaks_of(text: str, choice: str) -> bool:
    """Whether ``text`` names ``choice``, or has a form of the word."""
    words = _words(text)
    return choice in words or (len(choice) >= _STEM and any(choice[:_STEM] in part for part in (*words, text)))
