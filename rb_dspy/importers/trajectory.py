"""Our own format: the fields of a trajectory, and steps of thought, action and observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pydantic

from rb_dspy.content import join, observed, verbatim
from rb_dspy.errors import InvalidTrajectory
from rb_dspy.schema import StopReason, Trajectory
from rb_dspy.text import first_error, without_thoughts

_TEXTS = {"thought": verbatim, "action": verbatim, "observation": observed}
_RLM = {"reasoning": "thought", "code": "action", "output": "observation"}
"""Names of the fields in the steps of ``dspy.RLM``."""
_SWE_AGENT = frozenset({"response", "state", "query", "messages", "execution_time", "extra_info"})
"""Further fields of SWE-agent's steps: the model's input and output, of which the thought and the action are parts."""


def read(fields: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of a trajectory. Its answer may be any JSON."""
    texts = {"answer": without_thoughts(verbatim(fields["answer"]))[0]} if fields.get("answer") is not None else {}
    steps = fields.get("steps", ())
    if not isinstance(steps, list | tuple):
        raise InvalidTrajectory(f"'steps' is a {type(steps).__name__}; expected a list of thought, action, observation")
    return {**fields, **texts, "steps": read_steps(steps)}


def is_step(step: Any) -> bool:
    """Whether this is a step of ours, SWE-agent or ``dspy.RLM``."""
    return isinstance(step, dict) and ("action" in step or {"code", "output"} <= step.keys() <= _RLM.keys())


def read_steps(steps: Sequence[Any]) -> list[Any]:
    """Read steps. Thought, action and observation may be any JSON."""
    return [_read_step(step) if isinstance(step, dict) else step for step in steps]


def beside_messages(state: dict[str, Any]) -> dict[str, Any]:
    """Return the trajectory's fields next to ``messages``; other fields of the state are ignored.

    LangGraph's ``structured_response`` or the submission of mini-swe-agent is the answer if there is no ``answer``.
    """
    names = ("task_id", "rollout_id", "first_observation")
    fields = {name: state[name] for name in names if isinstance(state.get(name), str)}
    info = state.get("info")
    submission = info.get("submission") if isinstance(info, dict) else None
    answer = state.get("answer", state.get("structured_response", submission or None))
    if answer is not None:
        fields["answer"] = without_thoughts(verbatim(answer))[0]
    if state.get("stop_reason") in get_args(StopReason):
        fields["stop_reason"] = state["stop_reason"]
    return fields


def _read_step(step: dict[str, Any]) -> dict[str, Any]:
    if "action" not in step and is_step(step):
        step = {name: step.get(field) for field, name in _RLM.items()}
    elif "response" in step and len(_SWE_AGENT.intersection(step)) > 1:
        unparsed = {} if step.get("thought") or step.get("action") else {"thought": step["response"]}
        step = {name: value for name, value in {**step, **unparsed}.items() if name not in _SWE_AGENT}
    fields = {name: _TEXTS[name](value) if name in _TEXTS else value for name, value in step.items()}
    action, thought = without_thoughts(fields.get("action", ""))
    return {**fields, "action": action, "thought": join([fields.get("thought", ""), thought])} if thought else fields


def validate(fields: dict[str, Any]) -> Trajectory:
    """Build a trajectory from its fields, of which at least a step or an answer is needed."""
    try:
        trajectory = Trajectory.model_validate(fields)
    except pydantic.ValidationError as exc:
        place, problem = first_error(exc)
        raise InvalidTrajectory(
            f"{place[:80]}: {problem}; expected fields of a Trajectory, with steps of thought, action and observation"
        ) from None
    if not trajectory.steps and trajectory.answer is None:
        raise InvalidTrajectory("the trajectory is empty; expected 'steps', 'messages' or an 'answer'")
    return trajectory
