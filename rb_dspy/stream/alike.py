"""Tasks that ask nearly the same, by the words that they share.

Two texts are near-duplicates when the Jaccard similarity of their sets of three words in a row is at least ``ALIKE``.
Measured: of reasoning-gym's 84 templates (2,520 tasks) two pairs reach 0.4, both of one kind: grids to transform
(0.50) and sums (0.40); no other pair reaches 0.25. Of the 869,221 pairs of GSM8K's test questions two reach 0.4, and
each is one story told twice; of the 13,366 pairs of HumanEval's docstrings five, which are siblings or share their
example; of SVAMP, which varies each of its stories on purpose, 916. From 0.3 on some pairs of HumanEval share no more
than phrases; at 0.5 the second pair of GSM8K would be missed. Single words in place of three find 76 pairs of GSM8K at
0.4.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import regex

from rb_dspy.schema import Task

ALIKE = 0.4

WORLDS: frozenset[str] = frozenset({"twc", "cookingworld"})
"""Environments that give tasks of all templates the same instruction, and show the rest in their worlds: of their tasks
only those with the same arguments are alike."""

_ROW = 3

_T = TypeVar("_T")

# A word, or a sign. Scripts that put no blanks between words count by the character.
_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*"
    r"|[\w--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]+|[^\w\s]",
    regex.V1,
)


def near_duplicates(tasks: Sequence[Task], matters: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """All pairs of near-duplicates, as positions in ``tasks``, the smaller one first; exact, and in a fixed order.

    Pairs for which ``matters`` is False are left out; it is asked before the texts are compared, and may change its
    mind between pairs. Some seconds for 10,000 tasks.
    """
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    rows = [frozenset(numbers[row] for row in _rows(task)) for task in tasks]
    counts = Counter(number for row in rows for number in row)
    # Sets that overlap by a share of at least ALIKE also meet in their first 1 - ALIKE, in any order that all of them
    # have; with the rarest first few others meet there. (Prefix filtering of set similarity joins.)
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for second, row in enumerate(rows):
        rarest = sorted(row, key=lambda number: (counts[number], number))
        first_ones = rarest[: len(row) - math.ceil(ALIKE * len(row) - 1e-9) + 1]
        for first in sorted(set().union(*(seen[number] for number in first_ones))):
            if matters(first, second) and _similarity(rows[first], row) >= ALIKE:
                yield first, second
        for number in first_ones:
            seen[number].append(second)


def similarity(one: Task, other: Task) -> float:
    """Jaccard similarity of two tasks, in [0, 1]."""
    return _similarity(_rows(one), _rows(other))


def _similarity(one: frozenset[_T], other: frozenset[_T]) -> float:
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def _rows(task: Task) -> frozenset[str]:
    """Each three words in a row of the instruction; a text of fewer is one row."""
    if task.env in WORLDS and task.env_args:
        return frozenset({f"{task.env} {json.dumps(task.env_args, sort_keys=True)}"})
    words = _WORD.findall(unicodedata.normalize("NFKC", task.instruction).casefold())
    return frozenset(" ".join(words[start : start + _ROW]) for start in range(max(1, len(words) - _ROW + 1)))
