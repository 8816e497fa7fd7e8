"""Rankers for any memory system, which reorder what a retriever found, and may drop some of it.

The time filter of Memory-T1 (Elvin-Yiming-Du/Memory-T1) is not here. It takes the time that a question asks about, and
drops what happened at another. A bank does not know when something happened: it has the order in which it learned, and,
for display only, the time of a write, which is another in another run. ``Decay`` uses that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.errors import ConfigError, UnparseableOutput
from rb_dspy.memories.teach import numbers
from rb_dspy.schema import Retrieved
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import escape_markers
from rb_dspy.steps.working import Moment
from rb_dspy.text import cut

_LEAST = 20
"""Fewest tokens (estimated) of a candidate in a prompt."""


@dataclass(frozen=True)
class Decay:
    """Weighs scores by age: after ``half_life`` further experiences, half of a score is left.

    What was learned again is as old as the last time. Scores below zero count as zero. Older memories are moved back,
    never dropped.
    """

    half_life: float = 50.0

    def __post_init__(self) -> None:
        if not self.half_life > 0:
            raise ConfigError(f"Decay: half_life is {self.half_life!r}; expected a number of experiences above 0")

    def __call__(self, moment: Moment, found: Sequence[Retrieved], bank: MemoryBank) -> Sequence[Retrieved]:
        ages = bank.ages([item.id for each in found for item in each.items])
        weighed = [each.model_copy(update={"score": self._weighed(each, ages)}) for each in found]
        return sorted(weighed, key=lambda each: -each.score)  # equal scores keep their order

    def _weighed(self, found: Retrieved, ages: dict[str, int]) -> float:
        age = min((ages.get(item.id, 0) for item in found.items), default=0)
        return max(0.0, found.score) * math.pow(0.5, age / self.half_life)


class Sifted(dspy.Module):
    """The ``k`` best as a language model ranks them after it has reasoned about all; none, if it says that none helps.

    Also a reranker of a program: ``ReasoningBank(reranker=Sifted(3))``. The authors train a small model for it, on the
    success of the agent with the first n; we compile the prompt, or use it as it is.
    """

    def __init__(self, k: int = 10, config: DistillConfig | None = None) -> None:
        """``config``: settings of the call, which is in the role of the distiller."""
        super().__init__()
        self.k, self.config, self.predict = k, config or DistillConfig(), dspy.Predict(Sift)

    def forward(
        self, moment: Moment | str, found: Sequence[Retrieved], bank: MemoryBank | None = None
    ) -> Sequence[Retrieved]:
        """See ``recall.Ranker`` and ``protocols.Reranker``.

        Raises:
            UnparseableOutput: The answer could not be parsed, or ranks nothing that was offered.
            InfrastructureError: The call failed.
        """
        if not found:
            return []
        query = moment if isinstance(moment, str) else moment.task.instruction

        def inputs(max_tokens: int) -> dict[str, str]:
            share = max(_LEAST, max_tokens // len(found))
            candidates = [_candidate(number, each, share) for number, each in enumerate(found, 1)]
            return {"task": escape_markers(query), "candidates": "\n".join(candidates)}

        said = ask(self.predict, "distiller", self.config, inputs)
        chosen = numbers(said, "ranking", len(found))
        if said.ranking and not chosen:
            raise UnparseableOutput(f"the distiller's ranking is {said.ranking!r:.120}; expected numbers of candidates")
        return [found[number - 1] for number in chosen[: self.k]]


def _candidate(number: int, found: Retrieved, max_tokens: int) -> str:
    """A numbered candidate, whose further lines are indented, so that it cannot look like another."""
    texts = [text for item in found.items for text in (item.title, item.description, item.content) if text]
    return f"[{number}] " + "\n    ".join(cut(escape_markers("\n".join(texts)), max_tokens).splitlines())


class Sift(dspy.Signature):
    """Choose what helps with this task among things that were learned from earlier tasks.

    First reason about what the task needs, and which candidates have it. Then rank those, and leave out the others. If
    none helps, rank none.
    """

    task: str = dspy.InputField(desc="what is to be done")
    candidates: str = dspy.InputField(desc="what was learned, each with its number in front")
    reasoning: str = dspy.OutputField(desc="what the task needs, and which candidates have it")
    ranking: list[int] = dspy.OutputField(desc="numbers of the candidates that help, best first")
