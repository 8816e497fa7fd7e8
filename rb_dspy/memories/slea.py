"""The library of SLEA-RL: strategies and warnings, found again at each turn by what the agent sees."""

from __future__ import annotations

from collections.abc import Iterable

import dspy
import pydantic

from rb_dspy.memories.credit import WinRate
from rb_dspy.memories.curators import Cap
from rb_dspy.memories.recall import EveryTurn, Listed, Nearest, together
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import Asked, Rollout, item, listed
from rb_dspy.schema import ItemDraft, MemoryDraft
from rb_dspy.signatures.draft import Note

_SHOWN = {"strategy": 2, "warning": 1}
"""Shown at a turn (kingofspace0wzz/slea-rl: 2 of the golden zone, 1 of the warning zone)."""
_LEARNED = {"strategy": 2, "warning": 1}
"""Learned from a rollout (the same: up to 10 and 5 from 5 trajectories)."""
_MOST = {"strategy": 300, "warning": 150}
"""Largest zones (the same: 100 principles, methods and examples; 50 mistakes, patterns and diagnostics)."""
_TOKENS = 228
"""800 characters (the same), in estimated tokens."""
_HEADING = "Lessons for what you see now:"


def slea(base: Base) -> MemorySystem:
    """Two strategies and a warning, by the task at first and then, before each action, by the observation.

    The authors extract with rules and rank by score unless embeddings are switched on; ours come from a call and are
    ranked by the bank. They drop what is 0.85 similar to a stored text, which drops what denies it; only equal texts
    are one here. In a full zone a new item takes the place of the worst one, if that is worse than an untried one. Left
    out: the six levels, clusters of observations, and the wait for 10 items. Theirs trains a policy
    by the true reward at the same time.
    """
    nearest = together(*(Nearest(k, (kind,), by_observation=True) for kind, k in _SHOWN.items()))
    return MemorySystem(
        stores="strategies of successes and warnings of failures, by the situation",
        shows="2 strategies and 1 warning nearest to the observation, before each action",
        source="kingofspace0wzz/slea-rl, arXiv 2603.18079",
        retrieve=EveryTurn(base, nearest, Listed(_HEADING), _TOKENS),
        teach=Asked(base.distill, _drafts, Extract, Extract),
        curate=[Cap(most, WinRate(), (kind,), spare_untried=True) for kind, most in _MOST.items()],
        signal="outcome",
    )


def _drafts(said: dspy.Prediction, attempt: Attempt) -> Iterable[ItemDraft]:  # noqa: ARG001
    for kind, field in (("strategy", "strategies"), ("warning", "warnings")):
        for each in listed(said, field, MemoryDraft)[: _LEARNED[kind]]:
            yield item(kind, each.title, each.content)


class Situation(Note):
    """What to do, or what to avoid, in a situation."""

    title: str = pydantic.Field(description="what the agent sees in this situation, in the environment's own words")
    content: str = pydantic.Field(description="one or two sentences: what to do then, or what goes wrong and why")


class Extract(Rollout):
    """Draw from this attempt what helps an agent in the same situation, at the moment when it sees it.

    Strategies: actions that worked, and facts that the environment told. Warnings: actions that failed or led nowhere,
    and how that shows. Copy names, codes and numbers exactly.
    """

    verdict: str = dspy.InputField(desc="how the attempt was judged")
    strategies: list[Situation] = dspy.OutputField(desc="up to two; none if nothing worked")
    warnings: list[Situation] = dspy.OutputField(desc="up to one; none if nothing went wrong")
