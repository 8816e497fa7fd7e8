"""Downstream credit: are tasks of the same kind solved more often with a lesson than without it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from rb_dspy.backbones.session import session
from rb_dspy.compile.stages import Program
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InfrastructureError, UnparseableOutput
from rb_dspy.schema import MemoryDraft, MemoryItem, Provenance, Retrieved, Task, Trajectory
from rb_dspy.steps import Memory
from rb_dspy.steps.memory import render


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

    Only the agent is asked: siblings are neither judged nor learned from. Both sides have the same rollout numbers, so
    what an LM samples by number is paired. All of it is left out of dspy's trace, as it is no part of what is compiled.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def without(self, task: Task, rollouts: int = 1) -> float | None:
        """How many of the rollouts solve ``task`` without lessons; None where nobody knows it of any.

        Raises like ``ReasoningBank``.
        """
        done = self._done(task, Memory(), rollouts)
        return None if done.untold else done.given

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
                pairs.append(self._done(task, memory, rollouts, without))
            except (InfrastructureError, UnparseableOutput) as exc:
                broken.append(f"task {task.id}: {exc}")
        return Credited(tuple(pairs), tuple(broken))

    def _done(self, task: Task, memory: Memory, rollouts: int, without: float = 0.0) -> Pair:
        scored = ScoredEnvironments(self._program.environments)
        solved, failed, untold = 0, None, True
        with session(self._program.backbones), dspy.context(trace=None, disable_history=True):
            for rollout in range(rollouts):
                trajectory: Trajectory = self._program.act(task, memory, scored, rollout)
                outcome = scored.truth(task.id, trajectory.rollout_id)
                if outcome is None:
                    continue
                untold = False
                if outcome.success:
                    solved += 1
                else:
                    failed = failed or trajectory
        return Pair(task, without, solved / rollouts, failed, untold)


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
