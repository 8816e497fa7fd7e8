"""Select: which of several rollouts is submitted?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import value
from rb_dspy.config import SelectConfig
from rb_dspy.errors import BackboneError, InputError, RBError, UnparseableOutput
from rb_dspy.schema import Label, Task, Trajectory, Verdict
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import escape_markers, number_attempts

_RANKS: dict[Label, int] = {"success": 2, "unknown": 1, "failure": 0}


@dataclass(frozen=True)
class Selection:
    """The chosen rollout.

    Attributes:
        index: Its position among the trajectories.
        analysis: The selector's explanation.
        votes: In how many orders each trajectory was chosen.
        note: Which calls gave no vote, and why.
    """

    index: int
    analysis: str = ""
    votes: tuple[int, ...] = ()
    note: str = ""

    @property
    def fallback(self) -> bool:
        """Whether no call gave a vote, so that verdicts or equal answers decided."""
        return bool(self.note) and not any(self.votes)


class Select(dspy.Module):
    """Best of n by one selector call (paper, section 3.3).

    Language models favor some positions in a list, so the order is shuffled per task, seeded by its id and ``seed``.
    With ``orders`` above one the selector is asked again with the list rotated by one, and votes are counted. Ties and
    failed calls are decided by the verdicts if the selector reads them, then by how many rollouts gave the same answer,
    then by the shuffled order.
    """

    def __init__(self, config: SelectConfig | None = None) -> None:
        super().__init__()
        self.config = config or SelectConfig()
        self.predict = dspy.Predict(signatures.Select)

    def forward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Selection:
        """Return the choice among one or more rollouts. ``verdicts`` are required if the selector reads them.

        Raises:
            BackboneError: The selector's language model cannot be used at all.
        """
        config, count = self.config, len(trajectories)
        if not count:
            raise InputError("select needs at least one trajectory, got none")
        if config.verdicts and (verdicts is None or len(verdicts) != count):
            raise InputError(f"select with verdicts needs {count} verdicts, got {len(verdicts or ())}")
        if count == 1:
            return Selection(0)
        shuffled = list(range(count))
        random.Random(f"{config.seed}/{task.id}").shuffle(shuffled)
        votes, analyses, notes = [0] * count, dict[int, str](), list[str]()
        for turn in range(min(config.orders, count)):
            order = [*shuffled[turn:], *shuffled[:turn]]
            labels = [verdicts[i] for i in order] if config.verdicts and verdicts else None
            try:
                place, analysis = self._ask(task, [trajectories[i] for i in order], labels)
            except BackboneError:
                raise
            except RBError as exc:
                notes.append(f"order {turn + 1}: {exc}")
            else:
                votes[order[place]] += 1
                analyses.setdefault(order[place], analysis)
        ranks = [_RANKS[each.label] for each in verdicts] if config.verdicts and verdicts else [0] * count
        equal = _equal_answers(trajectories)
        index = max(shuffled, key=lambda place: (votes[place], ranks[place], equal[place]))
        return Selection(index, analyses.get(index, ""), tuple(votes), "; ".join(notes))

    def _ask(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None
    ) -> tuple[int, str]:
        """Return the place of the selector's choice, and its analysis."""

        def inputs(max_tokens: int) -> dict[str, str]:
            candidates = number_attempts(trajectories, max_tokens, verdicts)
            return {"task": escape_markers(task.instruction), "candidates": candidates}

        said = ask(self.predict, "selector", self.config, inputs, rollouts=len(trajectories))
        choice = value(said, "choice", "selector")
        if not isinstance(choice, int) or not 1 <= choice <= len(trajectories):
            raise UnparseableOutput(f"the selector chose {choice!r:.40}; expected 1 to {len(trajectories)}")
        return choice - 1, str(said.get("analysis") or "")


def _equal_answers(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return how many rollouts gave each rollout's answer, itself included (case and spaces ignored); 0 without one."""
    keys = [None if each.answer is None else " ".join(each.answer.casefold().split()) for each in trajectories]
    counts = Counter(key for key in keys if key is not None)
    return [0 if key is None else counts[key] for key in keys]
