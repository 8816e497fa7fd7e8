"""MemRL: similar memories first, and of these the ones that were followed by success."""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from rb_dspy.backbones import value
from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.credit import Q
from rb_dspy.memories.recall import Nearest, Parted, Recall, Weighed, succeeded
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import CASE_TOKENS, asked, case, model_of
from rb_dspy.schema import ItemDraft
from rb_dspy.steps import Distilled
from rb_dspy.steps.transcript import transcript

_NEAR = 10
"""Candidates by similarity, k1 (MemTensor/MemRL: 5 for ALFWorld, 10 elsewhere)."""
_SHOWN = 3
"""Of these the best by similarity and value, k2 (the same)."""
_WEIGHT = 0.5
"""Weight of the value, whose z-score is clipped at 3 (the same)."""


def memrl(base: Base) -> MemorySystem:
    """Scripts of successes and reflections on failures, ranked by similarity and a learned value.

    The authors standardize with constants per benchmark, and have a floor of similarity for each; we standardize among
    the candidates, and the floor is the embedder's. They join memories of nearly equal tasks; we do not.
    """
    parts = (
        ("These approaches worked:", succeeded),
        ("These attempts failed; avoid what they did:", lambda item: True),
    )
    return MemorySystem(
        stores="a script of each success, a reflection on each failure, with the rollout",
        shows=f"{_SHOWN} of the {_NEAR} nearest by task, by similarity and learned value",
        source="MemTensor/MemRL",
        retrieve=Recall(base, Nearest(_NEAR, ("case",)), Parted(parts), rank=[Weighed(Q(), _SHOWN, _WEIGHT)]),
        teach=Remember(base.distill),
        signal="outcome",
    )


class Remember(dspy.Module):
    """A script or a reflection, and the rollout that it is about."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config = config
        self.success, self.failure = dspy.Predict(Script), dspy.Predict(Reflection)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        known = [each for each in attempts if each.verdict.label != "unknown"]
        drafts = tuple(dict.fromkeys(map(self._memory, known)))
        return Distilled(drafts, "" if drafts else "nothing learned: not judged", model_of(self.success))

    def _memory(self, attempt: Attempt) -> ItemDraft:
        label = attempt.verdict.label
        predict = self.success if label == "success" else self.failure
        said = value(asked(predict, self.config, attempt), "advice", "distiller")
        rollout = transcript(attempt.trajectory, CASE_TOKENS)
        return case(attempt, f"{said}\n{rollout}", label=label)


class Script(dspy.Signature):
    """Write down how this attempt succeeded, as a script that the next agent can follow on a similar task."""

    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the attempt")
    advice: str = dspy.OutputField(desc="the steps that mattered, in order, as instructions")


class Reflection(dspy.Signature):
    """This attempt failed. Write down why, and what the next agent should do instead on a similar task."""

    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the attempt")
    environment_said: str = dspy.InputField(desc="what the environment said, in order")
    advice: str = dspy.OutputField(desc="the cause, and what to do instead, in a few sentences")
