"""What the numbers of a run must not hide: base rates, abstentions, what broke, who gave up early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dspy
import pytest
from hypothesis import given, strategies as st

from rb_dspy import MemoryBank, ReasoningBank, RunReport, Task, TaskResult, run_stream
from rb_dspy.config import ActConfig, ProgramConfig
from rb_dspy.schema import Experience, Label, Outcome, Step, Trajectory, Verdict
from rb_dspy.steps import Memory
from rb_dspy.stream import Summary
from rb_dspy.testing import Corridor, Lock, Prompt, Reply
from tests.worlds import answers, backbones, corridor, lock

TASK = Task(id="t", instruction="Do it.")


def done(label: Label, truth: bool | None, steps: int = 1) -> TaskResult:
    """A task that came to its end, with what the judge said and what is so; None where nobody knows."""
    trajectory = Trajectory(task_id=TASK.id, steps=(Step(action="go"),) * steps)
    prediction = dspy.Prediction(
        trajectory=trajectory,
        verdict=Verdict(label=label),
        memory_items=(),
        experience=Experience(id="e", scope="s", seq=1, task=TASK, trajectories=(trajectory,), verdicts=()),
    )
    return TaskResult(TASK, prediction, None if truth is None else Outcome(reward=truth, success=truth))


def one_of_ten(bank: MemoryBank, label: Any) -> RunReport:
    """A run in which a guess opens the first of ten locks, and ``label`` of the prompt is what the judge says."""

    def script(prompt: Prompt) -> Reply:
        if "label" not in prompt.wants:
            return answers(prompt)
        said = label(prompt)
        return said if said == "?" else {"reasons": "", "label": said}

    tasks = [lock(f"maker-{n}", n, code="4711" if n else "0000") for n in range(10)]
    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    return run_stream(program, tasks, bank, run_id="r")


def opened(prompt: Prompt) -> bool:
    return "It opens" in prompt["trajectory"]


def test_a_judge_that_always_says_failure_is_no_better_than_the_base_rate(bank: MemoryBank) -> None:
    found = one_of_ten(bank, lambda prompt: "failure").summary()
    assert (found.solved, found.scored, found.judge_agreement) == (1, 10, 0.9)
    assert (found.true_successes, found.false_successes) == (0, 0)
    assert (found.true_failures, found.false_failures, found.abstentions) == (9, 1, 0)
    assert (found.judge_base_rate, found.judge_precision, found.judge_recall, found.judge_balanced) == (
        0.9,
        None,
        0,
        0.5,
    )


def test_a_judge_that_abstains_on_all_but_the_solved_task_is_seen_to(bank: MemoryBank) -> None:
    found = one_of_ten(bank, lambda prompt: "success" if opened(prompt) else "?").summary()
    assert (found.judged, found.judge_agreement, found.judge_base_rate) == (1, 1.0, 1.0)
    assert (found.true_successes, found.abstentions, found.scored) == (1, 9, 10)
    assert (found.judge_precision, found.judge_recall, found.judge_balanced) == (1.0, 1.0, 0.5)


def test_an_abstention_finds_no_success(bank: MemoryBank) -> None:
    found = one_of_ten(bank, lambda prompt: "?" if opened(prompt) else "failure").summary()
    assert (found.judge_agreement, found.judge_base_rate) == (1.0, 1.0)
    assert (found.judge_recall, found.judge_balanced, found.abstentions) == (0.0, 0.5, 1)


def test_a_judge_that_is_right_is_better_than_the_base_rate(bank: MemoryBank) -> None:
    found = one_of_ten(bank, lambda prompt: "success" if opened(prompt) else "failure").summary()
    assert (found.judge_agreement, found.judge_base_rate, found.judge_balanced) == (1.0, 0.9, 1.0)
    read = Summary.model_validate_json(found.model_dump_json())
    assert read == found
    assert '"judge_base_rate":0.9' in found.model_dump_json()


def test_who_was_not_asked_has_not_abstained(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    tasks = [lock("Abus", 0, code="0000"), lock("Abus", 1)]
    found = run_stream(program, tasks, bank, run_id="frozen", learn=False).summary()
    assert (found.solved, found.scored, found.judged, found.abstentions, found.unknown_verdicts) == (1, 2, 0, 0, 0)
    of_judge = found.judge_agreement, found.judge_base_rate, found.judge_precision, found.judge_recall
    assert (*of_judge, found.judge_balanced) == (None,) * 5


@pytest.mark.parametrize("learn", [True, False])
def test_a_rollout_that_was_stopped_at_its_step_limit_is_counted_and_named(bank: MemoryBank, learn: bool) -> None:
    config = ProgramConfig(act=ActConfig(max_steps=2))
    program = ReasoningBank(config, backbones=backbones(), environments=Corridor.make)
    report = run_stream(program, [corridor("short", 2), corridor("long", 9)], bank, run_id="r", learn=learn)
    assert [row["stop_reason"] for row in report.rows()] == ["done", "max_steps"]
    assert report.summary().cut_off == {"max_steps": 1}
    assert RunReport("r", report.results[:1]).summary().cut_off == {}
    assert TaskResult(TASK, error="gone").row()["stop_reason"] is None


counts = st.integers(0, 5)


@given(counts, counts, counts, counts, counts, counts)
def test_numbers_of_the_judge_by_brute_force(tp: int, fp: int, tn: int, fn: int, lost: int, missed: int) -> None:
    """``lost`` and ``missed``: solved and not solved, where the judge abstained."""
    cases: list[tuple[Label, bool]] = [("success", True)] * tp + [("success", False)] * fp
    cases += [("failure", False)] * tn + [("failure", True)] * fn
    cases += [("unknown", True)] * lost + [("unknown", False)] * missed
    found = RunReport("r", [done(label, truth) for label, truth in cases]).summary()
    judged_ = [(label, truth) for label, truth in cases if label != "unknown"]
    constant = [sum(truth is said for _, truth in judged_) for said in (True, False)]
    assert found.agreements == sum((label == "success") is truth for label, truth in judged_)
    assert found.judge_base_rate == (max(constant) / len(judged_) if judged_ else None)
    assert found.judge_precision == share([truth for label, truth in cases if label == "success"])
    recalls = [
        share([label == wanted for label, truth in cases if truth is solved])
        for wanted, solved in (("success", True), ("failure", False))
    ]
    assert found.judge_recall == recalls[0]
    both = [recall for recall in recalls if recall is not None]
    assert found.judge_balanced == (pytest.approx(sum(both) / 2) if len(both) == 2 else None)
    assert (found.abstentions, found.abstained_on_solved) == (lost + missed, lost)


def share(of: list[bool]) -> float | None:
    return sum(of) / len(of) if of else None


def test_who_gives_up_early_lowers_the_mean_of_all_steps_only() -> None:
    solved = [done("success", True, steps=8), done("success", True, steps=6)]
    gave_up, unknown = done("failure", False, steps=1), done("success", None, steps=1)
    found = RunReport("r", [*solved, gave_up, unknown]).summary()
    assert (found.mean_steps, found.mean_steps_solved) == (4, 7)
    found = RunReport("r", [gave_up, unknown]).summary()
    assert (found.mean_steps, found.mean_steps_solved) == (1, None)
    assert RunReport("r").summary().mean_steps_solved is None


@pytest.mark.parametrize("memory", [None, (), "text", [1], {"items": 1}, Memory()])
def test_what_a_program_of_ones_own_calls_memory_is_no_lesson_shown(memory: Any) -> None:
    result = done("success", True)
    assert result.prediction is not None
    result.prediction.memory = memory
    assert RunReport("r", [result]).summary().shown == 0


def test_tasks_that_broke_are_reported_as_failures_too() -> None:
    broke, waited = TaskResult(TASK, error="no server"), TaskResult(TASK, error="no server", resumed=True)
    found = RunReport("r", [done("success", True), done("success", None), broke, waited]).summary()
    assert (found.success_rate, found.success_rate_with_lost) == (1, 0.5)
    assert (found.scored, found.lost, found.infrastructure_errors) == (1, 1, 2)
    found = RunReport("r", [broke]).summary()
    assert (found.success_rate, found.success_rate_with_lost) == (None, None)
    scoring_of_another = replace(done("success", True), error="the environment's outcome broke")
    found = RunReport("r", [scoring_of_another]).summary()
    assert (found.success_rate_with_lost, found.lost, found.infrastructure_errors) == (1, 0, 1)
