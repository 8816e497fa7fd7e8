"""A bank as a plain Python object, slow and obvious, to hold the real one to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import attempt_id, identity, new_item
from rb_dspy.schema import ExperienceDraft, MemoryDraft


@dataclass
class Known:
    """An experience. ``shown`` are item ids."""

    task: str
    run: str
    origin: str
    shown: tuple[str, ...]
    seq: int
    level: int = 1


@dataclass
class Model:
    """One scope. ``rows``: item id -> number, experience, first number and level of each live row; ``later``: edits.
    ``marked``: id and name -> number and value of its last mark.

    ``past``, ``gave``: every experience there ever was, and which of them ever gave an item.
    """

    scope: str
    seq: int = 0
    experiences: dict[str, Known] = field(default_factory=dict)
    past: dict[str, Known] = field(default_factory=dict)
    gave: dict[str, set[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, str, int, int]]] = field(default_factory=dict)
    marked: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    later: dict[str, set[str]] = field(default_factory=dict)
    edits: list[tuple[int, str, str]] = field(default_factory=list)
    learned: dict[str, list[int]] = field(default_factory=dict)
    """Item id -> the numbers of all rows that there ever were."""
    names: dict[str, Model] = field(default_factory=dict)
    pending: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    """Run, task and rollout, and the items that were shown."""

    def fork(self) -> Model:
        return replace(self.copy(), pending={})

    def copy(self) -> Model:
        bare = copy.deepcopy(replace(self, names={}))  # what has a name does not change
        return replace(bare, names=dict(self.names))

    def append(self, draft: ExperienceDraft, levels: dict[str, int] | None = None) -> None:
        """``levels``: of the items before this; None: as they are."""
        id = identity(draft.task, draft.trajectories, run_id=draft.run_id)
        shown = tuple(dict.fromkeys(draft.shown))
        items = {new_item(lesson).id: lesson.content for lesson in draft.drafts}
        before = self.levels() if levels is None else levels
        level = min([0 if draft.origin == "mail" else 1, *(before[each] for each in shown if each in before)])
        known = Known(draft.task.id, draft.run_id, draft.origin, shown, 0, level)
        self.store(id, known, items, dict.fromkeys(items, level))

    def value(self, name: str, id: str) -> str:
        """The value of a mark, empty if it is not there, or about what is not there any more."""
        at, value = self.marked.get((id, name), (0, ""))
        numbers = [row[0] for row in self.rows.get(id, ())] or [self.past[id].seq for _ in "1" if id in self.past]
        return value if any(number < at for number in numbers) else ""

    def levels(self) -> dict[str, int]:
        """Of live items, and of experiences."""
        items = {id: max(row[3] for row in rows) for id, rows in self.rows.items()}
        found = items | {id: known.level for id, known in self.experiences.items()}
        return {id: 2 if self.value("approved", id) else level for id, level in found.items()}

    def mark(self, ids: list[str], name: str, value: str) -> None:
        self.seq += 1
        self.marked |= {(id, name): (self.seq, value) for id in ids}

    def is_shown(self, id: str, experience: str = "") -> bool:
        """Whether a search finds an item, or this experience for it."""
        at, value = self.marked.get((experience or id, "approved"), (0, ""))
        if experience:
            known = self.experiences[experience]
            return (known.level > 0 or bool(value and known.seq < at)) and self.levels()[id] > 0
        return any(row[3] > 0 or (value and row[0] < at) for row in self.rows[id])

    def store(self, id: str, known: Known, items: dict[str, str], levels: dict[str, int]) -> None:
        """Append an experience with its items, by id."""
        self.pending = {key: shown for key, shown in self.pending.items() if key[:2] != (known.run, known.task)}
        if id in self.past:
            return
        self.seq += 1
        self.experiences[id] = self.past[id] = replace(known, seq=self.seq)
        for item_id, content in items.items():
            self.seq += 1
            self.texts[item_id] = content
            self.rows.setdefault(item_id, []).append((self.seq, id, self.seq, levels[item_id]))
            self.learned.setdefault(item_id, []).append(self.seq)
            self.gave.setdefault(item_id, set()).add(id)

    def take(self, other: Model) -> None:
        """Append what another one holds, as an import does."""
        levels = other.levels()
        for id, known in list(other.experiences.items()):
            items = {item: other.texts[item] for item in other.items_of(id)}
            here = {item: levels[item] and max(levels[item], levels[id]) for item in items}
            stale = [each for each in (id, *items) if other.value("stale", each)] if id not in self.past else []
            self.store(id, replace(known, level=levels[id]), items, here)
            for each in stale:
                self.mark([each], "stale", other.value("stale", each))

    def record(self, draft: ExperienceDraft, shown: tuple[str, ...]) -> None:
        id = identity(draft.task, draft.trajectories, run_id=draft.run_id)
        if id not in self.experiences:
            key = draft.run_id, draft.task.id, draft.trajectories[0].rollout_id
            self.pending.setdefault(key, shown)

    def groups(self) -> dict[str, tuple[list[str], set[str]]]:
        """What is pending, by the id that it becomes: its rollouts, and the items that were shown and are here."""
        found: dict[str, tuple[list[str], set[str]]] = {}
        for (run, task, rollout), shown in self.pending.items():
            id = attempt_id(run, task)
            rollouts, items = found.setdefault(id, ([], set()))
            rollouts.append(rollout)
            items |= set(shown) & self.rows.keys()
        return {id: (sorted(rollouts), items) for id, (rollouts, items) in found.items()}

    def edit(self, id: str, content: str) -> str:
        """The id of the item with the new text."""
        new = new_item(MemoryDraft(title="lesson", description="when", content=content)).id
        if new == id:
            return id
        same = {row[1]: row for row in self.rows.get(new, ())}
        before = self.rows.pop(id)
        moved = [(owner, learned) for _, owner, learned, _ in before if owner not in same]
        raised = [same[owner] for _, owner, *_ in before if owner in same and same[owner][3] < 2]
        if raised:
            self.rows[new] = [row for row in self.rows[new] if row not in raised]
        moved += [(owner, learned) for _, owner, learned, _ in raised]
        self.seq += 1
        for number, (owner, learned) in enumerate(moved, 1):
            self.rows.setdefault(new, []).append((self.seq + number, owner, learned, 2))
            self.learned.setdefault(new, []).append(self.seq + number)
        self.seq += len(moved)
        self.edits.append((self.seq, id, new))
        self.texts[new] = content
        self.gave.setdefault(new, set()).update(owner for owner, _ in moved)
        self.later.setdefault(id, set()).add(new)
        return new

    def present_id(self, id: str, at: int) -> str:
        """What an item that was shown before the number ``at`` is now: each edit is followed once.

        One before ``at`` counts unless the same was learned again in between.
        """
        return self._follow(id, at, set())

    def _follow(self, id: str, at: int, done: set[int]) -> str:
        for seq, old, new in self.edits:
            again = any(seq < number <= at for number in self.learned.get(id, ()))
            if old == id and seq not in done and (seq > at or not again):
                return self._follow(new, max(at, seq), done | {seq})
        return id

    def later_ids(self, id: str) -> set[str]:
        """An id and those that its item got by edits."""
        found, new = set[str](), {id}
        while new:
            found |= new
            new = {each for one in new for each in self.later.get(one, ())} - found
        return found

    def remove_item(self, id: str, *, descendants: bool, kind: str) -> None:
        items = {id} if kind == "delete" else self.later_ids(id)
        self._end(set(), items & self.gave.keys(), descendants=descendants)

    def remove_experiences(self, ids: set[str], *, descendants: bool, kind: str) -> None:
        self._end(ids if descendants else ids & self.experiences.keys(), set(), descendants=descendants)

    def _end(self, going: set[str], items: set[str], *, descendants: bool) -> None:
        """End ``going`` and ``items``; with descendants what has ended already leads on to what has not."""
        while True:
            gone = items | {id for id in self.gave if self._lost(id, going, descendants=descendants)}
            more = {e for e, known in self.past.items() if descendants and gone & set(known.shown)}
            if more <= going:
                break
            going = going | more
        if descendants:
            lost = {key[:2] for key, shown in self.pending.items() if gone & set(shown)}  # with all of their attempt
            self.pending = {key: shown for key, shown in self.pending.items() if key[:2] not in lost}
        going &= self.experiences.keys()
        gone &= self.rows.keys()
        hit = gone | {id for id, rows in self.rows.items() if any(owner in going for _, owner, *_ in rows)}
        if not going and not hit:
            return
        self.seq += 1
        for id in hit:
            rows = [] if id in gone else [row for row in self.rows[id] if row[1] not in going]
            if rows:
                self.rows[id] = rows
            else:
                del self.rows[id]
        for id in going:
            del self.experiences[id]

    def _lost(self, id: str, going: set[str], *, descendants: bool) -> bool:
        """Whether an item goes with these experiences: those that only repeat what they were shown do not hold it."""
        say = {owner for _, owner, *_ in self.rows.get(id, ())}
        givers = self.gave[id] if descendants else say
        stay = (say or givers & self.experiences.keys()) - going
        repeat = {giver for giver in givers if descendants and id in self.past[giver].shown}
        return bool(givers & going) and (not stay or (bool(givers & going - repeat) and stay <= repeat))

    def items(self) -> list[tuple[int, str, str, list[str]]]:
        """Number, id, content and experiences of each item, in the order in which they were learned."""
        return [
            (rows[0][0], id, self.texts[id], [owner for _, owner, *_ in sorted(rows, key=lambda row: row[2])])
            for id, rows in sorted(self.rows.items(), key=lambda pair: min(row[2] for row in pair[1]))
        ]

    def items_of(self, experience: str) -> list[str]:
        """Ids of an experience's items, in order."""
        owned = [(row[2], id) for id, rows in self.rows.items() for row in rows if row[1] == experience]
        return [id for _, id in sorted(owned)]


