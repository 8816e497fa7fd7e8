"""Retrieve: which lessons does this task get?"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Self

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import RetrieveConfig
from rb_dspy.protocols import Reranker
from rb_dspy.schema import Retrieved, Task
from rb_dspy.steps.ask import Do, Routine, adrive, drive, never_awaited
from rb_dspy.steps.copies import copied
from rb_dspy.steps.events import MemoryRetrieved, emit
from rb_dspy.steps.memory import Memory, render


class Retrieve(dspy.Module):
    """The nearest experiences by the task's own text (paper, section 3.2: top 1, no threshold).

    A task never retrieves a lesson that a task of its own id gave first, also where others gave it after being shown
    it, so that no score is its own echo; one that is done ``again``, on another occasion, does. What another task gave
    first, and this one once more, it may. Reads the bank, never writes to it. With a ``reranker`` the bank gives
    ``candidates``, and the first ``k`` of what the reranker makes of them are shown.
    """

    def __init__(self, config: RetrieveConfig | None = None, reranker: Reranker | None = None) -> None:
        super().__init__()
        self.config = config or RetrieveConfig()
        self.reranker = reranker

    def forward(self, task: Task, bank: MemoryBank, again: bool = False) -> Memory:
        """The lessons for ``task``."""
        return drive(self._routine(task, bank, again))

    async def aforward(self, task: Task, bank: MemoryBank, again: bool = False) -> Memory:
        """``forward`` for asyncio."""
        return await adrive(self._routine(task, bank, again))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copied(self, memo, self.reranker)

    def _routine(self, task: Task, bank: MemoryBank, again: bool) -> Routine[Memory]:
        config = self.config
        k = max(config.k, config.candidates) if self.reranker is not None and config.k else config.k
        query = task.instruction if again else task
        look = partial(bank.retrieve, query, k, unit=config.unit, min_score=config.min_score, mode=config.mode)
        found = yield Do("retrieval", look)
        if self.reranker is not None and found:
            found = yield Do("the reranker", partial(_reranked, self.reranker, task.instruction, found))
            found = found[: config.k]
        memory = render(found, config.max_tokens)
        emit(MemoryRetrieved(task, memory))
        return memory


def _reranked(reranker: Reranker, query: str, found: list[Retrieved]) -> list[Retrieved]:
    """What the reranker makes of ``found``. Raises ``TypeError`` where that is no list of them."""
    given: object = reranker(query, found)
    if isinstance(given, Iterable) and not isinstance(given, str | Retrieved):
        ranked = list(given)
        if all(isinstance(each, Retrieved) for each in ranked):
            return ranked
    never_awaited(given)
    raise TypeError(f"it gave {str(given)[:80]!r}; expected a list of what it was given")
