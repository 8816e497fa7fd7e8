"""What must not pass for a bad prompt: bugs, bad input, models that cannot be used, servers that are down."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import ReasoningBank, Streams, Task, TaskStream
from rb_dspy.compile import OPTIMIZERS, Progress, compile_program
from rb_dspy.errors import BackboneError, InfrastructureError, InputError, MissingDependency
from rb_dspy.schema import Outcome
from rb_dspy.steps import Distilled
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, scripted_lm
from tests.compile.helpers import apprentice, compiled, locks, program, scaled, streams, teacher

SMALL: dict[str, Any] = {"streams": streams(2), "budget": 20}


def failing(after: int, error: Exception, role: str = "action") -> Any:
    """A apprentice that raises ``error`` after so many calls of a role."""
    calls: list[int] = []

    def script(prompt: Prompt) -> Reply:
        calls.append(role in prompt.wants)
        if sum(calls) > after and calls[-1]:
            raise error
        return apprentice(prompt)

    return scripted_lm(script)


class Counted:
    """Environments that raise ``error`` when so many were made."""

    def __init__(self, after: int, error: Exception) -> None:
        self.after = after
        self.made = 0
        self.error = error

    def __call__(self, task: Task, rollout: str) -> Lock:
        self.made += 1
        if self.made > self.after:
            raise self.error
        return Lock.make(task, rollout)

    def __deepcopy__(self, memo: Any) -> Counted:
        return self


def flaky(broken: str, after: int = 0) -> ReasoningBank:
    """A program whose environment breaks for one task, from its second run on if ``after`` is 1."""
    made: list[str] = []

    def make(task: Task, rollout: str) -> Lock:
        made.append(task.id)
        if task.id == broken and made.count(broken) > after:
            raise OSError("lost connection")
        return Lock.make(task, rollout)

    return ReasoningBank(backbones=program().backbones, environments=make)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_model_that_cannot_be_used_ends_the_compile_at_once(optimizer: str) -> None:
    lm = failing(21, lm15.AuthError("bad key"))
    with pytest.raises(BackboneError, match="bad key"):
        compiled(program=program(lm), optimizer=optimizer, streams=streams(4))
    assert sum("action" in prompt.wants for prompt in lm.engine.prompts) <= 24, "calls after it ask nobody"


@pytest.mark.parametrize("error", [AttributeError("a bug"), MissingDependency("no java")])
def test_a_bug_and_a_missing_dependency_are_no_score_of_0(error: Exception) -> None:
    calls: list[int] = []

    class Broken(dspy.Module):
        def forward(self, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) > 12:
                raise error
            return Distilled()

    student = program()
    student.distill = Broken()
    with pytest.raises(type(error), match=str(error)):
        compiled(program=student, **SMALL)
    assert len(calls) == 13


@pytest.mark.parametrize("step", ["all", "agent"])
def test_examples_that_fail_are_scored_0_and_counted(step: Any) -> None:
    """The environment of one task of the compile part breaks, after the run that examples are taken from."""
    student = flaky(streams().compile.tasks[0].id, after=step == "agent")
    result = compiled(program=student, step=step, optimizer="gepa", window=1 if step == "all" else None)
    assert result.broken >= 1
    assert result.held_out.errors_before == 0
    assert result.held_out.after == 1.0


def test_errors_while_scoring_count_as_failures_and_are_reported() -> None:
    student = flaky(streams().held_out.tasks[0].id, after=1)
    result = compiled(program=student, step="agent", optimizer="bootstrap")
    assert (result.held_out.errors_before, result.held_out.errors_after) == (1, 1)
    assert result.held_out.after == pytest.approx(11 / 12)


def test_errors_count_also_if_nothing_changed() -> None:
    student = flaky(streams(2).held_out.tasks[0].id)
    same = scripted_lm(lambda prompt: {"new_instruction": prompt["current_instruction"]})
    result = compiled(program=student, reflection=same, **SMALL)
    assert result.changed == []
    assert (result.held_out.errors_before, result.held_out.errors_after) == (1, 1)


def test_a_server_that_goes_down_ends_the_search() -> None:
    environments = Counted(30, OSError("down"))
    student = ReasoningBank(backbones=program().backbones, environments=environments)
    with pytest.raises(InfrastructureError, match=r"5 examples in a row failed.*down"):
        compiled(program=student, step="agent")
    assert environments.made < 40


@pytest.mark.parametrize("step", ["all", "agent"])
def test_a_program_that_always_fails_is_refused_before_the_budget_is_spent(step: Any) -> None:
    rated: list[Progress] = []
    student = program(scripted_lm(lambda prompt: (_ for _ in ()).throw(lm15.ServerError("overloaded"))))
    with pytest.raises(InfrastructureError, match="overloaded"):
        compiled(program=student, step=step, on_progress=rated.append, **SMALL)
    assert {progress.metric_calls for progress in rated} <= {0}


def test_a_reflection_model_that_never_answers_is_an_error_and_one_that_fails_once_is_none() -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    with pytest.raises(InfrastructureError, match=r"reflection.*overloaded|overloaded"):
        compiled(step="judge", reflection=scripted_lm(down))
    calls: list[int] = []

    def once(prompt: Prompt) -> Reply:
        calls.append(1)
        return down(prompt) if len(calls) == 1 else teacher(prompt)

    assert compiled(step="judge", reflection=scripted_lm(once)).held_out.after == pytest.approx(1.0)


def test_a_refused_key_of_the_reflection_model_ends_the_search() -> None:
    def refused(prompt: Prompt) -> Reply:
        raise lm15.AuthError("bad key")

    lm = scripted_lm(refused)
    with pytest.raises(BackboneError, match=r"reflection .*bad key"):
        compiled(step="judge", reflection=lm, budget=60)
    assert len(lm.engine.prompts) <= 4


@pytest.mark.parametrize("phase", ["gepa", "scoring held_out"])
def test_an_error_in_on_progress_is_raised(phase: str) -> None:
    def broken(progress: Progress) -> None:
        if progress.phase == phase and progress.done > 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compiled(step="judge", on_progress=broken)


class Silent(Lock):
    """A lock without ground truth."""

    def outcome(self) -> Outcome | None:  # type: ignore[override]
        return None


@pytest.mark.parametrize("step", ["all", "judge"])
@pytest.mark.parametrize("part", ["compile", "dev", "held_out"])
def test_a_part_without_ground_truth_is_refused_before_the_search(step: Any, part: str) -> None:
    silent = getattr(SMALL["streams"], part)
    ids = {task.id for task in silent}
    student = ReasoningBank(
        backbones=program().backbones,
        environments=lambda task, rollout: (Silent if task.id in ids else Lock).make(task, rollout),
    )
    reports: list[Progress] = []
    with pytest.raises(InputError, match=f"{silent.name}: no task has ground truth"):
        compiled(program=student, step=step, on_progress=reports.append, **SMALL)
    assert not any(progress.metric_calls for progress in reports)


def test_questions_without_answers_are_refused_before_a_model_is_asked() -> None:
    lm = scripted_lm(apprentice)
    questions = [Task(id=f"q{n}", instruction=f"{word}?", template=word) for n, word in enumerate(("a", "b", "c"))]
    parts = Streams(*(TaskStream(task.id, (task,)) for task in questions))
    with pytest.raises(InputError, match=r"q0: no task has ground truth.*env_args.answer"):
        compile_program(ReasoningBank(backbones={"agent": lm}), parts)
    assert lm.engine.prompts == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "copro"}, "unknown optimizer 'copro'; expected gepa, miprov2"),
        ({"optimizer": 3}, "got int for optimizer"),
        ({"step": "actor"}, "unknown step 'actor'; expected all, judge"),
        ({"budget": 0}, "budget is 0"),
        ({"budget": 5}, "a budget of 5 metric calls is too small"),
        ({"orders": 0}, "orders is 0"),
        ({"window": 0}, "window is 0"),
        ({"jobs": -1}, "jobs is -1"),
        ({"bank": "x.sqlite"}, "got str for bank"),
        ({"step": "select"}, "a ReasoningBank does not select"),
        ({"streams": [1]}, "got list for streams"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_asked(options: dict[str, Any], message: str) -> None:
    lm = scripted_lm(apprentice)
    with pytest.raises(InputError, match=message):
        compiled(**{"program": program(lm), **options})
    assert lm.engine.prompts == []


def test_an_optimizer_that_returns_something_else_is_refused() -> None:
    class Strange:
        def compile(self, student: Any, *, trainset: Any) -> Any:
            return dspy.Predict("question -> answer")

    with pytest.raises(InputError, match="Strange returned a Predict"):
        compiled(optimizer=Strange(), step="judge")


def test_a_step_without_examples_is_refused() -> None:
    alike = TaskStream("alike", locks(1, 2))
    parts = Streams(alike, streams().dev, streams().held_out, check=False)

    def guess(prompt: Prompt) -> Reply:
        return {"thought": "Hm.", "action": "0"} if "action" in prompt.wants else apprentice(prompt)

    with pytest.raises(InputError, match="alike: no example for step 'select'"):
        compile_program(scaled(scripted_lm(guess)), parts, step="select", embedder=HashEmbedder())
