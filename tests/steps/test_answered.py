"""What a module in a predictor's place gives that a step cannot use: a note or an abstention, never the run's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dspy
import pydantic
import pytest

from rb_dspy import MemoryBank, ReasoningBank, signatures
from rb_dspy.backbones import Backbones
from rb_dspy.config import ActConfig
from rb_dspy.errors import ConfigError
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Contrast, Distill, Distilled, Judge, Memory, Refine, Select, Selection
from rb_dspy.stream import run_stream
from rb_dspy.testing import Corridor, Lock, Prompt, Reply, scripted_lm
from tests.worlds import answers, backbones, corridor, item, lock

TASK = Task(id="t", instruction="Find the gold.")
ROLLOUTS = [Trajectory(task_id="t", rollout_id=str(n), steps=(Step(action=f"dig {n}"),)) for n in range(2)]
GOOD = {**item("Look first", "Look behind the mirror first."), "evidence": [1]}


class Says(dspy.Module):
    """Gives what it was made with, whatever it is asked."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = given

    def forward(self, **inputs: Any) -> Any:
        return self.given

    async def aforward(self, **inputs: Any) -> Any:
        return self.given


def said(**fields: Any) -> Says:
    return Says(dspy.Prediction(**fields))


def distilled(step: str, place: Any) -> Distilled:
    with backbones().use():
        if step == "contrast":
            contrast = Contrast()
            contrast.predict = place
            return contrast(TASK, ROLLOUTS)
        distill = Distill()
        distill.success = distill.failure = place
        return distill(TASK, ROLLOUTS[0], Verdict(label="failure"))


@pytest.mark.parametrize("step", ["distill", "contrast"])
@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (said(analysis="Hm.", memory_items=None), "None"),
        (said(analysis="Hm."), "None"),
        (Says(None), "None"),
        (said(memory_items="Look first."), "'Look first.'"),
        (said(memory_items=7), "7"),
        (said(memory_items={"a": "b\n" * 200}), "{'a': 'b"),
    ],
)
def test_what_is_no_list_of_lessons_gives_none_but_a_note(step: str, place: Any, shown: str) -> None:
    found = distilled(step, place)
    assert found.drafts == ()
    word = {"distill": "distilled", "contrast": "contrasted"}[step]
    assert found.note.startswith(f"not {word}: memory_items is {shown}")
    assert found.note.endswith("; expected a list of lessons with title, description and content")
    assert "\n" not in found.note
    assert len(found.note) < 200


class Lesson(pydantic.BaseModel):
    """Somebody's own."""

    title: str = "Look first"
    description: str = ""
    content: str = "Look behind the mirror first."
    evidence: tuple[int, ...] = (1,)


@pytest.mark.parametrize("step", ["distill", "contrast"])
@pytest.mark.parametrize(
    ("given", "dropped"), [([GOOD], 0), ((GOOD,), 0), ([Lesson()], 0), ([GOOD, None], 1), ([7, Lesson()], 1)]
)
def test_lessons_of_another_type_are_read(step: str, given: Any, dropped: int) -> None:
    found = distilled(step, said(memory_items=given))
    assert [(draft.title, draft.content) for draft in found.drafts] == [(GOOD["title"], GOOD["content"])]
    assert len(found.dropped) == dropped


