"""Several rollouts of one task as a contraster or a selector reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rb_dspy.schema import Trajectory, Verdict
from rb_dspy.steps.view import final_state, view

_HEAD = 30
"""Tokens of an attempt's head line, and of the words around its final state."""

_LEAST = 40
"""Fewest tokens of an attempt, however many there are."""


def listed(trajectories: Sequence[Trajectory], budget: int, remarks: Sequence[str]) -> str:
    """The transcripts, numbered from 1, in about ``budget`` tokens together; ``remarks``: what is said about each."""
    share = max(_LEAST, budget // max(1, len(trajectories)) - _HEAD)
    state = share // 8  # of the last observation, and as much of the answer
    return "\n\n".join(
        f"=== attempt {number}{f' ({remark})' if remark else ''} ===\n{view(trajectory, share - 2 * state)}\n"
        f"{final_state(trajectory, state)}"
        for number, (trajectory, remark) in enumerate(zip(trajectories, remarks, strict=True), 1)
    )


def judged(verdict: Verdict) -> str:
    """A verdict as a remark."""
    return f"judged: {verdict.label}"


def same_answers(trajectories: Sequence[Trajectory]) -> list[int]:
    """For each rollout, how many gave the answer that it gave, itself included; 0 where it gave none.

    Compared without regard to case and white space.
    """
    given = [answer_key(trajectory) for trajectory in trajectories]
    votes = Counter(answer for answer in given if answer is not None)
    return [0 if answer is None else votes[answer] for answer in given]


def answer_key(trajectory: Trajectory) -> str | None:
    """What makes two answers the same; None for no answer."""
    return None if trajectory.answer is None else " ".join(trajectory.answer.casefold().split())
