"""Which calls of a run are fit to be shown as demonstrations.

Optimizers take all calls of a run that was rated well for good ones. A stream in which most tasks were solved still
holds the actions of rollouts that failed, and verdicts that were wrong; shown as examples, they would teach that.
"""

from __future__ import annotations

from typing import Any

from rb_dspy.steps.transcript import final_state
from rb_dspy.stream import TaskResult


def fit(prediction: Any, step: tuple[Any, dict[str, Any], Any]) -> bool:
    """Whether ``step`` of a trace, made for ``prediction``, is worth showing; true where nothing is known against it.

    Not so are calls for a task that was not solved, actions of rollouts that were not handed in, and verdicts that the
    environment contradicts.
    """
    report = prediction.get("report")
    if report is None:
        return True
    _, inputs, outputs = step
    text = _task_of(inputs)
    found = [result for result in report.results if result.task.instruction == text]
    return not text or any(_fits(result, inputs, outputs) for result in found)


def _fits(result: TaskResult, inputs: dict[str, Any], outputs: Any) -> bool:
    if result.prediction is None or result.outcome is None or not result.outcome.success:
        return False
    if "action" in outputs:
        turn = len(_turns(inputs))
        taken = result.prediction.trajectory.steps
        return turn < len(taken) and taken[turn].action == str(outputs["action"]).strip()
    if "label" in outputs:
        return any(
            outcome is not None
            and outcome.success == (outputs["label"] == "success")
            and final_state(rollout) == inputs.get("final_state")
            for rollout, outcome in zip(result.rollouts, result.outcomes, strict=False)
        )
    return True


def _task_of(inputs: dict[str, Any]) -> str:
    """The task's text; an agent's later turns have it in the first of their history."""
    turns = _turns(inputs)
    return str(inputs.get("task") or (turns[0].get("task") if turns else "") or "")


def _turns(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = getattr(inputs.get("history"), "messages", [])
    return turns