def check(bank: MemoryBank, model: Model) -> None:
    """Everything that the bank says is what the model says."""
    items = bank.items()
    told = [(i.seq, i.id, i.content, [provenance.experience_id for provenance in i.provenances]) for i in items]
    assert told == model.items()
    assert len(bank) == len(model.rows)
    waiting = {
        each.id: ([t.rollout_id for t in each.trajectories], {i.id for i in each.shown}) for each in bank.pending()
    }
    assert waiting == model.groups()
    experiences = bank.experiences()
    assert [(e.id, e.seq, e.task.id, e.run_id, e.origin, e.shown) for e in experiences] == [
        (id, known.seq, known.task, known.run, known.origin, known.shown) for id, known in model.experiences.items()
    ]
    by_id = {item.id: item for item in items}
    for experience in experiences:
        assert list(experience.items) == [by_id[id] for id in model.items_of(experience.id)]
    names = ("held", "learned", "owner")
    levels = model.levels()
    assert {each.id: each.level for each in (*items, *experiences)} == {id: names[n] for id, n in levels.items()}
    assert {each.item.id for each in bank.held_items()} == {id for id in model.rows if not levels[id]}
    uses: dict[str, list[str]] = {}
    believed = [known for id, known in model.experiences.items() if levels[id]]  # what is held says nothing of others
    for known in sorted(believed, key=lambda known: known.seq):
        for each in known.shown:
            uses.setdefault(model.present_id(each, known.seq), []).append(known.task)
    used = {id: [use.task_id for use in each] for id, each in bank.all_uses().items() if id in model.rows}
    assert used == {id: sorted_tasks for id, sorted_tasks in uses.items() if id in model.rows}
    for id in model.rows:
        assert bank.marks(id).get("stale", "") == model.value("stale", id)
    assert bank.seen_tasks() == {known.task for known in model.experiences.values()}
    for task in ("t0", "t1", "none"):
        newest = [experience for experience in experiences if experience.task.id == task][-1:]
        assert bank.experience_of(task) == (newest[0] if newest else None)


