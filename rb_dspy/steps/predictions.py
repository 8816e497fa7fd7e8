"""What DSPy's own agents hand over, as steps: ``ReAct``, ``ReActV2``, ``CodeAct``, ``RLM``, modules that only answer.

``ReAct`` and ``CodeAct`` number what happened (``thought_0``, ``tool_name_0``, ``observation_0``), ``RLM`` lists turns
of code, and ``ReActV2`` keeps a ``dspy.History`` of tool calls with their results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import dspy

from rb_dspy.errors import InvalidTrajectory
from rb_dspy.steps.contents import as_json

_NUMBERED = re.compile(r"(thought|tool_name|tool_args|observation|generated_code|code_output)_(\d+)").fullmatch

_ASIDE = ("trajectory", "history", "reasoning", "final_reasoning", "termination_reason")
"""What a prediction of an agent's holds besides the outputs of its signature."""

_TURN = ("next_thought", "tool_calls")
"""What a turn of ``ReActV2`` holds besides the inputs, and in its last one the outputs."""

_SUBMIT = "submit"
"""The tool that it ends with, given the outputs."""

Fields = dict[str, Any]
"""Those of a ``Trajectory`` that were found."""


def is_numbered(given: Mapping[str, Any]) -> bool:
    """Whether it is what ``ReAct`` and ``CodeAct`` call a trajectory."""
    return bool(given) and all(isinstance(name, str) and _NUMBERED(name) for name in given)


def is_code(given: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are the turns of an ``RLM``."""
    return all({"code", "output"} <= set(each) <= {"reasoning", "code", "output"} for each in given)


def read(given: dspy.Prediction) -> Fields:
    """Steps and answer of a prediction. The answer is its output, or all outputs as JSON where there are several.

    Raises ``InvalidTrajectory`` where neither tells what was done.
    """
    told = dict(given.items())
    outputs = {name: value for name, value in told.items() if name not in _ASIDE}
    answer = _answer(outputs)
    trajectory, history = told.get("trajectory"), told.get("history")
    fields: Fields = {"steps": []}
    if isinstance(trajectory, Mapping) and (is_numbered(trajectory) or not trajectory):
        fields["steps"] = numbered(trajectory)
    elif _is_list(trajectory) and is_code(trajectory):
        fields["steps"] = code(trajectory)
    elif isinstance(history, dspy.History):
        fields = tool_calls(history.messages)
    elif trajectory is not None:
        raise InvalidTrajectory(
            f"a prediction's trajectory is a {type(trajectory).__name__} that is not ReAct's, CodeAct's or RLM's;"
            " expected one of these, or give its steps as a list of thought, action, observation"
        )
    if answer is not None and (not fields["steps"] or told.get("reasoning")):
        # As in a conversation: what is said without a call of a tool is an action of its own.
        fields["steps"].append({"thought": _text(told.get("reasoning")), "action": answer, "observation": ""})
    return {**fields, "answer": answer}


def numbered(given: Mapping[str, Any]) -> list[Fields]:
    """The turns of ``ReAct`` and ``CodeAct``, as steps."""
    turns: dict[int, Fields] = {}
    for name, value in given.items():
        found = _NUMBERED(name)
        if found:
            turns.setdefault(int(found[2]), {})[found[1]] = value
    return [_step(turns[number]) for number in sorted(turns)]


def code(given: Sequence[Mapping[str, Any]]) -> list[Fields]:
    """The turns of an ``RLM``, as steps."""
    return [
        {"thought": _text(each.get("reasoning")), "action": _text(each["code"]), "observation": _text(each["output"])}
        for each in given
    ]


def tool_calls(events: Sequence[Mapping[str, Any]]) -> Fields:
    """The turns of ``ReActV2``, as steps. What the agent submits is the answer, what it is given what it saw first."""
    steps: list[Fields] = []
    opening: list[str] = []
    submitted: Mapping[str, Any] = {}
    for i, event in enumerate(events):
        calls = event.get("tool_calls")
        if not isinstance(calls, dspy.ToolCalls):
            raise InvalidTrajectory(f"message {i} of the history holds no tool calls; expected what ReActV2 gives")
        submitted = next((call.args for call in calls.tool_calls if call.name == _SUBMIT), {})
        others = [f"{name}: {_text(value)}" for name, value in event.items() if name not in (*_TURN, *submitted)]
        if steps:  # somebody went on with the conversation
            steps[-1]["observation"] = "\n".join(filter(None, [steps[-1]["observation"], *others]))
        else:
            opening += others
        steps += _called(_text(event.get("next_thought")), calls)
    return {"steps": steps, "first_observation": "\n".join(opening), "answer": _answer(submitted)}


def _called(thought: str, calls: dspy.ToolCalls) -> Iterator[Fields]:
    """A step for each call; those that were made together share the first one's thought."""
    told = calls.tool_call_results
    results = list(told.tool_call_results) if told is not None else []
    for place, call in enumerate(calls.tool_calls):
        result = results[place] if place < len(results) else None
        said = "" if result is None else f"{'[error] ' if result.is_error else ''}{_text(result.value)}"
        yield {"thought": "" if place else thought, "action": f"{call.name}({_text(call.args)})", "observation": said}


def _step(turn: Fields) -> Fields:
    action = _text(turn.get("generated_code"))
    if "tool_name" in turn:
        action = f"{_text(turn['tool_name'])}({_text(turn.get('tool_args', {}))})"
    seen = [_text(turn[name]) for name in ("code_output", "observation") if name in turn]
    return {"thought": _text(turn.get("thought")), "action": action, "observation": "\n".join(filter(None, seen))}


def _answer(outputs: Mapping[str, Any]) -> str | None:
    """The output, or all of them as JSON where there are several."""
    if not outputs:
        return None
    return _text(next(iter(outputs.values())) if len(outputs) == 1 else outputs)


def _text(value: Any) -> str:
    """A text as it is, dspy's reasoning as its text, what has a JSON form as that, anything else as it prints."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, dspy.Reasoning):
        return value.content or ""
    return as_json(value) if isinstance(value, Mapping | list | tuple | int | float) else str(value)


def _is_list(given: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(given, Sequence) and all(isinstance(each, Mapping) for each in given)
