"""Split a stream into parts for compiling, choosing and testing that share no kind of task."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass

from rb_dspy.errors import InputError
from rb_dspy.plugins import family_attribute
from rb_dspy.schema import Task
from rb_dspy.stream.stream import TaskStream
from rb_dspy.stream.templates import PARTS, fold_of
from rb_dspy.text import counted

COMPILE_SHARES: dict[str, float] = {"compile": 0.4, "dev": 0.2, "held_out": 0.4}
"""Part -> its share of the tasks. Of 40 tasks 16 are held out, enough to show a gain of 21 points in eight orders."""

NEAR = 0.4
"""Two tasks are near-duplicates if the Jaccard similarity of their word trigrams is at least this. Measured: two pairs
of reasoning-gym's 84 templates reach it, both of one kind; so do two of GSM8K's 869,221 pairs of test questions, each
the same story told twice."""

_CHARACTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Characters of scripts without spaces between words; each counts as one word."""
_WORD = re.compile(rf"[{_CHARACTERS}]|[^\W{_CHARACTERS}]+|[^\w\s]")


@dataclass(frozen=True)
class Streams:
    """Three parts of a stream: prompts are compiled on ``compile``, chosen on ``dev``, and tested on ``held_out``.

    Raises:
        InputError: Two streams share a template, a fold of a family, or nearly the same text (``near_duplicates``),
            unless ``check`` is False.
    """

    compile: TaskStream
    dev: TaskStream
    held_out: TaskStream
    check: InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        if not check:
            return
        tasks, parts = zip(*((task, part) for part in COMPILE_SHARES for task in getattr(self, part)), strict=True)
        for first, second, reason in _ties(tasks):
            if parts[first] != parts[second]:
                raise InputError(
                    f"{tasks[first].id!r} in {parts[first]} and {tasks[second].id!r} in {parts[second]} {reason};"
                    " expected such tasks in one part, as split_streams puts them; check=False allows it"
                )


def split_streams(
    stream: TaskStream, *, shares: Mapping[str, float] = COMPILE_SHARES, seed: int = 0, check: bool = True
) -> Streams:
    """Split ``stream`` so that tasks that belong together stay together.

    Tasks belong together if they share a template, or are near-duplicates. Folds that a family states
    (``EnvironmentFamily.fold_of``) go to their parts regardless of the shares: train is compiled on, dev is dev, test
    is held out. Deterministic for the tasks and ``seed``, whatever the order of the tasks; the parts keep that order.

    Args:
        stream: The tasks.
        shares: Relative sizes; approximate, because groups stay whole.
        seed: Determines which group goes to which part.
        check: If False, only templates are kept together.

    Raises:
        InputError: A part would be empty, or tasks of two folds belong together.
    """
    if set(shares) != set(COMPILE_SHARES) or not all(0 < share < math.inf for share in shares.values()):
        raise InputError(f"shares {dict(shares)}: expected a number above 0 for each of {', '.join(COMPILE_SHARES)}")
    tasks = stream.tasks
    groups = _groups(len(tasks), _ties(tasks, check=check))
    fixed = [_part(stream.name, [tasks[n] for n in group]) if check else None for group in groups]
    empty = [part for part in COMPILE_SHARES if part not in fixed]
    if fixed.count(None) < len(empty):
        raise InputError(
            f"{stream.name}: no tasks are left for {' and '.join(empty)}: {counted(len(tasks), 'task')} make only"
            f" {counted(len(groups), 'group')} that share a template, a fold or nearly the same text; expected at"
            f" least {len(COMPILE_SHARES)}: add tasks of other templates, or in Python pass check=False"
        )
    placed: dict[str, list[int]] = {part: [] for part in COMPILE_SHARES}
    for group, part in zip(groups, fixed, strict=True):
        if part:
            placed[part] += group
    free = [group for group, part in zip(groups, fixed, strict=True) if not part]
    free.sort(key=lambda group: (-len(group), _draw(seed, min(tasks[n].id for n in group))))
    total = sum(shares.values())
    for left, group in zip(range(len(free), 0, -1), free, strict=True):
        empty = [part for part in placed if not placed[part]]
        choice = empty if left == len(empty) else list(placed)
        placed[max(choice, key=lambda part: shares[part] / total * len(tasks) - len(placed[part]))] += group
    parts = {
        part: TaskStream(f"{stream.name}/{part}", [tasks[n] for n in sorted(placed[part])]) for part in COMPILE_SHARES
    }
    return Streams(**parts, check=False)


def near_duplicates(tasks: Sequence[Task]) -> Iterator[tuple[int, int]]:
    """Yield the positions of each pair of tasks that ask nearly the same: Jaccard similarity of at least ``NEAR``.

    Tasks of a family whose ``instruction_is_unique`` is False are compared by ``env_args``.
    """
    every = [_shingles(task) for task in tasks]
    counts = Counter(shingle for shingles in every for shingle in shingles)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for second, shingles in enumerate(every):
        rarest = sorted(shingles, key=lambda shingle: (counts[shingle], shingle))
        rarest = rarest[: len(rarest) - math.ceil(NEAR * len(rarest) - 1e-9) + 1]  # near-duplicates share one of these
        for first in sorted({first for shingle in rarest for first in seen[shingle]}):
            common = len(shingles & every[first])
            if common / (len(shingles) + len(every[first]) - common) >= NEAR:
                yield first, second
        for shingle in rarest:
            seen[shingle].append(second)


def _shingles(task: Task) -> frozenset[str]:
    """Return each three words in a row; a shorter text is one."""
    if task.env_args and not family_attribute(task.env, "instruction_is_unique", True):
        return frozenset({f"{task.env} {json.dumps(task.env_args, sort_keys=True)}"})
    words = _WORD.findall(unicodedata.normalize("NFKC", task.instruction).casefold())
    return frozenset(" ".join(words[start : start + 3]) for start in range(max(1, len(words) - 2)))


def _ties(tasks: Sequence[Task], *, check: bool = True) -> Iterator[tuple[int, int, str]]:
    """Yield the pairs of tasks that belong together, and why; without ``check``, only those of one template."""
    first: dict[object, int] = {}
    for position, task in enumerate(tasks):
        if task.template is not None:
            yield first.setdefault(task.template, position), position, f"have the template {task.template!r}"
        fold = fold_of(task.env, task.template) if check else None
        if fold is not None:
            yield first.setdefault((task.env, fold), position), position, f"are of {task.env}'s fold {fold}"
    if check:
        for one, other in near_duplicates(tasks):
            yield one, other, "are near-duplicates"


def _groups(count: int, ties: Iterator[tuple[int, int, str]]) -> list[list[int]]:
    """Return groups of positions that are tied, directly or through others."""
    groups = {position: [position] for position in range(count)}
    for one, other, _ in ties:
        if groups[one] is not groups[other]:
            small, large = sorted((groups[one], groups[other]), key=len)
            large += small
            groups |= dict.fromkeys(small, large)
    return [sorted(group) for group in {id(group): group for group in groups.values()}.values()]


def _part(name: str, group: Sequence[Task]) -> str | None:
    """Return the part that a group must go to for its fold; None if it has no fold."""
    found = {fold: task for task in group if (fold := fold_of(task.env, task.template)) is not None}
    if len(found) > 1:
        (fold, one), (other_fold, other), *_ = found.items()
        raise InputError(
            f"{name}: {one.id!r} of fold {fold} and {other.id!r} of fold {other_fold} belong together, by a template or"
            " nearly the same text; leave one out, or keep only templates together with check=False"
        )
    return PARTS[next(iter(found))] if found else None


def _draw(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{name}".encode()).digest()
