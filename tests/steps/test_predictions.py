"""Rollouts of DSPy's own agents, as they hand them over."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy.primitives.repl_types import REPLEntry

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Step, Task
from rb_dspy.errors import InvalidTrajectory
from rb_dspy.steps import as_trajectory
from rb_dspy.testing import Prompt, scripted_lm

TASK = Task(id="t", instruction="Find the capital.")
LOOK = Step(thought="A map.", action='look({"at": "map"})', observation="Paris is marked.")
FINISH = Step(thought="That is it.", action="finish({})", observation="Completed.")


def look(at: str) -> str:
    """Look at something."""
    return "Paris is marked."


def agent(prompt: Prompt) -> dict[str, Any]:
    """Looks at the map, then answers."""
    seen = "Paris is marked." in prompt.text
    if "next_tool_name" in prompt.wants:
        chosen = ("That is it.", "finish", {}) if seen else ("A map.", "look", {"at": "map"})
        return dict(zip(("next_thought", "next_tool_name", "next_tool_args"), chosen, strict=True))
    if "tool_calls" in prompt.wants:
        call = {"name": "submit", "args": {"answer": "Paris"}} if seen else {"name": "look", "args": {"at": "map"}}
        return {"next_thought": "That is it." if seen else "A map.", "tool_calls": {"tool_calls": [call]}}
    return {"reasoning": "It is marked.", "answer": "Paris"}


@pytest.fixture
def react() -> dspy.Prediction:
    with dspy.context(lm=scripted_lm(agent)):
        return dspy.ReAct("question -> answer", tools=[look])(question="Which is the capital?")


def test_react(react: dspy.Prediction) -> None:
    found = as_trajectory(TASK, react)
    assert found.steps == (LOOK, FINISH, Step(thought="It is marked.", action="Paris"))
    assert (found.answer, found.stop_reason) == ("Paris", "external")
    alone = as_trajectory(TASK, react.trajectory)
    assert (alone.steps, alone.answer) == ((LOOK, FINISH), None)
    assert as_trajectory(TASK, react).rollout_id == found.rollout_id != alone.rollout_id


def test_react_that_calls_tools_natively() -> None:
    with dspy.context(lm=scripted_lm(agent)):
        given = dspy.ReActV2("question -> answer", tools=[look])(question="Which is the capital?")
    found = as_trajectory(TASK, given)
    assert found.steps[0] == LOOK
    assert [step.action for step in found.steps[1:]] == ['submit({"answer": "Paris"})']
    assert (found.answer, found.first_observation) == ("Paris", "question: Which is the capital?")
    alone = as_trajectory(TASK, given.history)
    assert (alone.steps, alone.answer) == (found.steps, found.answer)


def test_a_module_that_only_answers() -> None:
    with dspy.context(lm=scripted_lm(agent)):
        given = dspy.ChainOfThought("question -> answer")(question="Which is the capital?")
    found = as_trajectory(TASK, given)
    assert found.steps == (Step(thought="It is marked.", action="Paris"),)
    assert found.answer == "Paris"


def test_turns_of_code() -> None:
    coded = {
        "observation_0": "Failed to parse the generated code: empty",
        "generated_code_1": "print(6 * 7)",
        "code_output_1": "42",
    }
    steps = (
        Step(action="", observation="Failed to parse the generated code: empty"),
        Step(action="print(6 * 7)", observation="42"),
    )
    assert as_trajectory(TASK, coded).steps == steps
    given = dspy.Prediction(trajectory=coded, answer=42, unit="none")
    assert as_trajectory(TASK, given).steps == steps
    assert as_trajectory(TASK, given).answer == '{"answer": 42, "unit": "none"}'
    turns = [REPLEntry(reasoning="Multiply.", code="print(6 * 7)", output="42").model_dump()]
    given = dspy.Prediction(trajectory=turns, answer="42", final_reasoning="Seen.")
    step = Step(thought="Multiply.", action="print(6 * 7)", observation="42")
    assert as_trajectory(TASK, given).steps == as_trajectory(TASK, turns).steps == (step,)


def test_what_tools_gave_stands_as_it_prints() -> None:
    given = {"tool_name_10": "b", "observation_10": {"x": [1]}, "tool_name_9": "a", "observation_9": ValueError("no")}
    found = as_trajectory(TASK, given)
    assert [(step.action, step.observation) for step in found.steps] == [("a({})", "no"), ("b({})", '{"x": [1]}')]


@pytest.mark.parametrize(
    "given",
    [
        dspy.Prediction(trajectory={"plan_0": "go"}, answer="x"),
        dspy.Prediction(trajectory="they went", answer="x"),
        dspy.Prediction(),
        dspy.History(messages=[]),
        dspy.History(messages=[{"question": "a", "answer": "b"}]),
        {"thought_0": "hm", "and": "more"},
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(given: Any) -> None:
    with pytest.raises(InvalidTrajectory) as caught:
        as_trajectory(TASK, given)
    assert "\n" not in str(caught.value)


def test_it_is_learned_from(bank: MemoryBank, react: dspy.Prediction) -> None:
    def learns(prompt: Prompt) -> dict[str, Any]:
        if "label" in prompt.wants:
            return {"reasons": "It says so.", "label": "success" if "Paris is marked." in prompt.text else "failure"}
        return {"analysis": "Maps.", "memory_items": [{"title": "Ask a map", "description": "", "content": "Look."}]}

    program = ReasoningBank(backbones=Backbones(agent=scripted_lm(learns)))
    done = program.learn("Which is the capital?", react, bank)
    assert done.verdicts[0].label == "success"
    assert program.learn("Which is the capital?", react, bank).id == done.id
    assert [item.title for item in bank.items()] == ["Ask a map"]
