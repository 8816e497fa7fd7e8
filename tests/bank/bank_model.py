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


@dataclass
class Model:
    """One scope. ``rows``: item id -> number, experience, and first number of each live row; ``later``: edits.

    ``past``, ``gave``: every experience there ever was, and which of them ever gave an item.
    """

    scope: str
    seq: int = 0
    experiences: dict[str, Known] = field(default_factory=dict)
    past: dict[str, Known] = field(default_factory=dict)
    gave: dict[str, set[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, str, int]]] = field(default_factory=dict)
    later: dict[str, set[str]] = field(default_factory=dict)
    names: dict[str, Model] = field(default_factory=dict)
    pending: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    """Run, task and rollout, and the items that were shown."""

    def fork(self) -> Model:
        return replace(self.copy(), pending={})

    def copy(self) -> Model:
        bare = copy.deepcopy(replace(self, names={}))  # what has a name does not change
        return replace(bare, names=dict(self.names))

    def append(self, draft: ExperienceDraft) -> None:
        id = identity(draft.task, draft.trajectories, run_id=draft.run_id)
        shown = tuple(dict.fromkeys(draft.shown))
        items = {new_item(lesson).id: lesson.content for lesson in draft.drafts}
        self.store(id, Known(draft.task.id, draft.run_id, draft.origin, shown, 0), items)

    def store(self, id: str, known: Known, items: dict[str, str]) -> None:
        """Append an experience with its items, by id."""
        self.pending = {key: shown for key, shown in self.pending.items() if key[:2] != (known.run, known.task)}
        if id in self.past:
            return
        self.seq += 1
        self.experiences[id] = self.past[id] = replace(known, seq=self.seq)
        for item_id, content in items.items():
            self.seq += 1
            self.texts[item_id] = content
            self.rows.setdefault(item_id, []).append((self.seq, id, self.seq))
            self.gave.setdefault(item_id, set()).add(id)

    def take(self, other: Model) -> None:
        """Append what another one holds, as an import does."""
        for id, known in list(other.experiences.items()):
            self.store(id, known, {item: other.texts[item] for item in other.items_of(id)})

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
        there = {owner for _, owner, _ in self.rows.get(new, ())}
        moved = [(owner, learned) for _, owner, learned in self.rows.pop(id) if owner not in there]
        self.seq += 1
        for number, (owner, learned) in enumerate(moved, 1):
            self.rows.setdefault(new, []).append((self.seq + number, owner, learned))
        self.seq += len(moved)
        self.texts[new] = content
        self.gave.setdefault(new, set()).update(owner for owner, _ in moved)
        self.later.setdefault(id, set()).add(new)
        return new

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
            self.pending = {key: shown for key, shown in self.pending.items() if not gone & set(shown)}
        going &= self.experiences.keys()
        gone &= self.rows.keys()
        hit = gone | {id for id, rows in self.rows.items() if any(owner in going for _, owner, _ in rows)}
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
        say = {owner for _, owner, _ in self.rows.get(id, ())}
        givers = self.gave[id] if descendants else say
        stay = (say or givers & self.experiences.keys()) - going
        repeat = {giver for giver in givers if descendants and id in self.past[giver].shown}
        return bool(givers & going) and (not stay or (bool(givers & going - repeat) and stay <= repeat))

    def items(self) -> list[tuple[int, str, str, list[str]]]:
        """Number, id, content and experiences of each item, in the order in which they were learned."""
        return [
            (rows[0][0], id, self.texts[id], [owner for _, owner, _ in sorted(rows, key=lambda row: row[2])])
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
    assert {result.items[0].id for result in found} == set(model.rows)
    assert all(result.items == (by_id[result.items[0].id],) for result in found)
    found = bank.retrieve("do it", k=1000)
    assert sorted(result.experience_id for result in found) == sorted(e for e in model.experiences if model.items_of(e))
    for result in found:
        assert list(result.items) == [by_id[id] for id in model.items_of(result.experience_id)]
    words = bank.retrieve("lesson", k=1000, unit="item", mode="lexical")
    assert {result.items[0].id for result in words} == set(model.rows)


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