def check_index(bank: MemoryBank, model: Model) -> None:
    """What can be found is exactly what lives, and it is shown as it is."""
    by_id = {item.id: item for item in bank.items()}
    stats = bank.stats()
    assert (stats.items, stats.experiences) == (len(by_id), len(model.experiences))
    found = bank.retrieve("do it", k=1000, unit="item")
    live = {id for id in model.rows if model.is_shown(id)}
    assert {result.items[0].id for result in found} == live
    assert all(result.items == (by_id[result.items[0].id],) for result in found)
    found = bank.retrieve("do it", k=1000)
    lessons_of = {e: [id for id in model.items_of(e) if model.is_shown(id, e)] for e in model.experiences}
    assert sorted(result.experience_id for result in found) == sorted(e for e, ids in lessons_of.items() if ids)
    for result in found:
        assert list(result.items) == [by_id[id] for id in lessons_of[result.experience_id]]
    words = bank.retrieve("lesson", k=1000, unit="item", mode="lexical")
    assert {result.items[0].id for result in words} == live
    fresh = bank.retrieve("do it", k=1000, unit="item", marks={"stale": None})
    assert {result.items[0].id for result in fresh} <= live
    assert {result.items[0].id for result in fresh} >= {id for id in live if not model.value("stale", id)}


def check_history(bank: MemoryBank, model: Model) -> None:
    """Of everything that ever was."""
    for id in [*model.past, *model.gave]:
        changes = bank.history(id)
        assert changes[0].kind == "append"
        assert [change.seq for change in changes] == sorted(change.seq for change in changes)
        kinds = {change.kind for change in changes if change.id == id}
        assert (id in model.experiences or id in model.rows) or kinds & {"edit", "delete", "rollback"}


def lessons(*numbers: int) -> tuple[MemoryDraft, ...]:
    return tuple(MemoryDraft(title="lesson", description="when", content=f"content {number}") for number in numbers)
