"""Every optimizer makes the program better on tasks that it never saw, within its budget, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.compile import compile_program
from rb_dspy.compile.optimizers import OPTIMIZERS
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.ratings import Ratings
from rb_dspy.compile.result import Compiled, Scores
from rb_dspy.compile.scores import compare
from rb_dspy.compile.state import prompts_of
from rb_dspy.errors import BackboneError, InfrastructureError, InputError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import MemoryDraft, Trajectory, Verdict
from rb_dspy.stream import TaskStream
from rb_dspy.testing import Prompt, Reply, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests.compile.school import compiled, environments, program, streams
from tests.compile.teacher import BACKWARDS, EVIDENCE, locks, pupil, teacher


@pytest.mark.parametrize(
    ("optimizer", "stage"),
    [
        pytest.param(each, stage, marks=() if stage == "judge" or each == "gepa" else pytest.mark.stress)
        for each in OPTIMIZERS
        for stage in ("all", "judge")
    ],
)
def test_each_optimizer_ends_above_the_program_as_it_was(
    optimizer: str, stage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A scripted world, in which it is known that one sentence, or one good demonstration, is all that lacks."""
    student = program()
    before = prompts_of(student)

    made = compiled(program=student, optimizer=optimizer, stage=stage)

    held_out, numbers = made.scores.held_out, f"{optimizer} {stage}: {made.scores.held_out}, {made.metric_calls} calls"
    assert held_out.before.mean < 0.8, numbers
    assert held_out.after.mean == 1.0, numbers
    assert held_out.difference.mean == pytest.approx(held_out.after.mean - held_out.before.mean), numbers
    assert 0 < made.metric_calls <= made.budget == 60, numbers
    assert made.candidates[0].prompts == {name: before[name] for name in made.candidates[0].prompts}
    assert max(found.score for found in made.candidates) > made.candidates[0].score
    assert {"judge.predict"} == set(made.changed) if stage == "judge" else "act.predict" in made.changed
    assert prompts_of(made.program) == made.prompts_after
    assert made.broken == 0

    assert prompts_of(student) == before == made.prompts_before
    assert not any(getattr(module, "_compiled", False) for _, module in made.program.named_sub_modules())
    assert all(predictor.lm is None for predictor in made.program.predictors())
    assert made.program.backbones is None
    assert student.backbones is not None
    assert capfd.readouterr() == ("", "")


def test_it_is_better_for_the_reason_that_the_runs_showed() -> None:
    act = compiled(optimizer="gepa", stage="agent")
    assert act.prompts_after["act.predict"]["instructions"].endswith(BACKWARDS)
    assert act.improved, act.scores.held_out
    on_dev_only = Scores(dev=act.scores.dev, held_out=compare(Ratings({"t": [1.0]}), Ratings({"t": [1.0]})))
    assert not act.model_copy(update={"scores": on_dev_only}).improved
    judge = compiled(optimizer="gepa", stage="judge")
    assert judge.prompts_after["judge.predict"]["instructions"].endswith(EVIDENCE)
    assert f"+{EVIDENCE}" in judge.diff()
    assert "act.predict" not in judge.diff()


def test_the_compiled_program_behaves_where_it_is_used() -> None:
    made = compiled(optimizer="gepa", orders=1)
    with Backbones(agent=scripted_lm(pupil)).use(), MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
        answers = [made.program(task=task, bank=bank).answer for task in locks(2, 4, first=8)]
    assert answers == [task.env_args["code"] for task in locks(2, 4, first=8)]


@pytest.mark.parametrize(
    ("optimizer", "threads"),
    [
        pytest.param(each, threads, marks=() if threads == 1 or each == "gepa" else pytest.mark.stress)
        for each in OPTIMIZERS
        for threads in (1, 3)
    ],
)
def test_the_budget_is_the_number_of_runs_that_are_rated_whatever_the_optimizer_does(
    optimizer: str, threads: int
) -> None:
    """What was asked of the judge is counted, beside what was reported."""
    asked: list[str] = []

    def counting(prompt: Prompt) -> Reply:
        if "label" in prompt.wants:
            asked.append(prompt.text)
        return pupil(prompt)

    told: list[Progress] = []
    made = compiled(
        program=program(scripted_lm(counting)),
        optimizer=optimizer, stage="judge", budget=45, threads=threads, on_progress=told.append,
    )  # fmt: skip
    notes = [progress.note for progress in told]
    during = [progress for progress in told if progress.note.startswith(optimizer)]
    assert made.metric_calls <= 45
    assert max(progress.metric_calls for progress in told) == made.metric_calls
    last = max(progress.usage["judge"].calls for progress in during)
    first = during[0].usage["judge"].calls
    assert last - first == made.metric_calls
    assert made.usage["judge"].calls == len(asked)
    assert notes[-1] == "scoring held-out after"
    assert made.scores.held_out.after.mean >= made.scores.held_out.before.mean


