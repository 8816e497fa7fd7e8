"""A bank as a plain Python object, slow and obvious, to hold the real one to."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field, replace

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import identity, new_item
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
    """One scope. ``rows``: item id -> the number and the experience of each live row, in order.

    ``past``, ``gave``: every experience there ever was, and which of them ever gave an item.
    """

    scope: str
    seq: int = 0
    experiences: dict[str, Known] = field(default_factory=dict)
    past: dict[str, Known] = field(default_factory=dict)
    gave: dict[str, set[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    log: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, Model] = field(default_factory=dict)

    def copy(self) -> Model:
        bare = copy.deepcopy(replace(self, names={}))  # what has a name does not change
        return replace(bare, names=dict(self.names))

    def append(self, draft: ExperienceDraft) -> None:
        id = identity(self.scope, draft.task, draft.trajectories, run_id=draft.run_id)
        if id in self.past:
            return
        self.seq += 1
        shown = tuple(dict.fromkeys(draft.shown))
        self.experiences[id] = self.past[id] = Known(draft.task.id, draft.run_id, draft.origin, shown, self.seq)
        self._tell("append", id)
        for lesson in dict.fromkeys(draft.drafts):
            item = new_item(self.scope, lesson)
            same = [(self.rows[other][0], other) for other, text in self.texts.items() if text == lesson.content]
            item_id = min(same)[1] if same else item.id
            if self.texts.get(item_id, lesson.content) != lesson.content:
                said = json.dumps(["item", id, item.digest], separators=(",", ":"))
                item_id = f"m{hashlib.sha256(said.encode()).hexdigest()[:20]}"
            self.seq += 1
            self.texts[item_id] = lesson.content
            self.rows.setdefault(item_id, []).append((self.seq, id))
            self.gave.setdefault(item_id, set()).add(id)
            self._tell("append", item_id)

    def twin(self, id: str, content: str) -> bool:
        """Whether another item says this."""
        return any(text == content for other, text in self.texts.items() if other != id)

    def edit(self, id: str, content: str) -> None:
        if self.texts[id] == content:
            return
        self.seq += 1
        self.texts[id] = content
        self.rows[id] = [(self.seq + number, owner) for number, (_, owner) in enumerate(self.rows[id], 1)]
        self.seq += len(self.rows[id])
        self._tell("edit", id)

    def remove_item(self, id: str, *, descendants: bool, kind: str) -> None:
        self._end(set(), {id} & self.gave.keys(), descendants=descendants, kind=kind)

    def remove_experiences(self, ids: set[str], *, descendants: bool, kind: str) -> None:
        self._end(ids if descendants else ids & self.experiences.keys(), set(), descendants=descendants, kind=kind)

    def _end(self, going: set[str], items: set[str], *, descendants: bool, kind: str) -> None:
        """End ``going`` and ``items``; with descendants what has ended already leads on to what has not."""
        while True:
            gone = items | {id for id in self.gave if self._lost(id, going, descendants=descendants)}
            more = {e for e, known in self.past.items() if descendants and gone & set(known.shown)}
            if more <= going:
                break
            going = going | more
        going &= self.experiences.keys()
        gone &= self.rows.keys()
        hit = gone | {id for id, rows in self.rows.items() if any(owner in going for _, owner in rows)}
        if not going and not hit:
            return
        self.seq += 1
        for id in sorted(hit | going):
            self._tell(kind, id)
        for id in gone:
            del self.rows[id], self.texts[id]
        for id in self.rows:
            self.rows[id] = [(seq, owner) for seq, owner in self.rows[id] if owner not in going]
        for id in going:
            del self.experiences[id]

    def _lost(self, id: str, going: set[str], *, descendants: bool) -> bool:
        """Whether an item goes with these experiences: those that only repeat what they were shown do not hold it."""
        say = {owner for _, owner in self.rows.get(id, ())}
        givers = self.gave[id] if descendants else say
        stay = (say or givers & self.experiences.keys()) - going
        repeat = {giver for giver in givers if descendants and id in self.past[giver].shown}
        return bool(givers & going) and (not stay or (bool(givers & going - repeat) and stay <= repeat))

    def _tell(self, kind: str, id: str) -> None:
        self.log.setdefault(id, []).append(kind)

    def items(self) -> list[tuple[int, str, str, list[str]]]:
        """Number, id, content and experiences of each item."""
        return sorted((rows[0][0], id, self.texts[id], [owner for _, owner in rows]) for id, rows in self.rows.items())

    def items_of(self, experience: str) -> list[str]:
        """Ids of an experience's items, in order."""
        owned = [(seq, id) for id, rows in self.rows.items() for seq, owner in rows if owner == experience]
        return [id for _, id in sorted(owned)]


def check(bank: MemoryBank, model: Model) -> None:
    """Everything that the bank says is what the model says."""
    items = bank.items()
    told = [(i.seq, i.id, i.content, [provenance.experience_id for provenance in i.provenances]) for i in items]
    assert told == model.items()
    assert len(bank) == len(model.rows)
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
    for id, kinds in model.log.items():
        changes = bank.history(id)
        assert [change.kind for change in changes] == kinds
        assert [change.seq for change in changes] == sorted({change.seq for change in changes})


def lessons(*numbers: int) -> tuple[MemoryDraft, ...]:
    return tuple(MemoryDraft(title="lesson", description="when", content=f"content {number}") for number in numbers)
