"""Tasks that ask nearly the same, by the words that they share.

Two texts are near-duplicates when the Jaccard similarity of their sets of three words in a row is at least ``ALIKE``.
Measured: of reasoning-gym's 84 templates (2,520 tasks) two pairs reach 0.4, both of one kind: grids to transform
(0.50) and sums (0.40); no other pair reaches 0.25. Of the 869,221 pairs of GSM8K's test questions two reach 0.4, and
each is one story told twice; of the 13,366 pairs of HumanEval's docstrings five, which are siblings or share their
example; of SVAMP, which varies each of its stories on purpose, 916. From 0.3 on some pairs of HumanEval share no more
than phrases; at 0.5 the second pair of GSM8K would be missed. Single words in place of three find 76 pairs of GSM8K at
0.4.

Short tasks of one kind often differ in nothing but numbers, of which each puts three rows apart: "What is 3 + 4?" and
"What is 3 + 5?" share two rows of six. So two tasks are also near-duplicates where they are with all numbers taken
for the same, unless both have a template: who names the kinds of his tasks knows better, and kinds may have a text in
common. Measured: of reasoning-gym's tasks with their templates no other pair is found. Without them (840 tasks of 84
families, ``split_streams``) 16 families lie in several parts, where it was 27, and no pair of other families is found
than above. Of GSM8K's questions no other pair is found, of HumanEval's docstrings one, two sequences in one wording, of
SVAMP 1,299, which are stories told again with other numbers.

Environments may give tasks of all templates the same instruction, and show the rest in their worlds. A family that says
so (``instruction_tells_all``) is believed: of its tasks only those with the same arguments are alike.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import regex

from rb_dspy.plugins import instruction_tells_all
from rb_dspy.schema import Task

ALIKE = 0.4

_ROW = 3

_T = TypeVar("_T")

# A word, or a sign. Scripts that put no blanks between words count by the character.
_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*"
    r"|[\w--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]+|[^\w\s]",
    regex.V1,
)
_POINT = regex.compile(r"(?<=\p{N})[.,](?=\p{N})")


def near_duplicates(tasks: Sequence[Task], matters: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """All pairs of near-duplicates, as positions in ``tasks``, the smaller one first; exact, and in a fixed order.

    Pairs for which ``matters`` is False are left out; it is asked before the texts are compared, and may change its
    mind between pairs. Some seconds for 10,000 tasks.
    """
    rows = _numbered([_rows(task) for task in tasks])
    yield from _alike(rows, matters)
    of_a_kind = [task.template is not None for task in tasks]
    if all(of_a_kind):
        return

    def only_without_numbers(one: int, other: int) -> bool:
        kinds_known = of_a_kind[one] and of_a_kind[other]
        return not kinds_known and matters(one, other) and _similarity(rows[one], rows[other]) < ALIKE

    yield from _alike(_numbered([_rows(task, numbers=False) for task in tasks]), only_without_numbers)


def similarity(one: Task, other: Task) -> float:
    """Jaccard similarity of two tasks, in [0, 1]; the higher one where it counts with numbers and without."""
    found = _similarity(_rows(one), _rows(other))
    if one.template is not None and other.template is not None:
        return found
    return max(found, _similarity(_rows(one, numbers=False), _rows(other, numbers=False)))


def only_numbers_differ(one: Task, other: Task) -> bool:
    """Whether two near-duplicates are that only with all numbers taken for the same: templates tell such apart."""
    return _similarity(_rows(one), _rows(other)) < ALIKE


def _numbered(sets: Sequence[frozenset[str]]) -> list[frozenset[int]]:
    """The same with a number for each row, which is sooner compared."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return [frozenset(numbers[row] for row in rows) for rows in sets]


def _alike(rows: Sequence[frozenset[int]], matters: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """The pairs of sets that matter and overlap by a share of at least ``ALIKE``."""
    counts = Counter(number for row in rows for number in row)
    # Such sets also meet in their first 1 - ALIKE, in any order that all of them have; with the rarest first few others
    # meet there. (Prefix filtering of set similarity joins.)
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for second, row in enumerate(rows):
        rarest = sorted(row, key=lambda number: (counts[number], number))
        first_ones = rarest[: len(row) - math.ceil(ALIKE * len(row) - 1e-9) + 1]
        for first in sorted(set().union(*(seen[number] for number in first_ones))):
            if matters(first, second) and _similarity(rows[first], row) >= ALIKE:
                yield first, second
        for number in first_ones:
            seen[number].append(second)


def _similarity(one: frozenset[_T], other: frozenset[_T]) -> float:
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def _rows(task: Task, *, numbers: bool = True) -> frozenset[str]:
    """Each three words in a row of the instruction; a text of fewer is one row. All are one without ``numbers``."""
    if task.env_args and not instruction_tells_all(task.env):
        return frozenset({f"{task.env} {json.dumps(task.env_args, sort_keys=True)}"})
    text = unicodedata.normalize("NFKC", task.instruction).casefold()
    words = _WORD.findall(text)
    if not numbers:
        words = ["0" if word.isdecimal() else word for word in _WORD.findall(_POINT.sub("", text))]
    return frozenset(" ".join(words[start : start + _ROW]) for start in range(max(1, len(words) - _ROW + 1)))