def test_a_budget_that_ends_in_the_middle_keeps_the_best_so_far() -> None:
    """Every run of gepa's budget from what it needs to the first candidate, and on: never a half-rated result."""
    for budget in (22, 28, 33):
        made = compiled(optimizer="gepa", stage="judge", budget=budget)
        assert made.metric_calls <= budget
        best = max(made.candidates, key=lambda found: found.score)
        assert made.prompts_after["judge.predict"] == best.prompts["judge.predict"]
        assert made.scores.held_out.after.mean >= made.scores.held_out.before.mean


@pytest.mark.stress
def test_it_ends_where_nothing_can_be_better() -> None:
    """Of equal candidates the earliest is kept, so what follows a perfect one would be spent for nothing."""
    already = program()
    predict = already.judge.predict
    predict.signature = predict.signature.with_instructions(f"{predict.signature.instructions}\n\n{EVIDENCE}")
    for optimizer in OPTIMIZERS:
        made = compiled(program=already, optimizer=optimizer, stage="judge")
        assert made.metric_calls == made.examples["dev"], optimizer
        assert made.changed == []
        assert made.scores.held_out.before.mean == 1.0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_budget_with_which_nothing_can_be_found_is_refused(optimizer: str) -> None:
    with pytest.raises(InputError, match=rf"a budget of 5 metric calls is too small for {optimizer}, which needs \d+"):
        compiled(optimizer=optimizer, stage="judge", budget=5)


def test_the_same_seed_gives_the_same_and_a_thread_more_does_not_matter() -> None:
    one, two = (compiled(optimizer="simba", stage="judge") for _ in range(2))
    assert _core(one) == _core(two)
    assert core_of_few(threads=1) == core_of_few(threads=3)


def core_of_few(threads: int) -> dict[str, Any]:
    return _core(compiled(optimizer="gepa", budget=30, threads=threads, streams=streams(2)))


def _core(made: Compiled) -> dict[str, Any]:
    return made.model_dump(mode="json", exclude={"seconds", "usage"})


def proposals(lm: Any) -> list[Prompt]:
    """What it was asked, without the first look at whether it answers at all."""
    return [prompt for prompt in lm.engine.prompts if "Reply with the word" not in prompt.text]


def useless(prompt: Prompt) -> Reply:
    """Proposes what changes nothing."""
    if "new_instruction" not in prompt.wants:
        return {}
    return {"new_instruction": f"{prompt['current_instruction']}\n\nBe brief."}


@pytest.mark.parametrize("stage", ["all", "judge"])
def test_a_program_that_breaks_is_refused_before_anything_is_spent(stage: str) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    told: list[Progress] = []
    with pytest.raises(InfrastructureError, match=r"breaks on every task .*nothing was spent; first: .*overloaded"):
        compiled(program=program(scripted_lm(down)), stage=stage, on_progress=told.append)
    assert {progress.metric_calls for progress in told} == {0}


def test_a_server_that_goes_down_ends_it_and_a_refused_key_at_once() -> None:
    calls: list[int] = []

    def failing(after: int, error: Exception) -> Any:
        def script(prompt: Prompt) -> Reply:
            calls.append(1)
            if len(calls) > after:
                raise error
            return pupil(prompt)

        return scripted_lm(script)

    with pytest.raises(InfrastructureError, match=r"10 metric calls in a row broke; the last one: .*overloaded"):
        compiled(program=program(failing(100, lm15.ServerError("overloaded"))), optimizer="bootstrap_rs")
    calls.clear()
    with pytest.raises(BackboneError, match="bad key"):
        compiled(program=program(failing(100, lm15.AuthError("bad key"))), optimizer="gepa")
    assert len(calls) < 110


