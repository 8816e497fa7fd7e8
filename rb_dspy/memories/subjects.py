"""Lessons about one subject: the same again (``Dedup``), a newer value (``Supersede``), or said twice (``Consensus``).

Likeness only finds candidates, because a denied lesson is nearer to the original than a paraphrase is. Words decide:
which names and numbers two texts have, whether one denies, and where they differ.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import ClassVar

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.store.tables import embedded_text
from rb_dspy.memories.curators import kind_of, retire
from rb_dspy.memories.system import Curated
from rb_dspy.schema import CANDIDATE, ItemDraft, MemoryDraft, MemoryItem, Task
from rb_dspy.steps.statements import DENIALS, QUALIFIERS, WORD

_NEAR = 5
"""Stored items that a draft is compared with. Our choice (wangyu-ustc/Mem-alpha searches up to 20)."""
_DENIALS = DENIALS | QUALIFIERS | {"without"}
"""Words that turn a sentence into another one."""
_SHARE = 0.6
"""Two texts have the same subject if they have this share of their words in common, in order."""
_LONGEST = 4
"""Words of a value."""


@dataclass(frozen=True)
class Dedup:
    """Stores a lesson that says the same as a stored one as that one again: one item, which another task confirms.

    The cosine has to be at least ``near``, both need the same names, numbers and denials, and the stored one all other
    words of the new one, endings aside. ReMe drops at a cosine of 0.5, which users report loses too much.
    """

    near: float = 0.85
    kinds: Collection[str] | None = None

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        same = {each: repeated(each, bank, self.near, self.kinds)[:1] for each in curated.drafts}
        drafts = (as_draft(known[0]) if known else draft for draft, known in same.items())
        return replace(curated, drafts=tuple(dict.fromkeys(drafts)))


@dataclass(frozen=True)
class Supersede:
    """Retires a stored lesson if a draft says another value about the same subject: what was learned later is true.

    Two texts that differ only in their last words have the same subject if these name nothing that the task asks about:
    after an alert of falcon, "falcon is owned by Oslo" replaces "falcon is owned by Turin", and neither replaces
    "nimbus is owned by Turin". An item is valid from the experience that gave it to the entry ``retire`` in its
    history, which names what took its place.
    """

    near: float = 0.5
    kinds: Collection[str] | None = None

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        for draft in (each for each in curated.drafts if kind_of(each) != CANDIDATE):
            near = neighbours(draft, bank, self.near, self.kinds)
            old = [each for each in near if is_newer(draft.content, each.content, task.instruction)]
            curated = retire(curated, old, f"superseded: {draft.content[:200]}")
        return curated


@dataclass(frozen=True)
class Consensus:
    """Holds a lesson back until a second task says the same (EDV, arXiv 2606.24428: verify before insertion).

    Until then it is an item of the kind ``candidate``, which is not shown. Items of other kinds than lessons pass. In a
    name such as ``bank+supersede+consensus`` it is called first, so that what nobody confirmed retires nothing.
    """

    near: float = 0.85
    tasks: int = 2
    """How many tasks have to say it."""
    first: ClassVar[bool] = True

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        drafts, done = list[MemoryDraft](), list[MemoryItem]()
        for draft in curated.drafts:
            if kind_of(draft) != "lesson":
                drafts.append(draft)
                continue
            same = repeated(draft, bank, self.near, (CANDIDATE,))
            tasks = {each.task_id for item in same for each in item.provenances} | {task.id}
            if repeated(draft, bank, self.near, ("lesson",)) or len(tasks) >= self.tasks:
                done += same
                drafts.append(draft)
            else:
                drafts.append(candidate(same[0] if same else draft))
        return retire(replace(curated, drafts=tuple(dict.fromkeys(drafts))), done, f"said by {self.tasks} tasks")


def neighbours(
    draft: MemoryDraft, bank: MemoryBank, near: float | None, kinds: Collection[str] | None
) -> list[MemoryItem]:
    """The stored items that are most like a draft, nearest first; by the texts that items of its kind are found by.

    ``near``: the lowest cosine; None: the embedder's own floor.
    """
    near = getattr(bank.embedder, "min_score", None) if near is None else near
    text = embedded_text(kind_of(draft), draft.title, draft.description, draft.content)
    return [item for found in bank.retrieve(text, _NEAR, "item", near, kinds=kinds) for item in found.items]


def repeated(draft: MemoryDraft, bank: MemoryBank, near: float, kinds: Collection[str] | None) -> list[MemoryItem]:
    """The stored items that say all that a draft says."""
    return [each for each in neighbours(draft, bank, near, kinds) if says_the_same(draft.content, each.content)]


def says_the_same(one: str, other: str) -> bool:
    """Whether ``one`` says nothing that ``other`` does not: the same names, numbers and denials, and no other word."""
    return _marked(one) == _marked(other) and _stems(one) <= _stems(other)


def is_newer(new: str, old: str, asked: str) -> bool:
    """Whether ``new`` says another value about the subject of ``old``; ``asked``: the task that taught it."""
    ours, theirs, subject = ([word.casefold() for word in WORD.findall(text)] for text in (new, old, asked))
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    places = [(ours[a:b], theirs[c:d]) for kind, a, b, c, d in blocks if kind != "equal"]
    same = sum(b - a for kind, a, b, _, _ in blocks if kind == "equal")
    if len(places) != 1 or same < _SHARE * max(len(ours), len(theirs)):
        return False
    value, before = places[0]
    if ours[len(ours) - len(value) :] != value or theirs[len(theirs) - len(before) :] != before:
        return False  # what differs in the middle may be the subject
    names_it = any(len(word) > 3 and word in subject for word in {*ours} - {*value})
    is_value = 0 < len(value) <= _LONGEST and 0 < len(before) <= _LONGEST
    return is_value and names_it and not {*subject} & {*value, *before}


def as_draft(item: MemoryItem) -> MemoryDraft:
    """A draft that a bank stores as the same item."""
    texts = {"title": item.title, "description": item.description, "content": item.content}
    is_plain = item.kind == "lesson" and not item.data
    return MemoryDraft(**texts) if is_plain else ItemDraft(**texts, kind=item.kind, data=item.data)


def candidate(draft: MemoryDraft | MemoryItem) -> ItemDraft:
    """``draft`` as something that is not shown yet."""
    return ItemDraft(title=draft.title, description=draft.description, content=draft.content, kind=CANDIDATE)


def _marked(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names and numbers of a text, and its denials."""
    words = WORD.findall(text)
    named = {
        each.casefold() for n, each in enumerate(words) if any(map(str.isdigit, each)) or (n and each != each.lower())
    }
    return frozenset(named), frozenset(each.casefold() for each in words) & _DENIALS


def _stems(text: str) -> frozenset[str]:
    return frozenset(each.casefold()[:5] for each in WORD.findall(text) if len(each) > 3)
