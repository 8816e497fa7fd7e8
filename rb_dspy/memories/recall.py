"""Which items an agent is shown, and in what form: parts that memory systems are composed of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from typing import Any, Protocol

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.system import Base, Credit
from rb_dspy.schema import CANDIDATE, MemoryItem, Polarity, Retrieved, Task
from rb_dspy.steps.memory import NO_MEMORY, Memory, render
from rb_dspy.steps.working import Context, ContextEdit, Moment, Position
from rb_dspy.text import cut, estimate_tokens


class Retriever(Protocol):
    """Finds items, best first. ``query``: the task, or its text if what was learned from it may be shown."""

    def __call__(self, moment: Moment, bank: MemoryBank, query: object) -> Sequence[Retrieved]: ...


class Ranker(Protocol):
    """Reorders what was found, and may drop some."""

    def __call__(self, moment: Moment, found: Sequence[Retrieved], bank: MemoryBank) -> Sequence[Retrieved]: ...


class Renderer(Protocol):
    """Writes what was found for the agent, in at most ``max_tokens`` tokens (estimated)."""

    def __call__(self, moment: Moment, found: Sequence[Retrieved], max_tokens: int) -> Memory: ...


class Recall(dspy.Module):
    """What an agent is shown: items that a retriever finds and rankers order, as a renderer writes them.

    Nothing that was learned from the agent's own task is shown, and nothing held and no candidate, whatever is found.
    """

    def __init__(
        self,
        base: Base,
        retriever: Retriever,
        renderer: Renderer,
        *,
        rank: Sequence[Ranker] = (),
        working: Callable[..., Sequence[ContextEdit]] | None = None,
    ) -> None:
        """``base``: its ``max_tokens`` is the cap; ``working(moment, context, bank=bank)``: see ``WorkingMemory``."""
        super().__init__()
        self.config = base.config
        self.retriever, self.renderer, self.rank, self.working = retriever, renderer, list(rank), working

    def forward(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        """See ``memories.Retrieval``."""
        return self._with_working(self.at(Moment(task), bank, own_lessons), bank, own_lessons)

    def again(self, task: Task, items: Sequence[MemoryItem], bank: MemoryBank, own_lessons: bool = False) -> Memory:
        """What a further rollout of ``task`` is shown if an earlier one was shown ``items`` before its first action."""
        memory = self.renderer(Moment(task), list(map(_found, items)), self.config.max_tokens)
        return self._with_working(memory, bank, own_lessons)

    def _with_working(self, memory: Memory, bank: MemoryBank, own_lessons: bool) -> Memory:
        return memory if self.working is None else replace(memory, working=partial(self.working, bank=bank))

    def at(
        self, moment: Moment, bank: MemoryBank, own_lessons: bool = False, *, without: Collection[str] = ()
    ) -> Memory:
        """What is found at a moment of a task, ``without`` the items of these ids."""
        task = moment.task
        found = self.retriever(moment, bank, (task.key or task.instruction) if own_lessons else task)
        may = [each for each in found if own_lessons or not any(bank.is_from(item, task.id) for item in each.items)]
        may = [each for each in may if all(item.id not in without and is_shown(item) for item in each.items)]
        for ranker in self.rank:
            may = list(ranker(moment, may, bank))
        return self.renderer(moment, may, self.config.max_tokens)


class EveryTurn(Recall):
    """A recall that is repeated before each action, by what the agent sees then.

    What is found stands before the observation, in at most ``max_tokens`` tokens, as what is found at first does; not
    again what the agent reads beside its task, and nothing after an action that changed nothing of what it sees.
    """

    def __init__(self, base: Base, retriever: Retriever, renderer: Renderer, max_tokens: int) -> None:
        super().__init__(base, retriever, renderer)
        self.config = self.config.model_copy(update={"max_tokens": min(max_tokens, self.config.max_tokens)})

    def _with_working(self, memory: Memory, bank: MemoryBank, own_lessons: bool) -> Memory:
        return replace(memory, working=partial(self.edits, bank=bank, own_lessons=own_lessons))

    def edits(
        self, moment: Moment, context: Context, *, bank: MemoryBank, own_lessons: bool = False
    ) -> Sequence[ContextEdit]:
        """See ``WorkingMemory``."""
        if len(moment.steps) > 1 and moment.steps[-2].observation == moment.observation:
            return ()
        memory = self.at(moment, bank, own_lessons, without=context.lessons)
        return [ContextEdit("show", tuple(item.id for item in memory.items), memory.block)] if memory else ()


def is_shown(item: MemoryItem) -> bool:
    """Whether agents may see an item at all: it is not held, and no candidate."""
    return item.level != "held" and item.kind != CANDIDATE


def tasks_of(items: Sequence[MemoryItem]) -> list[str]:
    """Ids of the tasks that ``items`` were learned from, in order."""
    given = (item.data.get("tasks") for item in items)
    named = [str(id) for each in given if isinstance(each, list) for id in each]
    return list(dict.fromkeys([*named, *(each.task_id for item in items for each in item.provenances)]))


@dataclass(frozen=True)
class Nearest:
    """The ``k`` items nearest to the task, or to what the agent sees now."""

    k: int
    kinds: Collection[str] | None = None
    min_score: float | None = None
    """Lowest cosine; None: the embedder's own floor."""
    polarity: Polarity | None = None
    by_observation: bool = False
    """Whether the query is what the agent sees now, instead of its task."""

    def __call__(self, moment: Moment, bank: MemoryBank, query: Any) -> Sequence[Retrieved]:
        floor = getattr(bank.embedder, "min_score", None) if self.min_score is None else self.min_score
        if self.by_observation and moment.observation:
            key = moment.observation
            query = key if isinstance(query, str) else moment.task.model_copy(update={"key": key})
        return bank.retrieve(query, self.k, "item", floor, polarity=self.polarity, kinds=self.kinds)


