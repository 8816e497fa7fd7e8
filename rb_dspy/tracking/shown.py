"""How our values look in a trace: plain JSON, short where a value only goes in, whole where it comes out.

What has no place in a trace has none here: banks, environments, language models, ground truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy
import pydantic

from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps import Distilled, Memory, Selection


def going_in(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a step was called with, under short names."""
    found: dict[str, Any] = {}
    for value in (*inputs.get("args", ()), *inputs.get("kwargs", {}).values()):
        match value:
            case Task():
                found["task"] = value.instruction
            case Trajectory():
                found["rollout"] = _of(value)
            case Verdict():
                found["verdict"] = value.label
            case Memory():
                found["memory"] = [item.title for item in value.items]
            case [*values] if values and all(isinstance(each, Trajectory) for each in values):
                found["rollouts"] = [_of(each) for each in values]
            case [*values] if values and all(isinstance(each, Verdict) for each in values):
                found["verdicts"] = [each.label for each in values]
    return found


def coming_out(value: Any) -> Any:
    """What a step gave."""
    match value:
        case Memory():
            return [
                {
                    "page_content": f"{item.title}\n{item.content}",
                    "metadata": {"polarity": item.polarity, "from_task": item.provenance.task_id},
                    "id": item.id,
                }
                for item in value.items
            ]
        case Trajectory():
            return {**_of(value), "steps": [step.model_dump() for step in value.steps]}
        case Distilled():
            return {"drafts": [draft.model_dump() for draft in value.drafts], "note": value.note}
        case Selection():
            return {"index": value.index, "analysis": value.analysis, "votes": list(value.votes), "note": value.note}
        case pydantic.BaseModel():
            return value.model_dump(mode="json")
        case _:
            trajectories = getattr(value, "trajectories", None)
            return {"rollouts": [_of(each) for each in trajectories]} if trajectories else None


def handed_in(prediction: dspy.Prediction) -> dict[str, Any]:
    """What a program gave for a task."""
    return {
        **({"answer": prediction.answer} if prediction.answer is not None else {}),
        **({"verdict": prediction.verdict.label} if prediction.verdict is not None else {}),
        "steps": len(prediction.trajectory.steps),
        "learned": [item.title for item in prediction.memory_items],
    }


def _of(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "rollout": trajectory.rollout_id,
        "steps": len(trajectory.steps),
        "answer": trajectory.answer,
        "ended": trajectory.stop_reason,
    }
