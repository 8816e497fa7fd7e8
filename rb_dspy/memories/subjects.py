"""Lessons about one subject: the same again (``Dedup``), a newer value (``Supersede``), or said twice (``Consensus``).

Likeness only finds candidates, because a denied lesson is nearer to the original than a paraphrase is. Words decide:
which names and numbers two texts have, whether one denies, and where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.curators import retire
from rb_dspy.memories.system import Curated
from rb_dspy.schema import ItemDraft, MemoryDraft, MemoryItem, Task

_NEAR = 5
"""Stored items that a draft is compared with."""
_DENIALS = frozenset(
    [
        "cannot",
        "don",
        "doesn",
        "except",
        "false",
        "if",
        "incorrect",
        "isn",
        "never",
        "no",
        "not",
        "unless",
        "until",
        "wasn",
        "without",
        "wrong",
    ]
)
"""Words that turn a sentence into another one."""
_SHARE = 0.6
"""Two texts have the same subject if they have this share of their words in common, in order."""
_LONGEST = 4
"""Words of a value."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Dedup:
    """Stores a lesson that says the same as a stored one as that one again: one item, which another task confirms.

    The cosine has to be at least ``near``, both need the same names, numbers and denials, and the stored one all other
    words of the new one, endings aside. ReMe drops at a cosine of 0.5, which users report loses too much.
    """

    near: float = 0.85
    kinds: Collection[str] | None = None

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        return replace(curated, drafts=tuple(dict.fromkeys(self._known(draft, bank) for draft in curated.drafts)))

    def _known(self, draft: MemoryDraft, bank: MemoryBank) -> MemoryDraft:
        same = (
            each
            for each in neighbours(draft, bank, self.near, self.kinds)
            if says_the_same(draft.content, each.content)
        )
        known = next(same, None)
        return draft if known is None else as_draft(known)


@dataclass(frozen=True)
class Supersede:
    """Retires a stored lesson if a draft says another value about the same subject: what was learned later is true.

    Two texts that differ in one place have the same subject if the place names nothing that the task asks about: after
    an alert of falcon, "falcon is owned by Oslo" replaces "falcon is owned by Turin", and neither replaces "nimbus is
    owned by Turin". An item is valid from the experience that gave it to the entry ``retire`` in its history, which
    names what took its place.
    """

    near: float = 0.5
    kinds: Collection[str] | None = None

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        for draft in curated.drafts:
            old = [
                each
                for each in neighbours(draft, bank, self.near, self.kinds)
                if is_newer(draft.content, each.content, task.instruction)
            ]
            curated = retire(curated, old, f"superseded: {draft.content[:200]}")
        return curated


@dataclass(frozen=True)
class Consensus:
    """Holds a lesson back until a second task says the same (EDV, arXiv 2606.24428: verify before insertion).

    Until then it is an item of the kind ``candidate``, which systems that name the kinds they show do not show.
    """

    near: float = 0.85
    tasks: int = 2
    """How many tasks have to say it."""
    first: Dedup = field(default_factory=lambda: Dedup(kinds=("candidate",)))

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        drafts, done = list[MemoryDraft](), list[MemoryItem]()
        for draft in curated.drafts:
            if any(
                says_the_same(draft.content, each.content) for each in neighbours(draft, bank, self.near, ("lesson",))
            ):
                drafts.append(draft)
                continue
            same = [
                each
                for each in neighbours(draft, bank, self.near, ("candidate",))
                if says_the_same(draft.content, each.content)
            ]
            tasks = {each.task_id for item in same for each in item.provenances} | {task.id}
            if len(tasks) >= self.tasks:
                done += same
                drafts.append(draft)
            else:
                drafts.append(candidate(same[0] if same else draft))
        return retire(replace(curated, drafts=tuple(dict.fromkeys(drafts))), done, f"said by {self.tasks} tasks")


def neighbours(
    draft: MemoryDraft, bank: MemoryBank, near: float, kinds: Collection[str] | None
) -> Iterator[MemoryItem]:
    """The stored items that are most like a draft, nearest first."""
    for each in bank.retrieve(draft.content, _NEAR, "item", near, kinds=kinds):
        yield from each.items


def says_the_same(one: str, other: str) -> bool:
    """Whether ``one`` says nothing that ``other`` does not: the same names, numbers and denials, and no other word."""
    return _marked(one) == _marked(other) and _stems(one) <= _stems(other)


def is_newer(new: str, old: str, asked: str) -> bool:
    """Whether ``new`` says another value about the subject of ``old``; ``asked``: the task that taught it."""
    ours, theirs = _WORD.findall(new), _WORD.findall(old)
    blocks = SequenceMatcher(
        None, [each.casefold() for each in ours], [each.casefold() for each in theirs], autojunk=False
    ).get_opcodes()
    places = [(ours[a:b], theirs[c:d]) for kind, a, b, c, d in blocks if kind != "equal"]
    same = sum(b - a for kind, a, b, _, _ in blocks if kind == "equal")
    if len(places) != 1 or same < _SHARE * max(len(ours), len(theirs)):
        return False
    value, before = places[0]
    if not 0 < len(value) <= _LONGEST or not 0 < len(before) <= _LONGEST:
        return False
    subject = {word.casefold() for word in _WORD.findall(asked)}
    kept = {word.casefold() for word in ours} - {word.casefold() for word in value}
    names_it = {word for word in kept & subject if len(word) > 3}
    return bool(names_it) and not subject & {word.casefold() for word in (*value, *before)}


def as_draft(item: MemoryItem) -> MemoryDraft:
    """A draft that a bank stores as the same item."""
    texts = {"title": item.title, "description": item.description, "content": item.content}
    is_plain = item.kind == "lesson" and not item.data
    return MemoryDraft(**texts) if is_plain else ItemDraft(**texts, kind=item.kind, data=item.data)


def candidate(draft: MemoryDraft | MemoryItem) -> ItemDraft:
    """``draft`` as something that is not shown yet."""
    return ItemDraft(title=draft.title, description=draft.description, content=draft.content, kind="candidate")


def _marked(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names and numbers of a text, and its denials."""
    words = _WORD.findall(text)
    named = {
        each.casefold() for n, each in enumerate(words) if any(map(str.isdigit, each)) or (n and each != each.lower())
    }
    return frozenset(named), frozenset(each.casefold() for each in words) & _DENIALS


def _stems(text: str) -> frozenset[str]:
    return frozenset(each.casefold()[:5] for each in _WORD.findall(text) if len(each) > 3)