@dataclass(frozen=True)
class Recent:
    """The last ``k`` items, newest first; None: all of them."""

    k: int | None
    kinds: Collection[str] | None = None

    def __call__(self, moment: Moment, bank: MemoryBank, query: object) -> Sequence[Retrieved]:
        own = moment.task if isinstance(query, Task) else None
        may = filter(is_shown, reversed(bank.items(kinds=self.kinds)))
        others = (each for each in may if not (own and bank.is_from(each, own.id)))
        return [_found(item) for item in islice(others, self.k)]


def together(*retrievers: Retriever) -> Retriever:
    """What each of these finds, one after the other."""
    return lambda moment, bank, query: [found for each in retrievers for found in each(moment, bank, query)]


def succeeded(item: MemoryItem) -> bool:
    """Whether the rollout that an item was learned from was a success; of several rollouts, this one."""
    return item.data.get("label", item.polarity) == "success"


@dataclass(frozen=True)
class Listed:
    """Items in a numbered list. Long ones are cut, so that each has an equal share of the room."""

    heading: str = ""
    position: Position = "first_turn"
    whole: bool = False
    """Whether the last ones are left out instead."""

    def __call__(self, moment: Moment, found: Sequence[Retrieved], max_tokens: int) -> Memory:
        items = [item for each in found for item in each.items]
        room = max_tokens - estimate_tokens(f"{self.heading}\n")
        sizes = accumulate(estimate_tokens(_block(item, item.content)) + 1 for item in items)
        first = items[: max(1, sum(size <= room for size in sizes))] if self.whole else items
        memory = fitted(first, found, room)
        left = sum(estimate_tokens(_block(item, item.content)) for item in items[len(first) :])
        block = f"{self.heading}\n{memory.block}" if self.heading and memory else memory.block
        return replace(memory, block=block, position=self.position, beyond=memory.beyond + left)


@dataclass(frozen=True)
class Parted:
    """Items under headings, each in the first part whose test it passes; one that passes none is left out."""

    parts: Sequence[tuple[str, Callable[[MemoryItem], bool]]]

    def __call__(self, moment: Moment, found: Sequence[Retrieved], max_tokens: int) -> Memory:
        rest, shown = list(found), list[Memory]()
        for heading, test in self.parts:
            group = [each for each in rest if all(map(test, each.items))]
            rest = [each for each in rest if each not in group]
            shown += [Listed(heading)(moment, group, max_tokens * len(group) // len(found))] if group else []
        return Memory(
            tuple(found),
            tuple(item for each in shown for item in each.items),
            "\n".join(each.block for each in shown if each) or NO_MEMORY,
            parts=tuple(part for each in shown for part in each.parts),
            beyond=sum(each.beyond for each in shown),
        )


def fitted(items: Sequence[MemoryItem], found: Sequence[Retrieved], max_tokens: int) -> Memory:
    """The list of ``items`` in ``max_tokens``: those that are longer than their share are cut in the middle."""
    every = list({item.id: item for item in items}.values())
    whole = render(every, found)
    wanted = estimate_tokens(whole.block) if every else 0
    if wanted <= max_tokens:
        return whole
    rest, texts = max_tokens, dict[str, str]()
    for n, item in enumerate(sorted(every, key=lambda item: estimate_tokens(item.content))):
        share = rest // (len(every) - n)
        frame = estimate_tokens(render([item.model_copy(update={"content": ""})]).block) + _MARGIN
        # quoting and escaping add to each line, so what is cut may still be too long
        room = share - frame
        while room > 0 and estimate_tokens(_block(item, cut(item.content, room))) > share:
            room = room * 4 // 5
        texts[item.id] = cut(item.content, room) if room > 0 else ""
        rest -= estimate_tokens(_block(item, texts[item.id])) if texts[item.id] else 0
    fitting = [each.model_copy(update={"content": texts[each.id]}) for each in every if texts[each.id]]
    memory = render(fitting, found, max_tokens)
    shown = {item.id for item in memory.items}
    beyond = max(0, wanted - estimate_tokens(memory.block))
    return replace(memory, items=tuple(each for each in every if each.id in shown), beyond=beyond)


def written(title: str, text: str, found: Sequence[Retrieved], max_tokens: int) -> Memory:
    """A text that a language model wrote from what was found, quoted like an item; it counts as a use of all of it."""
    items = tuple({item.id: item for each in found for item in each.items}.values())
    if not items:
        return Memory(tuple(found))
    nobody = items[0].provenance.model_copy(update={"origin": ""})
    texts = {"title": title, "description": "", "content": text, "provenances": (nobody,)}
    memory = fitted([items[0].model_copy(update=texts)], found, max_tokens)
    return replace(memory, items=items if memory else (), parts=())


def worth(bank: MemoryBank, credit: Credit, ids: Collection[str]) -> dict[str, float]:
    """Id -> the credit of an item."""
    uses = bank.all_uses(ids)
    return {id: credit(uses[id]) for id in ids}


_MARGIN = 8
"""Tokens of a number and a mark of a cut."""


def _block(item: MemoryItem, content: str) -> str:
    return render([item.model_copy(update={"content": content})]).block


def _found(item: MemoryItem) -> Retrieved:
    first = item.provenance
    return Retrieved(
        score=0.0, experience_id=first.experience_id, task_id=first.task_id, instruction=item.title, items=(item,)
    )
