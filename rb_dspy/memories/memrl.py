"""MemRL: similar memories first, and of these the ones that were followed by success."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import dspy

from rb_dspy.memories.credit import Q
from rb_dspy.memories.rankers import Weighed, standardized
from rb_dspy.memories.recall import Nearest, Parted, Recall, succeeded
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import CASE_TOKENS, Asked, Attempted, Rollout, case, sentence
from rb_dspy.schema import ItemDraft
from rb_dspy.steps.transcript import transcript

_NEAR = 10
"""Candidates by similarity, k1 (MemTensor/MemRL: 5 for ALFWorld, 10 elsewhere)."""
_SHOWN = 3
"""Of these the best by similarity and value, k2 (the same)."""
_WEIGHT, _CLIP = 0.5, 3.0
"""Weight of the value, and where its z-score is clipped (the same)."""


def memrl(base: Base) -> MemorySystem:
    """Scripts of successes and reflections on failures, ranked by similarity and a learned value.

    The authors standardize with constants per benchmark, and have a floor of similarity for each; we standardize among
    the candidates, and the floor is the embedder's. They join memories of nearly equal tasks; we do not.
    """
    parts = (
        ("These approaches worked:", succeeded),
        ("These attempts failed; avoid what they did:", lambda item: True),
    )
    ranker = Weighed(Q(), _SHOWN, _WEIGHT, value=partial(standardized, most=_CLIP))
    return MemorySystem(
        stores="a script of each success, a reflection on each failure, with the rollout",
        shows=f"{_SHOWN} of the {_NEAR} nearest by task, by similarity and learned value",
        source="MemTensor/MemRL",
        retrieve=Recall(base, Nearest(_NEAR, ("case",)), Parted(parts), rank=[ranker]),
        teach=Asked(base.distill, _memory, Script, Reflection),
        signal="outcome",
    )


def _memory(said: dspy.Prediction, attempt: Attempt) -> Iterator[ItemDraft]:
    rollout = transcript(attempt.trajectory, CASE_TOKENS)
    yield case(attempt, f"{sentence(said, 'advice')}\n{rollout}", label=attempt.verdict.label)


class Script(Attempted):
    """Write down how this attempt succeeded, as a script that the next agent can follow on a similar task."""

    advice: str = dspy.OutputField(desc="the steps that mattered, in order, as instructions")


class Reflection(Rollout):
    """This attempt failed. Write down why, and what the next agent should do instead on a similar task."""

    advice: str = dspy.OutputField(desc="the cause, and what to do instead, in a few sentences")
