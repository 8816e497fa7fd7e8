"""The programs among dspy's own tools: copied, pinned, sampled, evaluated, saved."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from rb_dspy import signatures
from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Judge
from rb_dspy.testing import Lock, Prompt, Reply, lock, locksmith, scripted_lm

TASK = lock("abus", 1)


def program(lm: Any = None, *, scale: bool = False) -> Any:
    made = ReasoningBank(backbones=Backbones(agent=lm) if lm else None, environments=Lock.make)
    return MaTTS(made, k=2) if scale else made


@pytest.mark.parametrize("scale", [False, True])
def test_the_configured_lm_plays_all_roles_without_backbones(bank: MemoryBank, scale: bool) -> None:
    lm = scripted_lm(locksmith)
    with dspy.context(lm=lm):
        assert program(scale=scale)(task=TASK, bank=bank).experience.items
    assert len(lm.engine.prompts) > 2


@pytest.mark.parametrize("scale", [False, True])
def test_an_lm_that_is_set_on_a_program_is_stronger_than_its_backbones(bank: MemoryBank, scale: bool) -> None:
    own, other = scripted_lm(locksmith), scripted_lm(locksmith)
    made = program(own, scale=scale)
    made.set_lm(other)
    made(task=TASK, bank=bank)
    assert (len(own.engine.prompts), len(other.engine.prompts) > 2) == (0, True)


def test_best_of_n_makes_attempts_that_are_all_learned_from(bank: MemoryBank) -> None:
    lm = scripted_lm(locksmith)
    best = dspy.BestOfN(program(), N=2, reward_fn=lambda arguments, made: 0.0, threshold=1.0)
    with dspy.context(lm=lm):
        best(task=TASK, bank=bank)
    assert len(list(bank.experiences())) == 2


def test_a_step_is_evaluated_by_itself_with_the_programs_models() -> None:
    made = program(scripted_lm(locksmith))
    rollout = Trajectory(task_id=TASK.id, steps=(Step(action="4711", observation="It opens."),), answer="4711")
    examples = [dspy.Example(task=TASK, trajectory=rollout).with_inputs("task", "trajectory")] * 3

    def correct(example: Any, verdict: Verdict, trace: Any = None) -> bool:
        return verdict.label == "success"

    with made.backbones.use():
        result = dspy.Evaluate(devset=examples, metric=correct, num_threads=1)(made.judge)
    assert result.score == 100


def test_other_modules_may_stand_in_a_steps_place(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        reply = locksmith(prompt)
        return {"reasoning": "Step by step.", **reply} if "reasoning" in prompt.wants else reply  # type: ignore[dict-item]

    made = program(scripted_lm(script))
    made.judge = Judge()
    made.judge.predict = dspy.ChainOfThought(signatures.Judge)
    assert made(task=TASK, bank=bank).verdict.label == "failure"
    assert "judge.predict.predict" in dict(made.named_predictors())


def test_a_trace_has_every_call_in_order(bank: MemoryBank) -> None:
    made = program(scripted_lm(locksmith), scale=True)
    traces = []
    for _ in range(3):
        with dspy.context(trace=[]):
            made(task=TASK, bank=bank.fork())
            traces.append(
                [type(predict).__name__ + str(predict.signature.__name__) for predict, *_ in dspy.settings.trace]
            )
    assert traces[0] == traces[1] == traces[2]
    assert len(traces[0]) == 2 + 1 + 1 + 2  # acts, contrast, select, judges


@pytest.mark.parametrize("scale", [False, True])
def test_saved_prompts_load_again_and_hold_no_model(bank: MemoryBank, tmp_path: Any, scale: bool) -> None:
    made = program(scripted_lm(locksmith), scale=scale)
    made.judge.predict.signature = made.judge.predict.signature.with_instructions("Be strict.")
    made.save(tmp_path / "prompts.json")
    text = (tmp_path / "prompts.json").read_text()
    assert "scripted/lm" not in text
    assert all(each.get("lm") is None for name, each in json.loads(text).items() if name != "metadata")
    loaded = program(scale=scale)
    loaded.load(tmp_path / "prompts.json")
    assert loaded.judge.predict.signature.instructions == "Be strict."


def test_usage_of_dspy_is_the_callers_too(bank: MemoryBank) -> None:
    made = program(scripted_lm(locksmith), scale=True)
    with dspy.track_usage() as tracker:
        done = made(task=TASK, bank=bank)
    counted = sum(role.prompt_tokens for role in done.usage.values())
    assert tracker.get_total_tokens()["scripted/lm"]["prompt_tokens"] == counted > 0


def test_a_task_is_a_task_in_dspys_threads(bank: MemoryBank) -> None:
    made = program(scripted_lm(locksmith))
    tasks = [Task(id=f"t{number}", instruction=f"Open lock {number}.", env_args={"code": "1"}) for number in range(8)]
    results = dspy.Parallel(num_threads=4, disable_progress_bar=True)(
        [(made, {"task": t, "bank": bank}) for t in tasks]
    )
    assert {each.experience.task.id for each in results} == {task.id for task in tasks}
