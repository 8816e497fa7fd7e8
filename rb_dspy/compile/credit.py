"""Downstream credit: are tasks of the same kind solved more often with a lesson than without it?

Estimated is, for the lessons of an example, by how much they raise the agent's chance to solve its siblings, as a mean
over them: the share of rollouts that solve one with the lessons, less the share without (``baseline``). Over examples
it is a mean over those that have siblings with room (``rb_dspy.compile.siblings``): what lessons spoil where all
siblings are solved without them is not in it.

Bias: none by choice, since which examples there are hangs on other rollouts than are compared. Lessons that an agent
ignores get 0 on average; no lessons get exactly that. A sibling that breaks with lessons counts on neither side; one of
which nobody knows how it ended with them is not solved, which can only be to their disadvantage.

Noise: great. Where half of the rollouts solve a task, the credit of an example with 3 siblings and a rollout a side has
a standard error of 0.4. The baselines are drawn once a harvest: their noise is the same for all lessons, so it does not
tell one from another, but it does stand between lessons and none.

Cost: ``rollouts`` a sibling for all lessons that differ; without lessons as many once a harvest, and up to as many more
to see which siblings have room. Both sides have the same rollout numbers: what an LM samples by number is paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import dspy

from rb_dspy.backbones.session import session
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InfrastructureError, UnparseableOutput
from rb_dspy.matts import BankProgram
from rb_dspy.schema import MemoryDraft, MemoryItem, Outcome, Provenance, Retrieved, Task, Trajectory
from rb_dspy.steps import Memory
from rb_dspy.steps.memory import render
from rb_dspy.steps.player import heat


@dataclass(frozen=True)
class Pair:
    """One sibling, done without the lessons and with them: how many of the rollouts solved it, in [0, 1].

    Without them somebody knew how it ended. Where nobody does with them, that is not solved: else lessons would gain by
    what an environment cannot tell of them.
    """

    task: Task
    without: float
    given: float
    failed: Trajectory | None = None
    """A rollout that failed with the lessons."""
    untold: bool = False
    """Whether nobody knows of any rollout with the lessons how it ended."""


@dataclass(frozen=True)
class Credited:
    """What lessons did for siblings. ``broken``: siblings that could not be done, and why; they do not count."""

    pairs: tuple[Pair, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def credit(self) -> float:
        """Mean of given less without, in [-1, 1]; 0 where nothing could be compared."""
        return sum(pair.given - pair.without for pair in self.pairs) / len(self.pairs) if self.pairs else 0.0

    @property
    def score(self) -> float:
        """``credit`` in [0, 1]: a half is no effect."""
        return (self.credit + 1) / 2


class Credit:
    """Does siblings with the agent of ``program``; as Complementary RL and MemSifter do.

    Only the agent is asked: siblings are neither judged nor learned from. All of it is left out of dspy's trace, as it
    is no part of what is compiled. ``on_rollout`` is called after every rollout that came to its end.
    """

    def __init__(self, program: BankProgram, on_rollout: Callable[[], None] = lambda: None) -> None:
        self._program = program
        self._on_rollout = on_rollout

    def draws(self) -> bool:
        """Whether another rollout of the agent may end otherwise: not at temperature 0, in an environment that is the
        same for all of them. Raises ``BackboneError`` where there is no agent."""
        act = self._program.act
        with session(self._program.backbones):
            return heat("agent", act.predict, act.config.temperature)[0] != 0

    def without(self, task: Task, rollouts: int = 1) -> float | None:
        """How many of the rollouts solve ``task`` without lessons; None where nobody knows it of any.

        Raises like ``ReasoningBank``.
        """
        done = self._pair(task, Memory(), rollouts)
        return None if done.untold else done.given

    def solved(self, task: Task, rollouts: int = 1) -> bool | None:
        """Whether as many rollouts, others than those of ``without``, all solve ``task`` without lessons.

        None where nobody knows it of any. It ends with the first that fails. Raises like ``ReasoningBank``.
        """
        known = []
        for _, outcome in self._done(task, Memory(), range(rollouts, 2 * rollouts)):
            if outcome is not None and not outcome.success:
                return False
            known.append(outcome is not None)
        return all(known) if any(known) else None

    def of(
        self, drafts: Sequence[MemoryDraft], siblings: Sequence[Task], baseline: Sequence[float], rollouts: int = 1
    ) -> Credited:
        """What ``drafts`` do for ``siblings``; ``baseline``, aligned, is what ``without`` gave for each.

        They are shown as they would be out of a bank. No drafts change nothing, so nobody is asked. Raises what would
        break every sibling, a missing language model for one.
        """
        memory = shown(drafts, self._program.retrieve.config.max_tokens)
        if not memory:
            same = zip(siblings, baseline, strict=True)
            return Credited(tuple(Pair(task, without, without) for task, without in same))
        pairs, broken = [], []
        for task, without in zip(siblings, baseline, strict=True):
            try:
                pairs.append(self._pair(task, memory, rollouts, without))
            except (InfrastructureError, UnparseableOutput) as exc:
                broken.append(f"task {task.id}: {exc}")
        return Credited(tuple(pairs), tuple(broken))

    def _pair(self, task: Task, memory: Memory, rollouts: int, without: float = 0.0) -> Pair:
        done = list(self._done(task, memory, range(rollouts)))
        known = [(trajectory, outcome.success) for trajectory, outcome in done if outcome is not None]
        failed = next((trajectory for trajectory, success in known if not success), None)
        return Pair(task, without, sum(success for _, success in known) / rollouts, failed, untold=not known)

    def _done(self, task: Task, memory: Memory, numbers: Iterable[int]) -> Iterator[tuple[Trajectory, Outcome | None]]:
        """The rollouts of these numbers, each when it is asked for."""
        for number in numbers:
            scored = ScoredEnvironments(self._program.environments)
            with session(self._program.backbones), dspy.context(trace=None, disable_history=True):
                trajectory: Trajectory = self._program.act(task, memory, scored, number)
            self._on_rollout()
            yield trajectory, scored.truth(task.id, trajectory.rollout_id)


def shown(drafts: Sequence[MemoryDraft], max_tokens: int) -> Memory:
    """``drafts`` as an agent gets them when they are items of a bank."""
    provenances = (Provenance(experience_id="", task_id=""),)
    items = tuple(
        MemoryItem(
            id=f"draft-{number}",
            scope="credit",
            seq=number,
            title=draft.title,
            description=draft.description,
            content=draft.content,
            polarity="success",
            provenances=provenances,
        )
        for number, draft in enumerate(drafts, 1)
    )
    return render([Retrieved(score=1.0, experience_id="", task_id="", instruction="", items=items)], max_tokens)