def test_examples_that_break_are_rated_0_and_counted() -> None:
    harvested: set[str] = set()
    serial = streams().dev.tasks[0].env_args["code"]

    def flaky(prompt: Prompt) -> Reply:
        """Breaks on one task of dev from the second time on, which is after its rollouts were harvested."""
        if "label" in prompt.wants and str(serial)[::-1] in prompt["task"]:
            if prompt.text in harvested:
                raise lm15.ServerError("overloaded")
            harvested.add(prompt.text)
        return pupil(prompt)

    made = compiled(program=program(scripted_lm(flaky)), optimizer="bootstrap", stage="judge")
    assert harvested
    assert made.broken >= 1
    assert made.candidates[0].score < compiled(optimizer="bootstrap", stage="judge").candidates[0].score
    assert made.scores.held_out.after.mean == 1.0


def test_a_reflection_lm_that_fails_costs_improvement_only_and_is_told() -> None:
    def down(prompt: Prompt) -> Reply:
        if "Reply with the word" in prompt.text:
            return {}
        raise lm15.ServerError("overloaded")

    made = compiled(optimizer="gepa", stage="judge", reflection=scripted_lm(down))
    assert made.proposals_failed >= 1
    assert compiled(optimizer="gepa", stage="judge").proposals_failed == 0
    assert made.changed == []
    assert made.diff() == ""
    assert made.scores.held_out.difference.mean == 0
    assert not made.improved


@pytest.mark.parametrize(("optimizer", "refused"), [("gepa", True), ("miprov2", True), ("bootstrap", False)])
def test_a_reflection_lm_that_does_not_answer_is_refused_before_anything_is_spent(
    optimizer: str, refused: bool
) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    agent = scripted_lm(pupil)
    given: dict[str, Any] = {"optimizer": optimizer, "stage": "judge", "program": program(agent)}
    if refused:
        with pytest.raises(BackboneError, match=r"who proposes prompts .* does not answer: .*overloaded.*nothing was"):
            compiled(reflection=scripted_lm(down), **given)
        assert agent.engine.prompts == []
    else:  # it proposes nothing
        assert compiled(reflection=scripted_lm(down), **given).metric_calls


def test_no_lm_is_pinned_so_every_role_keeps_its_own() -> None:
    """simba sets the LM of a whole program to draw samples."""
    lms = {role: scripted_lm(pupil, model=f"scripted/{role}") for role in ("agent", "judge", "distiller")}
    student = MaTTS(ReasoningBank(backbones=Backbones(**lms), environments=environments), k=2)
    made = compiled(program=student, optimizer="simba", orders=1)
    wants = {role: {want for prompt in lm.engine.prompts for want in prompt.wants} for role, lm in lms.items()}
    assert "label" not in wants["agent"]
    assert wants["judge"] == {"reasons", "label"}
    assert "action" not in wants["judge"] | wants["distiller"]
    seeds = {prompt.seed for prompt in lms["judge"].engine.prompts}
    assert len(seeds) > 1  # drawn anew, each role from its own
    assert made.scores.held_out.after.mean == 1.0


def test_it_starts_from_a_bank_and_leaves_it_as_it_was() -> None:
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        known = locks(1, 1, first=20)[0]
        bank.append(
            known,
            Trajectory(task_id=known.id),
            Verdict(label="success"),
            [MemoryDraft(title="Know the harbour", description="Anywhere.", content="The harbour is to the west.")],
        )
        seen: list[str] = []

        def reading(prompt: Prompt) -> Reply:
            if "action" in prompt.wants:
                seen.append(prompt["memory"])
            return pupil(prompt)

        made = compiled(
            program=program(scripted_lm(reading)), bank=bank, embedder=None, optimizer="bootstrap", orders=1
        )
        assert any("harbour is to the west" in memory for memory in seen)
        assert len(bank.experiences()) == 1
        assert bank.snapshots() == []
        assert made.hashes.bank
    assert compiled(optimizer="bootstrap", orders=1).hashes.bank == ""