def test_a_distiller_that_gives_no_lessons_does_not_end_a_stream(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    program.distill.failure = said(analysis="Hm.", memory_items=None)
    report = run_stream(program, [lock("a", n) for n in (1, 2)], bank, run_id="r")
    assert [result.error for result in report.results] == ["", ""]
    assert all("memory_items is None" in each.note for each in bank.experiences())


@pytest.mark.parametrize("choice", [None, "the second", 2.5, [1]])
def test_a_selector_that_names_no_number_has_no_vote(choice: Any) -> None:
    with backbones().use():
        select = Select()
        select.predict = said(choice=choice)
        found: Selection = select(TASK, ROLLOUTS)
        assert found.fallback
        assert found.note == f"choice is {choice!r}; expected the number of an attempt"
        select.predict = said(choice="2")  # without an analysis
        assert not select(TASK, ROLLOUTS).fallback


def test_a_check_that_decides_nothing_confirms() -> None:
    with Backbones(agent=scripted_lm(answers)).use():
        refine = Refine()
        refine.first = said(findings=None, decision="who knows")
        found = refine(Act(ActConfig(max_steps=1)), corridor(length=5), Memory(), Corridor.make, 2)
    (check,) = found.trajectories[0].checks
    assert check.decision == "confirm"
    assert check.findings.startswith("not checked: decision is 'who knows'; expected confirm or ")


@pytest.mark.parametrize("label", ["Success!", None, True])
def test_a_judge_that_gives_no_label_abstains(label: Any) -> None:
    with backbones().use():
        judge = Judge()
        judge.predict = said(label=label)
        assert judge(TASK, ROLLOUTS[0]) == Verdict(
            label="unknown", reasons=f"label is {label!r}; expected success or failure"
        )
        judge.predict = said(label="failure", reasons=["step 1", "step 2"])
        assert judge(TASK, ROLLOUTS[0]) == Verdict(label="failure", reasons='["step 1","step 2"]')


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (said(thought="On.", next_action="forward"), "thought, next_action"),
        (said(), "nothing"),
        (Says(None), "NoneType"),
        (Says("forward"), "str"),
    ],
)
@pytest.mark.parametrize("kind", ["ReasoningBank", "parallel", "sequential", "stream", "asyncio"])
def test_an_agent_without_an_action_is_refused_before_it_does_anything(
    bank: MemoryBank, place: Any, shown: str, kind: str
) -> None:
    made: list[Unmoved] = []

    class Unmoved(Corridor):
        closed = False

        def step(self, action: str) -> tuple[str, bool]:
            raise AssertionError("nothing was to be done")

        def close(self) -> None:
            self.closed = True

    def make(task: Task, rollout_id: str) -> Unmoved:
        made.append(Unmoved())
        return made[-1]

    alone = ReasoningBank(backbones=backbones(), environments=make)
    alone.act.predict = place
    calls: dict[str, Callable[[], object]] = {
        "ReasoningBank": lambda: alone(task=corridor(), bank=bank),
        "parallel": lambda: MaTTS(alone, k=3)(task=corridor(), bank=bank),
        "sequential": lambda: MaTTS(alone, k=3, mode="sequential")(task=corridor(), bank=bank),
        "stream": lambda: run_stream(alone, [corridor("a"), corridor("b")], bank, run_id="r"),
        "asyncio": lambda: asyncio.run(alone.acall(task=corridor(), bank=bank)),
    }
    with pytest.raises(ConfigError) as found:
        calls[kind]()
    expected = f"the agent's module gave {shown}, and no 'action'; give its signature an output field of that name"
    assert str(found.value) == expected
    assert made
    assert all(each.closed for each in made)
    assert (len(bank), bank.pending()) == (0, [])


def test_an_agent_without_a_thought_acts(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Corridor.make)
    program.act.predict = said(action="forward")
    done = program(task=corridor(length=2), bank=bank)
    assert [(step.thought, step.action) for step in done.trajectory.steps] == [("", "forward")] * 2


def look(place: str) -> str:
    """Look there."""
    return "Sand."


class Handed(dspy.Module):
    """``dspy.ReAct`` that is given the transcript by another name."""

    def __init__(self) -> None:
        super().__init__()
        renamed = signatures.Judge.delete("trajectory").append("transcript", dspy.InputField(), str)
        self.react = dspy.ReAct(renamed, tools=[look])

    def forward(self, trajectory: str, **others: Any) -> Any:
        return self.react(transcript=trajectory, **others)


PLACES = [
    (Judge, "predict", signatures.Judge),
    (Distill, "success", signatures.DistillSuccess),
    (Distill, "failure", signatures.DistillFailure),
    (Refine, "first", signatures.CheckFirst),
    (Refine, "again", signatures.CheckAgain),
]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("step", "place", "signature"), PLACES)
def test_an_agent_of_dspys_that_cannot_be_given_a_trajectory_is_refused_at_once(
    step: Any, place: str, signature: Any, wrapped: bool
) -> None:
    made, react = step(), dspy.ReAct(signature, tools=[look])
    before = getattr(made, place)
    with pytest.raises(ConfigError) as found:
        setattr(made, place, dspy.BestOfN(react, N=2, reward_fn=lambda *_: 1.0, threshold=1.0) if wrapped else react)
    assert str(found.value) == (
        f"{step.__name__}.{place}: dspy.ReAct cannot read the trajectory, since it has an input of that name itself;"
        " put dspy.ReActV2 there, or a module that hands it to ReAct by another name"
    )
    assert getattr(made, place) is before
    setattr(made, place, dspy.ReActV2(signature, tools=[look]))
    setattr(made, place, dspy.ChainOfThought(signature))
    assert [name.split(".")[0] for name, _ in made.named_predictors()].count(place) == 1


def test_it_may_judge_what_it_is_given_by_another_name() -> None:
    def script(prompt: Prompt) -> Reply:
        if "next_tool_name" in prompt.wants:
            return {"next_thought": "Enough.", "next_tool_name": "finish", "next_tool_args": {}}
        return {"reasoning": "Hm.", "reasons": f"It did {prompt['transcript'][-5:]}.", "label": "success"}

    with backbones(script).use():
        judge = Judge()
        judge.predict = Handed()
        copy = judge.deepcopy()
        assert copy.predict is not judge.predict
        for each in (judge, copy):
            assert each(TASK, ROLLOUTS[0]) == Verdict(label="success", reasons="It did dig 0.")


def test_where_a_module_reads_no_trajectory_any_agent_of_dspys_may_stand() -> None:
    for made, signature in ((Act(), signatures.Act), (Contrast(), signatures.Contrast), (Select(), signatures.Select)):
        made.predict = dspy.ReAct(signature, tools=[look])
        assert {name.split(".")[0] for name, _ in made.named_predictors()} == {"predict"}
