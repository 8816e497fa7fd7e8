"""The contract of every optimizer: better on tasks that it never saw, within its budget, free when it is run again."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from rb_dspy import Backbones, MaTTS, MemoryBank, MemoryDraft, ReasoningBank, Trajectory, Verdict
from rb_dspy.compile import OPTIMIZERS, Metric, Progress
from rb_dspy.prompts import prompts_of
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm, toys
from tests.compile.helpers import (
    BACKWARDS,
    EVIDENCE,
    TEACH,
    apprentice,
    compiled,
    compiled_step,
    locks,
    program,
    scaled,
    streams,
    teacher,
)


def reader(prompt: Prompt) -> Reply:
    """An agent without luck that follows lessons only: no instruction helps it directly."""
    if prompt.role != "agent":
        return apprentice(prompt)
    serial = prompt["task"].split()[-1].rstrip(".")
    return {"thought": "", "action": serial[::-1] if BACKWARDS in prompt.get("memory") else serial}


def asked(*lms: Any) -> int:
    return sum(len(lm.engine.prompts) for lm in lms)


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [
        pytest.param(each, step, marks=() if step == "judge" or each == "gepa" else pytest.mark.stress)
        for each in OPTIMIZERS
        for step in ("all", "judge")
    ],
)
def test_every_optimizer_improves_keeps_to_its_budget_and_costs_nothing_again(
    optimizer: str, step: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[bool] = []

    def counting(prompt: Prompt) -> Reply:
        calls.append("label" in prompt.wants)  # the judge answers once for each run of a candidate
        return apprentice(prompt)

    rated: list[Progress] = []
    during: dict[str, int] = {}

    def watch(progress: Progress) -> None:
        rated.append(progress)
        during[progress.phase] = sum(calls)

    student, before = program(scripted_lm(counting)), prompts_of(program())
    options: dict[str, Any] = {"optimizer": optimizer, "step": step, "streams": streams(3), "budget": 24}
    if step == "all":
        options |= (
            {"streams": streams(4), "budget": 36} if optimizer == "simba" else {"streams": streams(2), "budget": 20}
        )
    result = compiled(program=student, on_progress=watch, **options)

    assert result.held_out.before < 0.8
    assert result.held_out.after == pytest.approx(1.0)
    assert result.held_out.difference.mean == pytest.approx(result.held_out.after - result.held_out.before)
    assert 0 < result.metric_calls <= result.budget
    assert max(progress.metric_calls for progress in rated) == result.metric_calls
    assert step == "all" or during[optimizer] - during["running the held_out part"] <= result.budget
    assert ("judge.predict" if step == "judge" else "act.predict") in result.changed
    assert step != "judge" or result.changed == ["judge.predict"]
    assert prompts_of(result.program) == result.prompts_after
    assert result.broken == 0

    assert prompts_of(student) == before == result.prompts_before, "the program that was passed is not changed"
    assert all(predictor.lm is None for predictor in result.program.predictors())
    assert result.program.backbones is student.backbones
    assert not any(getattr(module, "_compiled", False) for _, module in result.program.named_sub_modules())
    assert capsys.readouterr().out == "", "stdout belongs to the caller"

    if step == "all":
        return  # what follows is the same for all steps, and takes as long again
    agent, proposer = scripted_lm(apprentice), scripted_lm(teacher)
    again = compiled(program=program(agent), reflection=proposer, **options)
    assert asked(agent, proposer) == 0
    assert again.model_dump(exclude={"seconds", "usage"}) == result.model_dump(exclude={"seconds", "usage"})
    assert sum(used.calls - used.cached_calls for used in again.usage.values()) == 0


def test_the_reflection_model_learns_from_the_feedback() -> None:
    act, _ = compiled_step("agent")
    assert act.prompts_after["act.predict"]["instructions"].endswith(BACKWARDS)
    assert act.improved
    judge, _ = compiled_step("judge")
    assert judge.prompts_after["judge.predict"]["instructions"].endswith(EVIDENCE)
    assert f"+{EVIDENCE}" in judge.diff()
    assert "act.predict" not in judge.diff()


def test_the_selector_is_compiled_on_rollouts_that_differ() -> None:
    result = compiled(program=scaled(), step="select", budget=24)
    assert result.changed == ["select.predict"]
    assert f"{result}" == repr(result)
    assert " of select, changed select.predict, held out " in repr(result)
    assert len(repr(result)) < 200
    assert result.prompts_after["select.predict"]["instructions"].endswith(EVIDENCE)
    assert (result.held_out.before, result.held_out.after) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "writer"),
    [
        (None, "distill.success"),
        ("one_call", "review.predict"),
        ({"mode": "parallel"}, "contrast.predict"),
        pytest.param({"mode": "sequential"}, "distill.success", marks=pytest.mark.stress),
    ],
)
def test_a_lesson_writing_prompt_is_compiled_and_helps(options: Any, writer: str) -> None:
    """Only lessons help this agent, so only the prompt that writes them can be better."""
    lm = scripted_lm(reader)
    student = scaled(lm, **options) if isinstance(options, dict) else program(lm, learn=options or "two_calls")
    result = compiled(program=student, window=2, budget=24, streams=streams(2))
    assert TEACH in result.prompts_after[writer]["instructions"]
    assert result.held_out.before == 0.0
    assert result.held_out.after > 0.8


@pytest.mark.parametrize(
    ("mode", "called"),
    [
        ("parallel", {"act", "judge", "contrast", "select"}),
        pytest.param("sequential", {"act", "judge", "distill", "refine"}, marks=pytest.mark.stress),
        pytest.param(None, {"act", "judge", "distill"}, marks=pytest.mark.stress),
        pytest.param("best_of_n", {"act", "judge", "distill", "select"}, marks=pytest.mark.stress),
    ],
)
def test_gepa_works_on_every_predictor_that_is_called_and_on_no_other(mode: Any, called: set[str]) -> None:
    def useless(prompt: Prompt) -> Reply:
        return {"new_instruction": f"{prompt['current_instruction']}\n\nBe brief."}

    lm = scripted_lm(useless)
    student = program() if mode is None else scaled(mode=mode)
    compiled(program=student, reflection=lm, streams=streams(2), budget=34)
    assert len(lm.engine.prompts) >= (34 - 2) // 6, "no run is spent on a predictor that was not called"
    first = {each.signature.instructions[:40]: name for name, each in student.named_predictors()}
    assert {first[prompt["current_instruction"][:40]].split(".")[0] for prompt in lm.engine.prompts} == called


def test_an_optimizer_of_the_users_own_is_used_as_it_is() -> None:
    student = program()
    metric = Metric("agent", student)
    own = dspy.BootstrapFewShot(metric=metric, max_bootstrapped_demos=1, max_labeled_demos=0)
    rated: list[Progress] = []
    result = compiled(program=student, optimizer=own, step="agent", on_progress=rated.append)
    assert max(progress.metric_calls for progress in rated) == result.metric_calls > 0
    assert result.optimizer == "BootstrapFewShot"
    assert len(result.prompts_after["act.predict"]["demos"]) == 1
    assert result.held_out.after == pytest.approx(1.0)
    gepa = dspy.GEPA(metric=metric, max_metric_calls=20, reflection_lm=scripted_lm(teacher), num_threads=1)
    assert compiled(program=student, optimizer=gepa, step="agent", streams=streams(2)).held_out.after == 1.0


def test_simba_draws_samples_from_the_lm_of_each_role() -> None:
    lms = {role: scripted_lm(apprentice, model=f"scripted/{role}") for role in ("agent", "judge", "distiller")}
    student = ReasoningBank(backbones=Backbones(**lms), environments=toys)
    result = compiled(program=student, optimizer="simba")
    wants = {role: {want for prompt in lm.engine.prompts for want in prompt.wants} for role, lm in lms.items()}
    assert wants["judge"] == {"reasons", "label"}
    assert "label" not in wants["agent"]
    assert "action" not in wants["distiller"]
    sampled = {(prompt.seed, prompt.temperature) for prompt in lms["judge"].engine.prompts}
    assert len([seed for seed, temperature in sampled if temperature == 1.0]) > 1
    assert result.held_out.after == pytest.approx(1.0)


def test_demonstrations_come_from_solved_tasks_only() -> None:
    result = compiled(optimizer="bootstrap", step="all", window=4)
    demos = result.prompts_after["act.predict"]["demos"]
    assert demos
    for demo in demos:
        serial = demo["task"].rsplit(" ", 1)[1].rstrip(".")
        assert demo["action"] == serial[::-1]


def test_the_same_seed_gives_the_same_and_threads_do_not_matter() -> None:
    one, three = (
        compiled(step="judge", jobs=threads, seed=1).model_dump(exclude={"seconds", "usage"}) for threads in (1, 3)
    )
    assert one == three


def test_the_reflection_model_is_the_agents_by_default() -> None:
    def both(prompt: Prompt) -> Reply:
        return teacher(prompt) if "new_instruction" in prompt.wants else apprentice(prompt)

    result = compiled(program=program(scripted_lm(both)), reflection=None, step="judge")
    assert result.held_out.after == pytest.approx(1.0)
    assert result.usage["reflection"].calls >= 1


def test_language_models_of_the_context_are_used_if_the_program_has_none() -> None:
    student = ReasoningBank(environments=toys)
    options: dict[str, Any] = {"optimizer": "bootstrap", "step": "judge", "streams": streams(2)}
    with Backbones(agent=scripted_lm(apprentice)).use():
        assert compiled(program=student, **options).held_out.after == pytest.approx(1.0)
    dspy.configure(lm=scripted_lm(apprentice))
    assert compiled(program=student, **options).held_out.after > 0.99


def test_every_run_begins_with_the_bank_and_leaves_it_as_it_was() -> None:
    seen: list[str] = []

    def reading(prompt: Prompt) -> Reply:
        if "memory" in prompt:
            seen.append(prompt["memory"])
        return apprentice(prompt)

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        task = locks(1, 1, first=20)[0]
        lesson = MemoryDraft(title="Know the harbour", description="", content="The harbour is to the west.")
        bank.append(task, Trajectory(task_id=task.id), Verdict(label="success"), [lesson])
        student = program(scripted_lm(reading))
        compiled(program=student, bank=bank, embedder=None, optimizer="bootstrap", streams=streams(2), budget=20)
        assert any("harbour is to the west" in memory for memory in seen)
        assert len(bank.experiences()) == 1


@pytest.mark.parametrize("step", ["judge", "all"])
def test_a_prompt_that_does_not_change_is_scored_once(step: Any) -> None:
    totals: dict[str, int] = {}

    def watch(progress: Progress) -> None:
        totals[progress.phase] = progress.total

    same = scripted_lm(lambda prompt: {"new_instruction": prompt["current_instruction"]})
    result = compiled(step=step, reflection=same, streams=streams(2), budget=20, orders=3, on_progress=watch)
    assert result.changed == []
    assert result.diff() == ""
    assert result.held_out.difference.mean == 0
    assert not result.improved
    assert totals["scoring held_out" if step == "judge" else "scoring held-out"] == (6 if step == "judge" else 1)


def test_compiled_prompts_work_where_they_are_used_and_in_a_scaled_program() -> None:
    result, _ = compiled_step("agent")
    with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
        tasks = locks(2, 4, first=8)
        assert [result.program(task=task, bank=bank).answer for task in tasks] == [t.env_args["code"] for t in tasks]
    both = MaTTS(program())
    own = both.contrast.predict.signature.instructions
    assert result.apply(both) is both
    assert both.act.predict.signature.instructions.endswith(BACKWARDS)
    assert both.contrast.predict.signature.instructions == own


def test_a_judge_that_always_says_the_same_scores_one_half() -> None:
    def flatterer(prompt: Prompt) -> Reply:
        return {"reasons": "Fine.", "label": "success"} if "label" in prompt.wants else apprentice(prompt)

    result = compiled(program=program(scripted_lm(flatterer)), step="judge", optimizer="bootstrap")
    assert result.held_out.before == pytest.approx(0.5)
    assert result.dev.before == pytest.approx(0.5)


def test_orders_do_not_share_samples() -> None:
    lm = scripted_lm(apprentice, temperature=0.7)
    compiled(program=program(lm), optimizer="bootstrap", streams=streams(2), budget=20, orders=3)
    tasks = [task.instruction for task in streams(2).held_out]
    asked = [prompt for prompt in lm.engine.prompts if "action" in prompt.wants and prompt["task"] in tasks]
    assert len({prompt.seed for prompt in asked}) >= 3
