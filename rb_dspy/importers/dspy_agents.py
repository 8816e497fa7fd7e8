"""Read results of DSPy agents: ``ReAct``, ``ReActV2``, ``CodeAct``, ``RLM``, ``ProgramOfThought`` and plain modules.

``ReAct`` and ``CodeAct`` number their fields (``thought_0``, ``tool_name_0``, ``observation_0``), ``RLM`` lists steps,
``ReActV2`` has a ``dspy.History`` of tool calls. ``ProgramOfThought`` and modules that are no agents return their
outputs, and at most a ``reasoning``.
"""

from __future__ import annotations

import re
from typing import Any

from rb_dspy.content import join, observed, verbatim
from rb_dspy.errors import InvalidTrajectory
from rb_dspy.importers.conversation import Conversation
from rb_dspy.text import without_thoughts

_NUMBERED = re.compile(r"(?:thought|tool_name|tool_args|observation|generated_code|code_output)_\d{1,6}")

_NOT_OUTPUTS = ("trajectory", "history", "reasoning", "final_reasoning", "termination_reason")
"""Fields of an agent's prediction that are not outputs of its signature."""

_TURN = ("next_thought", "tool_calls")
_SUBMIT = "submit"
"""The tool with which ``ReActV2`` submits its outputs."""


def is_numbered(fields: dict[str, Any]) -> bool:
    """Whether this is the trajectory of ``ReAct`` or ``CodeAct``."""
    return bool(fields) and all(map(_NUMBERED.fullmatch, fields))


def is_history(turns: list[dict[str, Any]]) -> bool:
    """Whether these are the messages of ``ReActV2``'s history."""
    return all(isinstance(_dict(turn.get("tool_calls")).get("tool_calls"), list) for turn in turns)


def read_prediction(fields: dict[str, Any], trajectory: dict[str, Any]) -> dict[str, Any]:
    """Read a prediction; ``trajectory`` has the fields that were already read from its turns.

    The answer is the output, or all outputs as JSON if there are several.
    """
    outputs = {name: value for name, value in fields.items() if name not in _NOT_OUTPUTS}
    answer, reasoning, steps = _answer(outputs), verbatim(fields.get("reasoning")), list(trajectory.get("steps", ()))
    if answer is not None and (reasoning or not steps):
        steps.append({"thought": reasoning, "action": answer, "observation": ""})
    return {**trajectory, "steps": steps, "answer": answer}


def numbered_steps(fields: dict[str, Any]) -> list[dict[str, str]]:
    """Read steps from numbered fields such as ``thought_0`` (``ReAct``, ``CodeAct``)."""
    turns: dict[int, dict[str, Any]] = {}
    for name, value in fields.items():
        field, _, number = name.rpartition("_")
        turns.setdefault(int(number), {})[field] = value
    return [_numbered_step(turns[number]) for number in sorted(turns)]


def read_history(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Read the history of ``ReActV2``: what it submits is the answer, its inputs are the first observation."""
    conversation = Conversation()
    submitted: dict[str, Any] = {}
    for i, turn in enumerate(turns):
        calls = turn["tool_calls"]["tool_calls"]
        results = _dict(turn["tool_calls"].get("tool_call_results")).get("tool_call_results") or []
        if not isinstance(results, list) or not all(isinstance(part, dict) for part in (*calls, *results)):
            raise InvalidTrajectory(f"message {i}: a tool call is not a dict; expected the history of ReActV2")
        submitted = next((_dict(call.get("args")) for call in calls if call.get("name") == _SUBMIT), {})
        inputs = [f"{name}: {verbatim(value)}" for name, value in turn.items() if name not in (*_TURN, *submitted)]
        conversation.observe(join(inputs))
        conversation.think(verbatim(turn.get("next_thought")))
        for place, call in enumerate(calls):
            result = results[place] if place < len(results) else {}
            value = ("[error] " if result.get("is_error") else "") + observed(result.get("value"))
            conversation.call(verbatim(call.get("name")), verbatim(call.get("args")), "", value)
    return {**conversation.fields(), "answer": _answer(submitted)}


def _numbered_step(turn: dict[str, Any]) -> dict[str, str]:
    action = verbatim(turn.get("generated_code"))
    if "tool_name" in turn:
        action = f"{verbatim(turn['tool_name'])}({verbatim(turn.get('tool_args', {}))})"
    observation = join(observed(turn.get(name)) for name in ("code_output", "observation"))
    return {"thought": verbatim(turn.get("thought")), "action": action, "observation": observation}


def _answer(outputs: dict[str, Any]) -> str | None:
    if not outputs:
        return None
    return without_thoughts(verbatim(next(iter(outputs.values())) if len(outputs) == 1 else outputs))[0]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
