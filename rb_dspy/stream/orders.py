"""A stream cut into compile, dev and held-out streams that have no kind of task in common."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass

from rb_dspy.errors import InputError
from rb_dspy.schema import Task
from rb_dspy.stream.alike import near_duplicates, similarity
from rb_dspy.stream.folds import check_folds, fixed_parts, folds_missing
from rb_dspy.stream.tasks import TaskStream
from rb_dspy.stream.together import IN_PYTHON, Remedies, too_few

COMPILE_SHARES: dict[str, float] = {"compile": 0.5, "dev": 0.2, "held_out": 0.3}
"""How much of a stream's tasks each of its three parts gets."""


@dataclass(frozen=True)
class Streams:
    """What prompts are compiled on, chosen on, and judged on.

    Raises ``InputError`` that names two tasks where a template, a fold of a family (``SaysFolds``) or nearly the same
    text stands in two of the streams; ``check=False`` allows it. How near: see ``rb_dspy.stream.alike``.
    """

    compile: TaskStream
    dev: TaskStream
    held_out: TaskStream
    check: InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        if check:
            check_apart(self)


def split_streams(
    stream: TaskStream, *, shares: Mapping[str, float] = COMPILE_SHARES, seed: int = 0, check: bool = True
) -> Streams:
    """Three streams that together hold each task once, in the order of ``stream``.

    Tasks of one template stay together, and so do near-duplicates, whatever their template; a task without a template
    is one of its own. ``shares`` are relative, and met as nearly as such groups allow: the largest groups are placed
    first. Where a family says that its tasks fall into folds (``SaysFolds``), its fold train is compiled on, dev is
    dev, and test is held out, whatever the shares and the seed. Deterministic for the tasks and ``seed``, in whatever
    order the tasks come. With ``check=False`` only templates stay together. Raises ``InputError`` where one of the
    three would be empty, or tasks of two folds would have to stay together.
    """
    return split(stream, shares, seed, check=check)


def split(
    stream: TaskStream,
    shares: Mapping[str, float] = COMPILE_SHARES,
    seed: int = 0,
    *,
    check: bool = True,
    remedies: Remedies = IN_PYTHON,
) -> Streams:
    """``split_streams``, for whoever has other ``remedies``."""
    wanted = _checked_shares(shares)
    groups = _Groups(stream.tasks)
    few, glued = groups.count() < len(COMPILE_SHARES), None
    if check:
        for pair in near_duplicates(stream.tasks, lambda one, two: groups.of(one) != groups.of(two)):
            groups.join(*pair)
            glued = glued or pair
    members = groups.members()
    fixed: list[str | None] = fixed_parts(members, stream.tasks, remedies) if check else [None] * len(members)
    empty = [name for name in wanted if name not in fixed]
    if fixed.count(None) < len(empty):
        if len(empty) < len(COMPILE_SHARES):
            raise InputError(folds_missing(stream.name, stream, empty, remedies))
        raise InputError(too_few(stream.name, stream.tasks, len(members), None if few else glued, remedies))
    placed = _placed(members, fixed, stream.tasks, wanted, seed)
    parts = {
        name: TaskStream(f"{stream.name}/{name}", tuple(stream.tasks[position] for position in sorted(placed[name])))
        for name in wanted
    }
    return Streams(**parts, check=False)


class _Groups:
    """Positions of tasks that belong together; at first those of one template."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._parent = list(range(len(tasks)))
        first: dict[str, int] = {}
        for position, task in enumerate(tasks):
            if task.template is not None:
                self.join(first.setdefault(task.template, position), position)

    def of(self, position: int) -> int:
        parent = self._parent
        while parent[position] != position:
            parent[position] = parent[parent[position]]
            position = parent[position]
        return position

    def join(self, one: int, two: int) -> None:
        self._parent[self.of(two)] = self.of(one)

    def members(self) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for position in range(len(self._parent)):
            found.setdefault(self.of(position), []).append(position)
        return list(found.values())

    def count(self) -> int:
        return len(self.members())


def _placed(
    groups: list[list[int]], fixed: list[str | None], tasks: Sequence[Task], wanted: Mapping[str, float], seed: int
) -> dict[str, list[int]]:
    """Each group in the part that is ``fixed`` for it, then each other one in that which lacks most: by size, and among
    equals in an order drawn from ``seed``.
    """

    def drawn(group: list[int]) -> tuple[int, bytes]:
        name = min(tasks[position].id for position in group)
        return -len(group), hashlib.sha256(f"{seed}\n{name}".encode()).digest()

    split: dict[str, list[int]] = {name: [] for name in wanted}
    for group, part in zip(groups, fixed, strict=True):
        if part is not None:
            split[part] += group
    free = [group for group, part in zip(groups, fixed, strict=True) if part is None]
    for number, group in enumerate(sorted(free, key=drawn)):
        empty = [name for name in split if not split[name]]
        open_ones = empty if len(free) - number == len(empty) else list(split)  # the last ones fill what is empty
        best = max(open_ones, key=lambda name: wanted[name] * len(tasks) - len(split[name]))
        split[best] += group
    return split


def _checked_shares(shares: Mapping[str, float]) -> dict[str, float]:
    if set(shares) != set(COMPILE_SHARES) or not all(0 < share < math.inf for share in shares.values()):
        raise InputError(
            f"shares {dict(shares)}: expected a number above 0 for each of {', '.join(COMPILE_SHARES)}, and no others"
        )
    whole = sum(shares.values())
    return {name: shares[name] / whole for name in COMPILE_SHARES}


def check_apart(streams: Streams, remedies: Remedies = IN_PYTHON) -> None:
    """See ``Streams``."""
    parts = [("compile", streams.compile), ("dev", streams.dev), ("held_out", streams.held_out)]
    tasks = [task for _, part in parts for task in part]
    places = [name for name, part in parts for _ in part]
    seen: dict[str, int] = {}
    for position, task in enumerate(tasks):
        first = seen.setdefault(task.template, position) if task.template is not None else position
        if places[first] != places[position]:
            raise InputError(
                f"{tasks[first].id!r} in {places[first]} and {task.id!r} in {places[position]} have the template"
                f" {task.template!r}; expected each in one of them: {remedies.parts}"
            )
    check_folds(tasks, places, remedies)
    for first, second in near_duplicates(tasks, lambda one, two: places[one] != places[two]):
        same = similarity(tasks[first], tasks[second])
        raise InputError(
            f"{tasks[first].id!r} in {places[first]} and {tasks[second].id!r} in {places[second]} are near-duplicates"
            f" (similarity {same:.2f}); expected them in one: {remedies.parts}"
        )
