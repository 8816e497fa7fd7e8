"""Making tasks from seeds: shared by the families whose tasks are generated."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Hashable, Iterable, Iterator, Sequence

from rb_dspy.errors import InputError
from rb_dspy.schema import Task

RUN_OUT = 500
"""After so many unusable or repeated draws in a row, a template has no more tasks."""


def mixed_seed(*parts: str | int) -> int:
    """A seed in [0, 2**31) that depends on every part; the same on every machine and in every process.

    Neighbouring stream seeds must not give overlapping tasks (reasoning-gym adds seed and index), and neighbouring game
    seeds must not give similar games (Java's generator starts alike for them), so seeds are never used as they come.
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def chosen_templates(family: str, known: Sequence[str], templates: Sequence[str] | None) -> tuple[str, ...]:
    """``templates`` in the order given, or all ``known`` ones; ``InputError`` for one that the family does not have."""
    if templates is None:
        return tuple(known)
    for template in templates:
        if template not in known:
            near = difflib.get_close_matches(template, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"rb-dspy envs {family} lists them"
            raise InputError(f"unknown template {template!r} of {family}; {hint}")
    return tuple(templates)


def distinct(draws: Iterable[tuple[Hashable, Task] | None]) -> Iterator[Task]:
    """The tasks of ``draws`` whose key has not been seen before; ends after ``RUN_OUT`` draws in a row that gave none.

    None is a draw that made no usable task. A repeat would let an agent win by recalling the answer, so none is given.
    """
    seen: set[Hashable] = set()
    misses = 0
    for draw in draws:
        if draw is None or draw[0] in seen:
            misses += 1
            if misses == RUN_OUT:
                return
            continue
        misses = 0
        seen.add(draw[0])
        yield draw[1]


def in_turn(sources: Sequence[Iterator[Task]]) -> Iterator[Task]:
    """One task of each source in turn; a source that has run out is left out from then on."""
    live = list(sources)
    while live:
        still = []
        for source in live:
            task = next(source, None)
            if task is not None:
                still.append(source)
                yield task
        live = still
