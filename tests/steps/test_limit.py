"""A limit of lessons that is below the usual one stands in the prompt; the usual one leaves the prompt as it is."""

from __future__ import annotations

import re
from typing import Any

import dspy
import pytest

from rb_dspy import signatures
from rb_dspy.backbones import Backbones
from rb_dspy.config import ContrastConfig, DistillConfig
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill, Distilled
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.worlds import item

TASK = Task(id="t", instruction="Find the gold.")
ROLLOUTS = [Trajectory(task_id="t", rollout_id=str(n), steps=(Step(action=f"dig {n}"),)) for n in range(2)]
MINOR = {**item("Bring a lamp", "Bring a lamp with oil."), "evidence": [1]}
MAJOR = {**item("Look first", "Look behind the mirror first."), "evidence": [1]}
OTHER = {**item("Ask around", "Ask whoever lives there."), "evidence": [2]}
STEPS = ("success", "failure", "contrast")


def writer(prompt: Prompt) -> Reply:
    """Writes what comes to mind, the best last; asked for the most useful only, that."""
    useful = "the most useful" in prompt.system
    said = dict.fromkeys(["reasoning", "analysis"], "Hm.")
    return {**said, "memory_items": [MAJOR] if useful else [MINOR, OTHER, MAJOR]}


def drafted(step: str, most: int | None, script: Any = writer, place: Any = None) -> tuple[Distilled, list[Prompt]]:
    lm, given = scripted_lm(script), {} if most is None else {"max_items": most}
    with Backbones(agent=lm).use():
        if step == "contrast":
            contrast = Contrast(ContrastConfig(**given))
            contrast.predict = place or contrast.predict
            return contrast(TASK, ROLLOUTS), lm.engine.prompts
        distill = Distill(DistillConfig(**given))
        setattr(distill, step, place or getattr(distill, step))
        return distill(
            TASK, ROLLOUTS[0], Verdict(label="success" if step == "success" else "failure")
        ), lm.engine.prompts


def usual(step: str) -> int:
    return 5 if step == "contrast" else 3


@pytest.mark.parametrize("step", STEPS)
def test_the_most_useful_lesson_is_kept_where_one_is(step: str) -> None:
    found, (prompt,) = drafted(step, 1)
    assert [draft.title for draft in found.drafts] == [MAJOR["title"]]
    assert found.dropped == ()
    assert not re.search(r"one\s+to\s+(three|five)(?!\s+sentences)", prompt.text)
    assert "maximum length: 1" in prompt.text
    assert prompt.system.count("the most useful") == 2


@pytest.mark.parametrize("step", STEPS)
def test_a_limit_of_two_is_told(step: str) -> None:
    _, (prompt,) = drafted(step, 2)
    assert not re.search(r"one\s+to\s+(three|five)(?!\s+sentences)", prompt.text)
    assert re.search(r"write\s+one\s+to\s+two\s+memory\s+items", prompt.system)
    assert "maximum length: 2" in prompt.text


@pytest.mark.parametrize("step", STEPS)
def test_the_usual_limit_leaves_the_prompt_as_it_is(step: str) -> None:
    _, (prompt,) = drafted(step, usual(step))
    _, (same,) = drafted(step, None)
    assert prompt == same
    assert "the most useful" not in prompt.text
    number = "five" if step == "contrast" else "three"
    assert re.search(rf"one to {number}\s+memory items", prompt.system)
    assert (
        f"(one to {number}, without overlap)" in prompt.system or f"one to {number}, without overlap" in prompt.system
    )


@pytest.mark.parametrize("step", STEPS)
def test_a_compiled_prompt_and_its_repair_are_told_as_well(step: str) -> None:
    signature = {"success": signatures.DistillSuccess, "failure": signatures.DistillFailure}.get(
        step, signatures.Contrast
    )
    compiled = dspy.ChainOfThought(signature.with_instructions("Say what you learned."))

    def unreadable_at_first(prompt: Prompt) -> Reply:
        return "Well, well." if "[[ ## completed ## ]]" in prompt.text else writer(prompt)

    found, prompts = drafted(step, 1, unreadable_at_first, compiled)
    assert len(prompts) == 2
    assert all("Say what you learned." in prompt.system for prompt in prompts)
    assert all("Only one memory item is kept here" in prompt.system for prompt in prompts)
    assert [draft.title for draft in found.drafts] == [MAJOR["title"]]


@pytest.mark.parametrize("step", STEPS)
def test_a_module_of_somebodys_own_gets_its_inputs_and_nothing_else(step: str) -> None:
    class Own(dspy.Module):
        def forward(self, **inputs: Any) -> Any:
            self.inputs = set(inputs)
            return dspy.Prediction(memory_items=[MINOR, MAJOR])

    own = Own()
    found, _ = drafted(step, 1, place=own)
    expected = {"task", "attempts"} if step == "contrast" else {"task", "trajectory", "judge_reasons"}
    assert own.inputs == expected
    assert found.dropped == ("surplus",)
