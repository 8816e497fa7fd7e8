"""The steps of a program as modules of their own."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.compile.stages import STAGES, Stage, stage_module
from rb_dspy.errors import BackboneError, InputError
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Memory
from rb_dspy.testing import Lock, Prompt, Reply
from tests.worlds import answers, backbones, lock, prompts

GOOD = Verdict(label="success", reasons="It opened.")


def matts(script: Any = answers) -> MaTTS:
    return MaTTS(ReasoningBank(backbones=backbones(script), environments=Lock.make), k=2)


def rollout(task: Task, action: str, *, opens: bool, number: int = 0) -> Trajectory:
    seen = "It opens." if opens else "It stays shut."
    step = Step(thought="So it is.", action=action, observation=seen)
    return Trajectory(task_id=task.id, steps=(step,), answer=action, rollout_id=str(number))


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "all"])
def test_a_stage_holds_the_programs_own_step_under_the_same_names(stage: Stage) -> None:
    program = matts()
    module = stage_module(program, stage)
    own = dict(program.named_predictors())
    named = module.named_predictors()
    assert named
    assert all(own[name] is predictor for name, predictor in named)


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_compiled_in_a_copy_of_a_stage_fits_the_program_by_name(stage: Stage) -> None:
    program = matts()
    student = stage_module(program, stage).deepcopy()
    for _, predictor in student.named_predictors():
        predictor.signature = predictor.signature.with_instructions("Compiled.")
    whole = dict(program.named_predictors())
    assert all(predictor.signature.instructions != "Compiled." for predictor in whole.values())
    for name, state in student.dump_state().items():
        whole[name.removeprefix("program.")].load_state(state)
    changed = {name for name, predictor in whole.items() if predictor.signature.instructions == "Compiled."}
    assert changed == {name.removeprefix("program.") for name, _ in student.named_predictors()}


def test_each_stage_gives_what_its_step_gives() -> None:
    program, task = matts(), lock("Abus", 0)
    good, bad = rollout(task, "4711", opens=True), rollout(task, "0000", opens=False, number=1)
    assert stage_module(program, "judge")(task=task, trajectory=good).verdict.label == "success"
    assert stage_module(program, "judge")(task=task, trajectory=bad).verdict.label == "failure"
    several: dict[str, Any] = {"task": task, "trajectories": (bad, good), "verdicts": (GOOD, GOOD)}
    assert stage_module(program, "select")(**several).selection.index == 1
    memory = Memory(block="> 1. Known\n> the code is 4711")
    done = stage_module(program, "agent")(task=task, memory=memory)
    assert (done.answer, done.outcome.success, done.trajectory.answer) == ("4711", True, "4711")
    assert not stage_module(program, "agent")(task=task, memory=Memory()).outcome.success


def test_a_judge_is_not_given_the_ground_truth_of_the_task() -> None:
    class Curious(dspy.Module):
        """A judge that looks."""

        def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
            assert task.env_args == {}
            return GOOD

    program = ReasoningBank(backbones=backbones(), judge=Curious())
    task = lock("Abus", 0)
    stage_module(program, "judge")(task=task, trajectory=rollout(task, "4711", opens=True))


def test_backbones_are_bound_at_call_time() -> None:
    task = lock("Abus", 0)
    call = {"task": task, "trajectory": rollout(task, "4711", opens=True)}
    module = stage_module(ReasoningBank(), "judge")
    with pytest.raises(BackboneError, match="judge"):
        module(**call)

    def harsh(prompt: Prompt) -> Reply:
        return {"reasons": "No.", "label": "failure"}

    for script, label in ((answers, "success"), (harsh, "failure")):
        bones = backbones(script)
        with bones.use():
            assert module(**call).verdict.label == label
        assert len(prompts(bones)) == 1


def test_stages_that_a_program_does_not_have_are_refused(bank: MemoryBank) -> None:
    plain = ReasoningBank()
    with pytest.raises(InputError, match="'select'"):
        stage_module(plain, "select")
    with pytest.raises(InputError, match="no prompt"):
        stage_module(ReasoningBank(judge=lambda task, trajectory: GOOD), "judge")
    with pytest.raises(InputError, match="'distill'"):
        stage_module(plain, "distill")  # type: ignore[arg-type]
