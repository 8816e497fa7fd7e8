"""What DSPy's own agents return."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from dspy.utils import DummyLM

from rb_dspy.errors import InvalidTrajectory
from rb_dspy.importers import to_trajectory
from rb_dspy.schema import Step, Task, Trajectory

TASK = Task(id="t", instruction="Find the capital.")
ASKED = {"question": "Which is the capital?"}
LOOK = Step(thought="A map.", action='look({"at": "map"})', observation="Paris is marked.")


def look(at: str) -> str:
    """Look at something."""
    return f"{'Paris' if at == 'map' else 'Nothing'} is marked."


class Interpreter:
    """Runs no code: prints 42, then submits the answer."""

    def __init__(self) -> None:
        self.tools: dict[str, Any] = {}
        self.turns = 0

    def start(self) -> None: ...

    def shutdown(self) -> None: ...

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        self.turns += 1
        if "SUBMIT" in code:
            return dspy.primitives.FinalOutput({"answer": "42"})
        return "42"


@pytest.fixture
def react() -> dspy.Prediction:
    answers = [
        {"next_thought": "A map.", "next_tool_name": "look", "next_tool_args": '{"at": "map"}'},
        {"next_thought": "That is it.", "next_tool_name": "finish", "next_tool_args": "{}"},
        {"reasoning": "It is marked.", "answer": "Paris"},
    ]
    with dspy.context(lm=DummyLM(answers)):
        return dspy.ReAct("question -> answer", tools=[look])(**ASKED)


def test_react(react: dspy.Prediction) -> None:
    trajectory = to_trajectory(TASK, react)
    finish = Step(thought="That is it.", action="finish({})", observation="Completed.")
    assert trajectory.steps == (LOOK, finish, Step(thought="It is marked.", action="Paris"))
    assert (trajectory.answer, trajectory.stop_reason) == ("Paris", "external")
    alone = to_trajectory(TASK, react.trajectory)
    assert (alone.steps, alone.answer) == ((LOOK, finish), None)
    assert to_trajectory(TASK, react).rollout_id == trajectory.rollout_id != alone.rollout_id
    saved = json.loads(json.dumps(react.toDict()))
    assert to_trajectory(TASK, saved) == trajectory


@pytest.mark.skipif(not hasattr(dspy, "ReActV2"), reason="this dspy has no ReActV2")
def test_react_v2() -> None:
    def calls(*named: tuple[str, dict[str, str]]) -> str:
        return json.dumps({"tool_calls": [{"name": name, "args": args} for name, args in named]})

    answers = [
        {"next_thought": "A map.", "tool_calls": calls(("look", {"at": "map"}), ("look", {"at": "sky"}), ("fly", {}))},
        {"next_thought": "That is it.", "tool_calls": calls(("submit", {"answer": "Paris"}))},
    ]
    with dspy.context(lm=DummyLM(answers)):
        prediction = dspy.ReActV2("question -> answer", tools=[look])(**ASKED)
    trajectory = to_trajectory(TASK, prediction)
    assert trajectory.steps[:2] == (LOOK, Step(action='look({"at": "sky"})', observation="Nothing is marked."))
    assert [step.action for step in trajectory.steps[2:]] == ["fly({})", 'submit({"answer": "Paris"})']
    assert trajectory.steps[2].observation.startswith("[error]")
    assert (trajectory.answer, trajectory.first_observation) == ("Paris", "question: Which is the capital?")
    alone = to_trajectory(TASK, prediction.history)
    assert (alone.steps, alone.answer) == (trajectory.steps, trajectory.answer)


def test_rlm() -> None:
    answers = [
        {"reasoning": "Multiply.", "code": "print(6 * 7)"},
        {"reasoning": "Hand in.", "code": "SUBMIT(answer='42')"},
    ]
    with dspy.context(lm=DummyLM(answers)):
        prediction = dspy.RLM("question -> answer", interpreter_factory=Interpreter)(**ASKED)
    trajectory = to_trajectory(TASK, prediction)
    assert [(step.thought, step.action) for step in trajectory.steps] == [
        ("Multiply.", "print(6 * 7)"),
        ("Hand in.", "SUBMIT(answer='42')"),
    ]
    assert "42" in trajectory.steps[0].observation
    assert trajectory.answer == "42"
    assert to_trajectory(TASK, prediction.trajectory).steps == trajectory.steps


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_program_of_thought() -> None:
    answers = [
        {"reasoning": "Multiply.", "generated_code": "SUBMIT({'answer': '42'})"},
        {"reasoning": "Printed.", "answer": "42"},
    ]
    with dspy.context(lm=DummyLM(answers)):
        prediction = dspy.ProgramOfThought("question -> answer", interpreter_factory=Interpreter)(**ASKED)
    trajectory = to_trajectory(TASK, prediction)
    assert (trajectory.steps, trajectory.answer) == ((Step(thought="Printed.", action="42"),), "42")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_code_act() -> None:
    answers = [
        {"generated_code": "x = y = 1", "finished": "False"},
        {"generated_code": "look('map')", "finished": "True"},
        {"reasoning": "It is marked.", "answer": "Paris"},
    ]
    with dspy.context(lm=DummyLM(answers)):
        agent = dspy.CodeAct("question -> answer", tools=[look], interpreter_factory=Interpreter)
        prediction = agent(**ASKED)
    trajectory = to_trajectory(TASK, prediction)
    assert (trajectory.steps[0].action, bool(trajectory.steps[0].observation)) == ("", True)
    assert trajectory.steps[1].action.strip() == "look('map')"
    assert "42" in trajectory.steps[1].observation
    assert trajectory.steps[2] == Step(thought="It is marked.", action="Paris")


def test_a_module_that_only_answers() -> None:
    with dspy.context(lm=DummyLM([{"reasoning": "It is marked.", "answer": "Paris"}])):
        prediction = dspy.ChainOfThought("question -> answer")(**ASKED)
    trajectory = to_trajectory(TASK, prediction)
    assert (trajectory.steps, trajectory.answer) == ((Step(thought="It is marked.", action="Paris"),), "Paris")


def test_several_outputs_are_json() -> None:
    trajectory = to_trajectory(TASK, dspy.Prediction(answer=42, unit="none"))
    assert trajectory.answer == '{"answer": 42, "unit": "none"}'
    assert trajectory.steps == (Step(action=trajectory.answer),)


def test_observations_that_are_not_text() -> None:
    turns = {"tool_name_10": "b", "observation_10": {"x": [1]}, "tool_name_9": "a", "observation_9": ValueError("no")}
    trajectory = to_trajectory(TASK, turns)
    assert [(step.action, step.observation) for step in trajectory.steps] == [("a({})", "no"), ("b({})", '{"x": [1]}')]


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (
            [{"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}, {"type": "text", "text": "A map."}],
            "[image]\nA map.",
        ),
        (dspy.Image("data:image/png;base64,aGVsbG8="), "[image]"),
        ({"content": [{"type": "text", "text": "A map."}], "isError": False}, "A map."),
        ([1, "x"], '[1, "x"]'),
        ([], "[]"),
    ],
)
def test_the_parts_of_an_observation_are_read(observation: Any, text: str) -> None:
    turns = {"thought_0": "", "tool_name_0": "look", "tool_args_0": {}, "observation_0": observation}
    for rollout in (turns, [{"action": "look({})", "observation": observation}]):
        assert to_trajectory(TASK, rollout).steps == (Step(action="look({})", observation=text),)


def test_an_agent_that_returns_messages_or_a_trajectory_of_ours() -> None:
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "Paris"}]
    trajectory = to_trajectory(TASK, dspy.Prediction(trajectory=messages, answer="Lyon"))
    assert (trajectory.steps, trajectory.answer) == ((Step(action="Paris"),), "Lyon")
    ours = Trajectory(task_id="t", steps=(LOOK,), rollout_id="7")
    assert to_trajectory(TASK, dspy.Prediction(trajectory=ours, answer="Lyon")) is ours


@pytest.mark.parametrize(
    "rollout",
    [
        dspy.Prediction(trajectory={"plan_0": "go"}, answer="x"),
        dspy.Prediction(trajectory="they went", answer="x"),
        dspy.Prediction(),
        dspy.History(messages=[]),
        dspy.History(messages=[{"question": "a", "answer": "b"}]),
        {"thought_0": "hm", "and": "more"},
        [{"tool_calls": {"tool_calls": [7]}}],
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(rollout: Any) -> None:
    with pytest.raises(InvalidTrajectory) as caught:
        to_trajectory(TASK, rollout)
    assert "\n" not in str(caught.value)
