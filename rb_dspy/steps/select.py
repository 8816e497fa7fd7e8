"""Select: which of several rollouts is handed in?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import dspy

from rb_dspy import signatures
from rb_dspy.config import SelectConfig
from rb_dspy.errors import InfrastructureError, InputError, UnparseableOutput
from rb_dspy.schema import Label, Task, Trajectory, Verdict
from rb_dspy.steps.answered import choice, words
from rb_dspy.steps.ask import Ask, Routine, adrive, drive
from rb_dspy.steps.attempts import judged, listed, same_answers
from rb_dspy.steps.events import Selected, emit
from rb_dspy.steps.fit import fitted
from rb_dspy.steps.place import Place
from rb_dspy.steps.predict import Predict
from rb_dspy.steps.wanted import Sub, Together

_RANKS: dict[Label, int] = {"failure": 0, "unknown": 1, "success": 2}


@dataclass(frozen=True)
class Selection:
    """The rollout that was chosen. ``votes``: for each, in how many orders it was chosen; ``note``: what went wrong."""

    index: int
    analysis: str = ""
    votes: tuple[int, ...] = ()
    note: str = ""

    @property
    def fallback(self) -> bool:
        """Whether something else decided, since no call gave a vote: each broke, was unreadable or named no rollout."""
        return bool(self.note) and not any(self.votes)


class Select(dspy.Module):
    """Best of n by one selector call (paper, section 3.3), with the order of the rollouts shuffled.

    Language models favour places in a list, so the order is drawn anew for each task, from its id and the seed;
    ``orders`` above one asks again with the list turned by a place and counts votes, which cancels a fixed preference
    where there are as many orders as rollouts. A call that breaks, cannot be read, or names no rollout costs its vote,
    and the note tells.

    Among equal votes, and where there is none, a selector that is told verdicts falls back to them: to a rollout judged
    a success, else to one of which the judge does not know, else to a failure. Where nothing else decides, neither
    votes nor verdicts, agreement does: the rollout counts whose answer most rollouts gave, right or wrong, then the one
    that stood first in the shuffled order.
    """

    predict = Place()

    def __init__(self, config: SelectConfig | None = None, at_once: int | None = None) -> None:
        """``at_once``: calls at the same time; None: all orders."""
        super().__init__()
        self.config = config or SelectConfig()
        self.at_once = at_once
        self.predict = Predict(signatures.Select)

    def forward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Selection:
        """The choice among one or more rollouts. ``verdicts``, aligned, are needed where the selector is told them."""
        return drive(self._routine(task, trajectories, verdicts))

    async def aforward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Selection:
        """``forward`` for asyncio."""
        return await adrive(self._routine(task, trajectories, verdicts))

    def _routine(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None
    ) -> Routine[Selection]:
        config, count = self.config, len(trajectories)
        if not count:
            raise InputError(f"task {task.id}: no rollouts to choose from; give at least one")
        if config.verdicts and (verdicts is None or len(verdicts) != count):
            raise InputError(
                f"task {task.id}: {count} rollouts and {len(verdicts or ())} verdicts; a selector that is told verdicts"
                " needs one for each: judge them first"
            )
        if count == 1:
            return Selection(0, votes=(0,))
        agreeing = same_answers(trajectories)
        remarks = [self._remark(place, agreeing, verdicts) for place in range(count)]
        orders = _orders(task, count, config)
        jobs = [Sub(partial(self._asked, task, trajectories, remarks, order)) for order in orders]
        results = yield Together(jobs, self.at_once)
        votes: Counter[int] = Counter()
        analyses: dict[int, str] = {}
        unread: list[str] = []
        for order, result in zip(orders, results, strict=True):
            if isinstance(result, UnparseableOutput | InfrastructureError):
                unread.append(str(result))
            elif isinstance(result, Exception):
                raise result
            elif not 1 <= result[0] <= count:
                unread.append(f"the selector chose attempt {result[0]} of {count}")
            else:
                chosen = order[result[0] - 1]
                votes[chosen] += 1
                analyses.setdefault(chosen, result[1])
        standing = [_RANKS[verdicts[i].label] if config.verdicts and verdicts else 0 for i in range(count)]
        best = max(orders[0], key=lambda i: (votes[i], standing[i], agreeing[i]))  # of equal ones the first
        selection = Selection(
            best, analyses.get(best, ""), tuple(votes[i] for i in range(count)), "; ".join(dict.fromkeys(unread))
        )
        emit(Selected(task, trajectories[best].rollout_id, selection.analysis or selection.note))
        return selection

    def _asked(
        self, task: Task, trajectories: Sequence[Trajectory], remarks: Sequence[str], order: Sequence[int]
    ) -> Routine[tuple[int, str]]:
        """The number that the selector chooses among the rollouts in this order, and its analysis."""

        def ask(view_tokens: int) -> Ask:
            candidates = listed([trajectories[i] for i in order], view_tokens, [remarks[i] for i in order])
            return Ask(
                role="selector",
                predict=self.predict,
                inputs={"task": task.instruction, "candidates": candidates},
                temperature=self.config.temperature,
                max_tokens=self.config.max_tokens,
            )

        said = yield from fitted(ask, self.config.view_tokens * len(trajectories))
        return choice(said, "choice", int, "the number of an attempt"), words(said, "analysis")

    def _remark(self, place: int, agreeing: Sequence[int], verdicts: Sequence[Verdict] | None) -> str:
        said = [judged(verdicts[place])] if self.config.verdicts and verdicts else []
        if self.config.agreement and agreeing[place]:
            said.append(f"{agreeing[place]} of {len(agreeing)} attempts gave this answer")
        return "; ".join(said)


def _orders(task: Task, count: int, config: SelectConfig) -> list[list[int]]:
    """The shuffled order, and it turned by one place, by two ...; no more than there are places."""
    first = list(range(count))
    random.Random(f"{config.seed}/{task.id}").shuffle(first)
    return [[*first[turn:], *first[:turn]] for turn in range(min(config.orders, count))]
