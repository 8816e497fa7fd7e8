"""Retrieve: which lessons does this task get?"""

from __future__ import annotations

from functools import partial

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.concurrency import guarded
from rb_dspy.config import RetrieveConfig
from rb_dspy.errors import InfrastructureError
from rb_dspy.protocols import Reranker
from rb_dspy.schema import CANDIDATE, Retrieved, Task
from rb_dspy.steps.memory import Memory, render


class Retrieve(dspy.Module):
    """Retrieves the lessons nearest to the task's own text (paper, section 3.2).

    A task never retrieves a lesson that was first learned from a task with the same id, because a score would then
    measure repetition. The bank is only read. With a ``reranker`` the bank returns ``RetrieveConfig.candidates``
    matches, and the first ``k`` that the reranker returns are shown.
    """

    def __init__(self, config: RetrieveConfig | None = None, reranker: Reranker | None = None) -> None:
        super().__init__()
        self.config = config or RetrieveConfig()
        self.reranker = reranker

    def forward(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        """Return the lessons for ``task``; with ``own_lessons``, also those first learned from the same task."""
        config = self.config
        k = max(config.k, config.candidates) if self.reranker is not None and config.k else config.k
        floor = getattr(bank.embedder, "min_score", None) if config.mode == "dense" else None
        query = config.query_prefix + (task.key or task.instruction)
        find = partial(
            bank.retrieve,
            query if own_lessons else task.model_copy(update={"key": query}),
            k,
            unit=config.unit,
            min_score=floor if config.min_score is None else config.min_score,
            mode=config.mode,
            polarity=config.polarity,
        )
        retrieved = find()
        if any(item.kind == CANDIDATE for match in retrieved for item in match.items):
            retrieved = find(kinds=("lesson",))  # a search without kinds is quicker
        if (reranker := self.reranker) is not None and retrieved:
            ranked = guarded("the reranker", lambda: list(reranker(task.key or task.instruction, retrieved)))
            if not all(isinstance(each, Retrieved) for each in ranked):
                raise InfrastructureError("the reranker must return a list of the Retrieved objects passed to it")
            retrieved = ranked[: config.k]
        elif config.mode == "dense" and retrieved:
            best = next((match.score for match in retrieved if match.outranks), -1.0)
            least = min(best, config.min_share * best) - 1e-5  # scores may be negative
            retrieved = [match for match in retrieved if match.score >= least]
        items = (item for match in retrieved for item in match.items)
        return render(items, retrieved, config.max_tokens)
