"""What a module in a predictor's place gives that a step cannot use: a note or an abstention, never the run's end."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pydantic
import pytest

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.config import ActConfig
from rb_dspy.errors import ConfigError
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Contrast, Distill, Distilled, Judge, Memory, Refine, Select, Selection
from rb_dspy.stream import run_stream
from rb_dspy.testing import Corridor, Lock, scripted_lm
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
    with pytest.raises(ConfigError) as found:
        if kind == "stream":
            run_stream(alone, [corridor("a"), corridor("b")], bank, run_id="r")
        elif kind == "asyncio":
            asyncio.run(alone.acall(task=corridor(), bank=bank))
        else:
            run = alone if kind == "ReasoningBank" else MaTTS(alone, k=3, mode=kind)  # type: ignore[arg-type]
            run(task=corridor(), bank=bank)
    assert str(found.value) == (
        f"the agent's module gave no 'action', but {shown}; expected an output field of that name: give its signature one"
    )
    assert made
    assert all(each.closed for each in made)
    assert (len(bank), bank.pending()) == (0, [])


def test_an_agent_without_a_thought_acts(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Corridor.make)
    program.act.predict = said(action="forward")
    done = program(task=corridor(length=2), bank=bank)
    assert [(step.thought, step.action) for step in done.trajectory.steps] == [("", "forward")] * 2
