"""What came of a task, for scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rb_dspy.stream import TaskResult


def as_json(result: TaskResult) -> dict[str, object]:
    """The line of a task, as ``rb-dspy run --json`` prints it: its row, in which some things are whole, and more."""
    found = result.prediction
    return {
        **result.row(),
        "error": result.error or None,
        "verdict": found.verdict if found else None,
        "outcome": result.outcome,
        "recalled": [item.id for item in found.memory.items] if found else [],
        "learned": list(found.memory_items) if found else [],
        "usage": result.usage,
        "scaling": _scaling(result),
    }


def _scaling(result: TaskResult) -> dict[str, Any] | None:
    """The rollouts of a task that was done several times, with ground truth where it is known."""
    found = result.prediction
    if found is None or "trajectories" not in found:
        return None
    outcomes = result.outcomes or (None,) * len(result.rollouts)
    return {
        "handed_in": found.trajectory.rollout_id,
        "analysis": found.selection.analysis,
        "votes": found.selection.votes,
        "note": found.selection.note,
        "launched": found.launched,
        "lost": [asdict(lost) for lost in found.lost],
        "rollouts": [
            {
                "id": rollout.rollout_id,
                "answer": rollout.answer,
                "steps": len(rollout.steps),
                "stop_reason": rollout.stop_reason,
                "verdict": verdict,
                "outcome": outcome,
            }
            for rollout, verdict, outcome in zip(result.rollouts, found.verdicts, outcomes, strict=True)
        ],
        "passes": result.passes,
    }
