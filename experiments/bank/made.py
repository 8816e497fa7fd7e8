"""Made-up lessons: 700 bytes of English a lesson, and a number in front that leads to its vector.

Imported by the peers' worker too, so this imports nothing of rb_dspy.
"""

from __future__ import annotations

from functools import cache
from pydoc_data.topics import topics

DIMENSION = 384
TEXT_BYTES = 700
"""Title, description and content of a lesson together."""


@cache
def _prose() -> str:
    """Some 700 kB of English about Python, in one line of ASCII."""
    return " ".join(" ".join(topics.values()).encode("ascii", "ignore").decode().split())


def _slice(number: int, length: int) -> str:
    prose = _prose()
    start = number * 7_919 % (len(prose) - length)
    return prose[start : start + length].strip().ljust(length, ".")


def item_texts(number: int) -> tuple[str, str, str]:
    """Title, description and content of a lesson, no two alike."""
    title, description = f"i{number:08d} {_slice(number, 40)}", _slice(number + 1, 100)
    return title, description, _slice(number + 2, TEXT_BYTES - len(title) - len(description))


def task_text(number: int) -> str:
    """An instruction of 100 bytes, no two alike."""
    return f"t{number:08d} {_slice(number + 3, 90)}"


def query_text(number: int) -> str:
    return f"q{number:08d} what is to be done?"


def row_of(text: str) -> tuple[str, int]:
    """The kind of a made-up text (``i``, ``t``, ``q``) and its row."""
    return text[0], int(text[1:9])
