"""As many examples of one label as of the other, for whoever takes plain means.

Verdicts are scored so that successes and failures count the same, however many of each there are (``rate_examples``).
Optimizers take plain means, so they are given examples that lie like that: of the rarer label some come again. Among
them whoever always says the same is right half of the time, and no more. Weights in the score itself would do that as
well, but then a right verdict on the frequent label would not look perfect to gepa, which goes by that, nor a wrong one
wrong to who looks for demonstrations. No example is left out for it; what comes again costs a metric call every time.

Only examples of verdicts have a label; all others are taken to have the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, cycle, islice, zip_longest
from typing import Any


def evened(examples: Sequence[Any], seed: str) -> list[Any]:
    """``examples`` as they are, and after them copies of the rarer label's, in turn, until all labels have as many."""
    groups = _by_label(examples, seed)
    most = max(map(len, groups), default=0)
    return [*examples, *(copy for group in groups for copy in _again(group, most - len(group)))]


def dealt(examples: Sequence[Any], n: int, seed: str, *, again: bool = False) -> list[Any]:
    """``n`` of the examples, or all there are, drawn by ``seed``, one of each label in turn.

    Where all of a label have come the others go on; with ``again`` its own come again, as copies.
    """
    groups = _by_label(examples, seed)
    if again and len(groups) > 1:
        groups = [[*group, *_again(group, n - len(group))] for group in groups]
    return [each for each in chain.from_iterable(zip_longest(*groups)) if each is not None][:n]


def chosen(examples: Sequence[Any], most: int, seed: str) -> list[Any]:
    """At most ``most`` of the examples, but as many of each label, however rare it is."""
    groups = _by_label(examples, seed)
    each = min(most // max(1, len(groups)), max(map(len, groups), default=0))
    return dealt(examples, each * len(groups), seed, again=True)


def _by_label(examples: Sequence[Any], seed: str) -> list[list[Any]]:
    """The examples of each label, in the order that ``seed`` draws."""
    groups: dict[Any, list[Any]] = {}
    for example in examples:
        groups.setdefault(example.get("success"), []).append(example)
    draw = random.Random(seed)
    return [draw.sample(group, len(group)) for group in groups.values()]


def _again(group: Sequence[Any], n: int) -> list[Any]:
    """``n`` copies, each example as often as any other: examples are told apart by what they are, not what they say."""
    return [each.copy() for each in islice(cycle(group), max(0, n))]