@pytest.mark.stress
def test_language_models_come_from_the_context_where_the_program_has_none() -> None:
    student = MaTTS(ReasoningBank(environments=environments), k=2)
    with Backbones(agent=scripted_lm(pupil)).use():
        assert compiled(program=student, optimizer="bootstrap", orders=1).scores.held_out.after.mean == 1.0
    dspy.configure(lm=scripted_lm(pupil))
    assert compiled(program=student, optimizer="bootstrap", orders=1).scores.held_out.after.mean == 1.0
    dspy.configure(lm=None)
    with pytest.raises(BackboneError, match="agent"):
        compiled(program=student, optimizer="bootstrap")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": "copro"}, "unknown optimizer 'copro'; known: gepa, miprov2, simba, bootstrap, bootstrap_rs"),
        ({"stage": "actor"}, "unknown stage 'actor'; known: judge"),
        ({"budget": 0}, "budget is 0; expected at least 1"),
        ({"orders": 0}, "orders is 0"),
        ({"window": 0}, "window is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"bank": "x.sqlite"}, "got str for bank"),
    ],
)
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        compiled(**given)


def test_a_stage_without_examples_says_so() -> None:
    shut = TaskStream("to-compile", tuple(locks(1, 2)[1:]))  # no rollout opens it
    few = streams()
    object.__setattr__(few, "compile", shut)
    with pytest.raises(InputError, match=r"to-compile: its runs gave no example for stage 'select'"):
        compiled(stage="select", streams=few, optimizer="bootstrap")


@pytest.mark.stress
def test_orders_are_scored_and_the_result_says_what_it_was_made_of(tmp_path: Path) -> None:
    lm = scripted_lm(pupil)
    made = compiled(program=program(lm), optimizer="gepa", orders=3, budget=30)
    draws = {(prompt.seed or 0) // 100_000 for prompt in lm.engine.prompts if "action" in prompt.wants}
    assert draws == {0, 1, 2}  # other orders are other samples, and the same before and after
    assert made.scores.held_out.before.orders == made.scores.held_out.difference.orders == 3
    assert made.scores.held_out.before.tasks == len(streams().held_out)
    assert made.hashes.held_out == streams().held_out.digest
    assert made.hashes.compile == streams().compile.digest
    assert made.usage["reflection"].calls >= 1
    assert made.total().calls == sum(used.calls for used in made.usage.values())

    made.save(tmp_path / "made.json")
    back = Compiled.load(tmp_path / "made.json")
    assert back == made.model_copy(update={"program": None})
    assert back.diff() == made.diff() != ""
    other = program()
    back.apply(other)
    assert prompts_of(other) == prompts_of(made.program)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="not a rb_dspy compiled"):
        Compiled.load(tmp_path / "other.json")


def test_the_reflection_lm_is_the_agents_where_none_is_given() -> None:
    def both(prompt: Prompt) -> Reply:
        return teacher(prompt) if "new_instruction" in prompt.wants else pupil(prompt)

    made = compile_program(
        program(scripted_lm(both)), streams(), optimizer="gepa", stage="judge", budget=60, embedder=HashEmbedder()
    )
    assert made.scores.held_out.after.mean == 1.0
    assert made.usage["reflection"].calls >= 1


@pytest.mark.stress
def test_gepa_reflects_only_on_predictors_that_were_called() -> None:
    """One that was not has nothing to reflect on, and the runs of its turn would be spent for nothing."""
    lm = scripted_lm(useless)
    made = compiled(optimizer="gepa", reflection=lm, budget=64)
    first_line = {predictor.signature.instructions[:40]: name for name, predictor in program().named_predictors()}
    worked_on = [first_line[prompt["current_instruction"][:40]] for prompt in proposals(lm)]
    assert worked_on[:4] == ["act.predict", "judge.predict", "contrast.predict", "select.predict"]
    assert set(worked_on) == set(worked_on[:4])
    assert len(worked_on) >= (made.budget - made.examples["dev"]) // 6  # three runs before a proposal, three after


@pytest.mark.stress
def test_who_proposes_reads_what_happened_and_miprov2_shows_it_no_ground_truth() -> None:
    gepa, simba, mipro = (scripted_lm(teacher) for _ in range(3))
    compiled(optimizer="gepa", stage="judge", reflection=gepa)
    assert any("Wrong. " in prompt["examples_with_feedback"] for prompt in proposals(gepa))
    compiled(optimizer="simba", stage="judge", reflection=simba, budget=150, seed=2)
    assert any("Wrong. " in prompt["worse_reward_info"] for prompt in proposals(simba))
    compiled(optimizer="miprov2", stage="judge", reflection=mipro)
    assert proposals(mipro)
    for prompt in proposals(mipro):
        assert "observations" not in prompt.wants
        assert "reward" not in "".join(text for _, text in prompt.messages)
