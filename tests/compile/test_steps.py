"""Examples of single steps: what a run teaches, once, with as many failures as successes."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from rb_dspy import Task, TaskStream
from rb_dspy.compile.steps import balanced, step_examples, step_module, stratified
from rb_dspy.errors import InputError
from rb_dspy.schema import Verdict
from rb_dspy.stream import StreamProgram
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm
from tests.compile.helpers import BACKWARDS, EVIDENCE, apprentice, locks, program, scaled, streams


def report(student: Any, stream: TaskStream) -> Any:
    return StreamProgram(student, embedder=HashEmbedder())(stream=stream).report


def test_a_judge_learns_from_every_rollout_with_ground_truth_once() -> None:
    ran = report(scaled(k=3), streams().compile)
    examples = step_examples("judge", ran)
    outcomes = {
        (result.task.id, rollout.answer, outcome.success)
        for result in ran.results
        for rollout, outcome in zip(result.rollouts, result.outcomes, strict=True)
    }
    assert {(each.task.id, each.trajectory.answer, each.success) for each in examples} == outcomes
    assert len(examples) == len(outcomes) < 3 * len(ran.results), "equal rollouts count once"
    assert all(each.task.env_args == {} for each in examples), "the judge never sees ground truth"
    assert all(each.decisive == 1 for each in examples)
    assert set(examples[0].inputs().keys()) == {"task", "trajectory"}


def test_a_selector_learns_from_tasks_whose_rollouts_differ() -> None:
    ran = report(scaled(), streams().compile)
    examples = step_examples("select", ran)
    mixed = [result for result in ran.results if len({outcome.reward for outcome in result.outcomes}) > 1]
    assert [each.task.id for each in examples] == [result.task.id for result in mixed]
    assert 0 < len(examples) < len(ran.results)
    assert sorted(examples[0].rewards) == [0.0, 1.0]
    assert step_examples("select", report(program(), streams().compile)) == []


def test_an_agent_learns_from_every_task_with_the_lessons_that_it_was_shown() -> None:
    ran = report(program(), streams().compile)
    examples = step_examples("agent", ran)
    assert [each.task for each in examples] == list(streams().compile)
    assert not examples[0].memory.items
    assert examples[-1].memory.items


@pytest.mark.parametrize("step", ["judge", "select", "agent"])
def test_the_module_of_a_step_takes_its_examples_and_holds_the_programs_own_predictors(step: Any) -> None:
    student = scaled()
    example = step_examples(step, report(student, streams().compile))[0]
    module = step_module(student, step)
    names = [name for name, _ in module.named_predictors()]
    assert names == [{"judge": "judge", "select": "select", "agent": "act"}[step] + ".predict"]
    assert dict(module.named_predictors())[names[0]] is dict(student.named_predictors())[names[0]]
    with student.backbones.use():  # type: ignore[union-attr]
        prediction = module(**example.inputs())
    assert {"judge": "verdict", "select": "selection", "agent": "outcome"}[step] in prediction


def test_an_answer_of_the_judge_that_cannot_be_parsed_is_no_verdict() -> None:
    def mute(prompt: Prompt) -> Reply:
        return "???" if "label" in prompt.wants else apprentice(prompt)

    student = program(scripted_lm(mute))
    example = step_examples("judge", report(program(), streams().compile))[0]
    with student.backbones.use():  # type: ignore[union-attr]
        verdict = step_module(student, "judge")(**example.inputs()).verdict
    assert isinstance(verdict, Verdict)
    assert verdict.label == "unknown"


def labeled(*labels: bool) -> list[Any]:
    tasks = locks(1, len(labels))
    return [dspy.Example(task=task, success=label) for task, label in zip(tasks, labels, strict=True)]


def test_a_judge_that_also_distills_is_compiled_with_the_whole_program() -> None:
    with pytest.raises(InputError, match="step 'all'"):
        step_module(program(learn="one_call"), "judge")
    assert "review.predict" in {name for name, _ in step_module(program(learn="one_call"), "all").named_predictors()}


def test_a_stratified_sample_has_as_many_failures_as_successes() -> None:
    examples = labeled(*[True] * 9, *[False] * 3)
    sample = stratified(examples, 12, "0/dev")
    assert [each.success for each in sample].count(True) == [each.success for each in sample].count(False) == 3
    assert {each.task.id for each in sample} == {each.task.id for each in stratified(examples, 12, "0/dev")}
    assert {each.task.id for each in sample} != {each.task.id for each in stratified(examples, 12, "1/dev")}
    assert [each.success for each in stratified(examples, 4, "0/dev")].count(True) == 2
    assert len(stratified(labeled(*[True] * 5), 4, "0/dev")) == 4
    assert len(stratified(labeled(*[True] * 5, False), 6, "0/dev")) == 6, "one failure has no say"


def test_balanced_accuracy_is_one_half_for_a_judge_that_always_says_the_same() -> None:
    examples = labeled(*[True] * 9, *[False] * 3)

    def mean(rows: dict[str, list[float]]) -> float:
        return sum(row[0] for row in rows.values()) / len(rows)

    assert mean(balanced(examples, [1.0] * 9 + [0.0] * 3)) == pytest.approx(0.5)
    assert mean(balanced(examples, [0.0] * 9 + [1.0] * 3)) == pytest.approx(0.5)
    assert mean(balanced(examples, [1.0] * 12)) == pytest.approx(1.0)
    assert mean(balanced(examples, [1.0] * 6 + [0.0] * 3 + [1.0] * 3)) == pytest.approx((6 / 9 + 1) / 2)
    one = dspy.Example(task=Task(id="a", instruction="A."))
    other = dspy.Example(task=Task(id="b", instruction="B."))
    assert balanced([one, one, other], [1.0, 0.0, 1.0]) == {"a": [pytest.approx(2 / 3)], "b": [pytest.approx(2 / 3)]}


@pytest.mark.parametrize(("step", "sentence"), [("act", BACKWARDS), ("judge", EVIDENCE)])
def test_a_better_prompt_makes_a_better_apprentice(step: str, sentence: str) -> None:
    student = program()

    def right() -> list[bool]:
        results = report(student, TaskStream("serials", locks(3))).results
        judged = [result.prediction.verdict.label == "success" for result in results]
        pairs = zip(results, judged, strict=True)
        return [result.solved if step == "act" else label == result.solved for result, label in pairs]

    assert 0 < right().count(True) < 12
    predictor = getattr(student, step).predict
    predictor.signature = predictor.signature.with_instructions(f"{predictor.signature.instructions}\n{sentence}")
    assert right() == [True] * 12
