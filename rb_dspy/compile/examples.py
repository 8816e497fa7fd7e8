"""Labelled examples of single steps: what the step is given, and beside it what an environment knows of the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import pydantic

from rb_dspy.compile.stages import Stage
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task, Trajectory, Verdict
from rb_dspy.steps import Memory
from rb_dspy.text import summary_line

_ROLLOUT: dict[str, Any] = {"task": Task, "trajectory": Trajectory}
_ROLLOUTS: dict[str, Any] = {"task": Task, "trajectories": tuple[Trajectory, ...], "verdicts": tuple[Verdict, ...]}

INPUTS: dict[Stage, dict[str, Any]] = {
    "judge": _ROLLOUT,
    "select": _ROLLOUTS,
    "agent": {"task": Task, "memory": Memory},
}
"""Stage -> name and type of what its module is called with."""

LABELS: dict[Stage, dict[str, Any]] = {
    "judge": {"success": bool, "reward": float, "decisive": int | None},
    "select": {"rewards": list[float]},
    "agent": {},
}
"""Stage -> name and type of the truth beside it.

``decisive``: number of the step that decided the rollout, from 1 on, where another rollout shows it.
"""

_KINDS = {
    stage: {name: pydantic.TypeAdapter(kind) for name, kind in {**INPUTS[stage], **LABELS[stage]}.items()}
    for stage in INPUTS
}


def judge_example(task: Task, trajectory: Trajectory, outcome: Outcome, decisive: int | None = None) -> Any:
    """Was it a success? The task is as the judge sees it."""
    return _example(
        "judge",
        task=task.without_ground_truth(),
        trajectory=trajectory,
        success=outcome.success,
        reward=outcome.reward,
        decisive=decisive,
    )


def select_example(
    task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict], rewards: Sequence[float]
) -> Any:
    """Which is to be handed in? ``rewards`` are aligned with ``trajectories``."""
    return _example(
        "select",
        task=task.without_ground_truth(),
        trajectories=tuple(trajectories),
        verdicts=tuple(verdicts),
        rewards=list(rewards),
    )


def agent_example(task: Task, memory: Memory) -> Any:
    """A task to be done with these lessons; the task keeps its ground truth, which only the environment reads."""
    return _example("agent", task=task, memory=memory)


def to_plain(stage: Stage, example: Any) -> dict[str, Any]:
    """``example`` as JSON values."""
    return {name: kind.dump_python(example[name], mode="json") for name, kind in _KINDS[stage].items()}


def from_plain(stage: Stage, plain: Mapping[str, Any]) -> Any:
    """What ``to_plain`` was given. Raises ``InputError`` for a field that is missing or cannot be read."""
    fields: dict[str, Any] = {}
    for name, kind in _KINDS[stage].items():
        if name not in plain:
            raise InputError(f"an example for {stage!r} lacks {name!r}; harvest again with this version")
        try:
            fields[name] = kind.validate_python(plain[name])
        except (pydantic.ValidationError, InputError) as exc:
            why = f"{name!r} cannot be read ({summary_line(exc, 200)})"
            raise InputError(f"an example for {stage!r}: {why}; harvest again") from None
    return _example(stage, **fields)


def _example(stage: Stage, **fields: Any) -> Any:
    return dspy.Example(**fields).with_inputs(*INPUTS[stage])
