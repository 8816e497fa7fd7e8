"""Running a program over a stream: order, resuming, errors, and what the report says."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import dspy
import numpy as np
import pytest
from dspy import lm15

from rb_dspy import (
    Backbones,
    MaTTS,
    MemoryBank,
    ReasoningBank,
    StreamProgram,
    Task,
    TaskResult,
    TaskStream,
    Trajectory,
    evaluate,
    run_stream,
)
from rb_dspy.bank import Pending
from rb_dspy.config import ActConfig, ProgramConfig
from rb_dspy.errors import BackboneError, ConfigError, InfrastructureError, InputError
from rb_dspy.protocols import EnvironmentFactory, Vectors
from rb_dspy.schema import Step
from rb_dspy.testing import (
    Doors,
    Faulty,
    HashEmbedder,
    Lock,
    Prompt,
    Reply,
    corridor,
    hall,
    lock,
    locksmith,
    scripted_lm,
    scripted_program,
)

Script = Callable[[Prompt], Reply]


def program(script: Script = locksmith) -> ReasoningBank:
    return scripted_program(script)


def scaled(script: Script = locksmith, mode: Any = "parallel", k: int = 3) -> MaTTS:
    return MaTTS(scripted_program(script), k, mode)


def locks(count: int, maker: str = "Abus") -> list[Task]:
    return [lock(maker, number) for number in range(count)]


OVERLOADED = lm15.ServerError("overloaded")


def fails(output: str, *serials: int, error: Exception | type[BaseException] = OVERLOADED) -> Script:
    """Fails if ``output`` is asked for of one of these locks."""

    def script(prompt: Prompt) -> Reply:
        if output in prompt.wants and any(f"serial {serial}." in prompt.text for serial in serials):
            raise error
        return locksmith(prompt)

    return script


def babbles(output: str, *serials: int) -> Script:
    """Gives an answer that cannot be parsed, likewise."""

    def script(prompt: Prompt) -> Reply:
        asked = output in prompt.wants and any(f"serial {serial}." in prompt.text for serial in serials)
        return "so-so" if asked else locksmith(prompt)

    return script


def learned(bank: MemoryBank) -> list[str]:
    return [experience.task.id for experience in bank.experiences()]


def waiting(bank: MemoryBank) -> list[str]:
    return [pending.task.id for pending in bank.pending()]


def asked(run: ReasoningBank | MaTTS) -> int:
    assert run.backbones is not None
    return len(run.backbones.lm("agent").engine.prompts)


# Order and numbers


@pytest.mark.parametrize("form", ["list", "jsonl"])
def test_tasks_are_done_in_order_and_a_run_that_goes_on_does_only_the_rest(
    bank: MemoryBank, tmp_path: Path, form: str
) -> None:
    tasks = [lock("Abus", number) for number in (3, 1, 2)]
    TaskStream("mine", tasks).to_jsonl(tmp_path / "tasks.jsonl")
    stream: Any = tasks if form == "list" else TaskStream.from_jsonl(tmp_path / "tasks.jsonl")
    reported: list[TaskResult] = []
    report = run_stream(program(), stream[:2], bank, run_id="monday", on_result=reported.append)
    assert [result.task for result in report.results] == tasks[:2]
    assert reported == report.results
    rest = run_stream(program(), stream, bank, run_id="monday")
    assert ([result.task for result in rest.results], rest.summary().skipped) == (tasks[2:], 2)
    runs = [run_stream(program(), stream, bank) for _ in range(2)]
    assert [len(each.results) for each in runs] == [3, 3], "a run without a name is a run of its own"
    assert learned(bank) == [task.id for task in tasks] * 3
    assert len({experience.run_id for experience in bank.experiences()}) == 3


@pytest.mark.parametrize("make", [scaled, lambda: program(locksmith)])
def test_without_learning_every_task_is_done_and_nothing_is_written(bank: MemoryBank, make: Any) -> None:
    tasks = [hall("Ann", n) for n in range(2)]
    run_stream(scaled(), tasks[:1], bank, run_id="r")
    before, run = bank.experiences(), make()
    report = run_stream(run, tasks, bank, run_id="r", learn=False, environments=Doors.make)
    assert len(report.results) == 2
    assert (bank.experiences(), bank.pending()) == (before, [])
    assert not [
        prompt for prompt in run.backbones.lm("agent").engine.prompts if {"label", "memory_items"} & {*prompt.wants}
    ]


def test_a_rollout_that_was_cut_off_is_counted(bank: MemoryBank) -> None:
    config = ProgramConfig(act=ActConfig(max_steps=2))
    walker = scripted_program(locksmith, config)
    report = run_stream(walker, [corridor(1, 2), corridor(2, 9)], bank)
    assert [row["stop_reason"] for row in report.rows()] == ["done", "max_steps"]
    assert report.summary().truncated == 1


def test_rows_are_plain_and_tell_what_failed(bank: MemoryBank) -> None:
    def environments(task: Task, rollout_id: str) -> Any:
        make = Faulty.of(Lock.make, error=OSError("gone")) if "serial 1." in task.instruction else Lock.make
        return make(task, rollout_id)

    report = run_stream(program(), locks(3), bank, run_id="r", environments=environments)
    rows = report.rows()
    assert [(row["run_id"], row["position"], row["task"]) for row in rows] == [
        ("r", number + 1, task.id) for number, task in enumerate(locks(3))
    ]
    assert [(row["solved"], row["verdict"], row["steps"], row["rollouts"]) for row in rows] == [
        (False, "failure", 1, 1),
        (False, None, None, 0),
        (False, "failure", 1, 1),
    ]
    assert "gone" in rows[1]["error"]
    assert rows[2]["recalled"] == rows[0]["learned"] == ["Do not guess"]
    used = report.summary().usage.values()
    assert sum(row["tokens"] for row in rows) == sum(each.prompt_tokens + each.completion_tokens for each in used)
    assert json.loads(json.dumps(rows)) == rows


def test_a_text_in_a_list_is_another_occasion_and_a_task_is_not(bank: MemoryBank) -> None:
    run = ReasoningBank(backbones=Backbones(agent=scripted_lm(locksmith)))
    text = "What is one and one?"
    shown = []
    for given in ([text], (each for each in [text]), TaskStream("texts", [text])):
        (result,) = run_stream(run, given, bank).results
        assert result.prediction is not None
        shown.append(len(result.prediction.memory.items))
    assert shown == [0, 1, 0]


def test_whatever_is_called_like_a_program_can_be_run(bank: MemoryBank) -> None:
    class Counted:
        def __init__(self, inner: ReasoningBank) -> None:
            self.inner = inner
            self.environments: EnvironmentFactory = inner.environments
            self.done: list[str] = []

        def __call__(self, *, task: Any, **more: Any) -> dspy.Prediction:
            self.done.append(task.id)
            return self.inner(task=task, **more)

        def resume(self, pending: Pending, environments: EnvironmentFactory) -> dspy.Prediction:
            return self.inner.resume(pending, environments)

    counted = Counted(program())
    assert run_stream(counted, [lock("Abus", 1, code="0000")], bank).summary().solved == 1
    assert counted.done == ["lock/Abus/1"]


def test_other_arguments_that_cannot_be_used_are_refused_before_a_model_is_asked(bank: MemoryBank) -> None:
    async def note(result: TaskResult) -> None: ...

    run, wrong = program(), cast(Any, "bank.sqlite")
    with pytest.raises(InputError):
        run_stream(run, locks(1), wrong)
    with pytest.raises(InputError):
        run_stream(wrong, locks(1), bank)
    with pytest.raises(InputError):
        run_stream(run, locks(1), bank, run_id="")
    with pytest.raises(InputError):
        run_stream(run, locks(1), bank, on_result=note)
    assert asked(run) == 0


# Errors


@pytest.mark.parametrize("output", ["action", "label", "memory_items"])
def test_a_call_that_fails_costs_one_task(bank: MemoryBank, output: str) -> None:
    report = run_stream(program(fails(output, 1)), locks(3), bank, run_id="r")
    assert ["overloaded" in result.error for result in report.results] == [False, True, False]
    assert (report.summary().infrastructure_errors, report.summary().scored) == (1, 3)
    assert learned(bank) == ["lock/Abus/0", "lock/Abus/2"]
    assert waiting(bank) == ([] if output == "action" else ["lock/Abus/1"])
    if output != "action":
        assert report.results[1].usage["agent"].calls == 1, "what a failed task cost is counted"


@pytest.mark.parametrize("output", ["label", "memory_items"])
def test_an_answer_that_cannot_be_parsed_costs_one_task_and_never_ends_a_run(bank: MemoryBank, output: str) -> None:
    report = run_stream(program(babbles(output, 1, 2, 3, 4)), locks(6), bank, run_id="r")
    assert [bool(result.error) for result in report.results] == [False, True, True, True, True, False]
    assert waiting(bank) == [f"lock/Abus/{n}" for n in (1, 2, 3, 4)]


def test_a_task_that_cannot_be_used_costs_only_itself(bank: MemoryBank) -> None:
    bad = Task(id="bad", instruction="Solve it.", env="reasoning-gym", env_args={"nonsense": 1})
    good = Task(id="good", instruction="What is 1 + 1?", env_args={"answer": "2"})
    report = run_stream(ReasoningBank(backbones=Backbones(agent=scripted_lm(locksmith))), [bad, good], bank)
    assert [bool(result.error) for result in report.results] == [True, False]


def test_a_vector_that_cannot_be_used_costs_only_its_task() -> None:
    class Odd(HashEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            vectors = super().embed(texts).copy()
            if len(texts) > 1 and "serial 1." in texts[0]:  # texts of lessons are embedded with that of their task
                vectors[1] = np.nan
            return vectors

    with MemoryBank.open(scope="s", embedder=Odd()) as bank:
        for expected in ([False, True, False], [True]):  # a run that goes on meets it again
            report = run_stream(program(), locks(3), bank, run_id="r")
            assert [bool(result.error) for result in report.results] == expected
        assert waiting(bank) == ["lock/Abus/1"]


def test_scoring_that_fails_costs_the_score_and_not_the_lesson(bank: MemoryBank) -> None:
    environments = Faulty.of(Lock.make, at="outcome", error=ValueError("no ground truth"))
    (result,) = run_stream(program(), locks(1), bank, environments=environments).results
    assert "no ground truth" in result.error
    assert (result.outcome, result.label) == (None, "failure")
    assert learned(bank) == ["lock/Abus/0"]


def test_a_setting_that_every_task_would_meet_ends_the_run(bank: MemoryBank) -> None:
    config = ProgramConfig.model_validate({"act": {"temperature": 0}})
    run = MaTTS(scripted_program(locksmith, config), 2)
    with pytest.raises(ConfigError):
        run_stream(run, [hall("Ann", n) for n in range(2)], bank)


def test_a_model_that_cannot_be_used_ends_the_run_and_the_rest_is_done_later(bank: MemoryBank) -> None:
    with pytest.raises(BackboneError):
        run_stream(program(fails("action", 1, error=lm15.AuthError("bad key"))), locks(3), bank, run_id="r")
    assert learned(bank) == ["lock/Abus/0"]
    assert len(run_stream(program(), locks(3), bank, run_id="r").results) == 2


@pytest.mark.parametrize(("stop_after", "count"), [(3, 3), (None, 9)])
def test_a_server_that_is_down_ends_the_run_before_it_uses_up_the_stream(
    bank: MemoryBank, stop_after: int | None, count: int
) -> None:
    results: list[TaskResult] = []
    down = program(fails("action", *range(9)))
    with pytest.raises(InfrastructureError, match="overloaded") if stop_after else nullcontext():
        run_stream(down, locks(9), bank, on_result=results.append, stop_after=stop_after)
    assert len(results) == count


class Unscored(Lock):
    """A lock whose scorer is down."""

    def outcome(self) -> Any:
        raise OSError("the scorer is down")


def test_scoring_that_breaks_ends_a_run_and_a_run_that_ends_keeps_its_report(bank: MemoryBank) -> None:
    unscored = ReasoningBank(
        backbones=Backbones(agent=scripted_lm(locksmith)),
        environments=lambda task, rollout_id: Unscored.make(task, rollout_id),
    )
    with pytest.raises(InfrastructureError, match="the scorer is down") as stopped:
        run_stream(unscored, locks(9), bank)
    report = stopped.value.report  # type: ignore[attr-defined]
    assert [result.task for result in report.results] == locks(3)
    assert repr(report.run_id) in str(stopped.value)
    assert "0 of 3 solved, 3 broke" in str(stopped.value)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        run_stream(program(fails("action", 1, error=KeyboardInterrupt)), locks(3), bank)
    assert len(interrupted.value.report.results) == 1  # type: ignore[attr-defined]


def test_a_task_that_breaks_is_not_solved_whoever_counts(bank: MemoryBank) -> None:
    knows = fails("action", 1)
    tasks = [Task(id=str(n), instruction=f"Serial {n}. serial {n}.", env_args={"answer": "open"}) for n in range(4)]

    def script(prompt: Prompt) -> Reply:
        said = knows(prompt)
        return {**said, "action": "open"} if isinstance(said, dict) and "action" in prompt.wants else said

    asked = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)))
    summary = run_stream(asked, tasks, bank).summary()
    one_call = StreamProgram(asked, embedder=HashEmbedder())(stream=TaskStream("asked", tasks)).score
    arms = evaluate(["none", "bank"], tasks, program=asked, orders=1, embedder=HashEmbedder()).arms.values()
    assert [summary.success_rate, one_call, *(arm.success.mean for arm in arms if arm.success)] == [0.75] * 4


def test_dspys_trace_does_not_grow_unless_somebody_collects_it(bank: MemoryBank) -> None:
    before = len(dspy.settings.trace)
    run_stream(program(), locks(2), bank)
    assert len(dspy.settings.trace) == before
    with dspy.context(trace=[]):
        run_stream(program(), locks(2), bank)
        assert len(dspy.settings.trace) > 2


def test_errors_that_do_not_follow_each_other_do_not_end_a_run(bank: MemoryBank) -> None:
    report = run_stream(program(fails("action", 0, 1, 3, 5)), locks(7), bank)
    assert report.summary().infrastructure_errors == 4


# Going on


@pytest.mark.parametrize("script", [fails("label", 1), babbles("memory_items", 1)])
def test_what_waits_is_learned_from_first_and_not_done_again(bank: MemoryBank, script: Script) -> None:
    run_stream(program(script), locks(2), bank, run_id="r")
    run = program()
    report = run_stream(run, locks(4), bank, run_id="r")
    assert [(each.task.id, each.resumed, each.position) for each in report.results] == [
        ("lock/Abus/1", True, 2),
        ("lock/Abus/2", False, 3),
        ("lock/Abus/3", False, 4),
    ]
    first = report.results[0]
    assert (first.error, first.outcome, first.solved) == ("", None, None)
    assert set(first.usage) == {"judge", "distiller"}
    assert first.prediction is not None
    assert first.prediction.memory.items, "the agent had been shown the lesson of the first lock"
    assert (report.summary().resumed, report.summary().scored, waiting(bank)) == (1, 2, [])


def test_a_resume_that_fails_is_no_resumed_task_and_the_rollout_goes_on_waiting(bank: MemoryBank) -> None:
    broken = fails("label", 1)
    run_stream(program(broken), locks(2), bank, run_id="r")
    report = run_stream(program(broken), locks(3), bank, run_id="r")
    assert [(each.task.id, each.resumed, bool(each.error)) for each in report.results] == [
        ("lock/Abus/1", False, True),
        ("lock/Abus/2", False, False),
    ]
    assert (report.summary().resumed, waiting(bank)) == (0, ["lock/Abus/1"])


def test_what_waits_of_another_run_is_left_to_it(bank: MemoryBank) -> None:
    steps = (Step(action="0000", observation="It stays shut."),)
    bank.record(lock("Abus", 1), Trajectory(task_id="lock/Abus/1", steps=steps), run_id="night")
    report = run_stream(program(), locks(2), bank, run_id="day")
    assert [result.resumed for result in report.results] == [False, False]
    assert [(each.task.id, each.run_id) for each in bank.pending()] == [("lock/Abus/1", "night")]


def test_rollouts_that_wait_together_are_for_matts(bank: MemoryBank) -> None:
    run_stream(scaled(lambda prompt: _no_lessons(prompt)), [hall("Ann", 0)], bank, run_id="r")
    plain = scripted_program(locksmith)
    (result,) = run_stream(plain, [hall("Ann", 0)], bank, run_id="r").results
    assert (result.resumed, bool(result.error), waiting(bank)) == (False, True, ["hall/Ann/0"])
    run = scaled()
    (result,) = run_stream(run, [hall("Ann", 0)], bank, run_id="r").results
    assert (result.resumed, len(result.rollouts), waiting(bank)) == (True, 3, [])
    assert asked(run) == 5, "the judge thrice, the contraster, the selector"


def _no_lessons(prompt: Prompt) -> Reply:
    if "memory_items" in prompt.wants:
        raise lm15.ServerError("the contraster is down")
    return locksmith(prompt)


def _contents(path: Path) -> list[object]:
    with MemoryBank.open(path, scope="s", embedder=HashEmbedder(), create=False) as bank:
        assert (bank.pending(), bank.doctor()) == ([], [])
        return [
            (e.task.id, e.verdicts, [t.steps for t in e.trajectories], [i.content for i in e.items], e.shown)
            for e in bank.experiences()
        ]


@pytest.mark.parametrize(
    ("mode", "output"), [("parallel", "label"), ("parallel", "memory_items"), ("sequential", "label")]
)
def test_a_scaled_run_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path: Path, mode: Any, output: str) -> None:
    tasks = [hall("Ann", n) for n in range(3)]
    together = Barrier(3 if (mode, output) == ("parallel", "label") else 1)

    def stop(prompt: Prompt) -> Reply:
        if output in prompt.wants and "serial 1." in prompt["task"]:
            together.wait(10)
            raise KeyboardInterrupt
        return locksmith(prompt)

    def run(path: Path, script: Script) -> None:
        with MemoryBank.open(path, scope="s", embedder=HashEmbedder()) as bank:
            run_stream(scaled(script, mode), tasks, bank, run_id="r")

    run(tmp_path / "whole.sqlite", locksmith)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped.sqlite", stop)
    run(tmp_path / "stopped.sqlite", locksmith)
    assert _contents(tmp_path / "stopped.sqlite") == _contents(tmp_path / "whole.sqlite")


# Scaling


def test_every_rollout_has_its_ground_truth_and_the_next_task_is_better(bank: MemoryBank) -> None:
    report = run_stream(scaled(), [hall("Ann", n) for n in range(2)], bank)
    first, second = report.results
    assert [[bool(each and each.success) for each in result.outcomes] for result in (first, second)] == [
        [False, True, False],
        [True, True, True],
    ]
    assert first.outcome is first.outcomes[1]
    found = report.summary().scaling
    assert found is not None
    assert [each.rate for each in found.pass_at] == pytest.approx([2 / 3, 5 / 6, 1])
    assert (found.compared, found.handed_in, found.solvable) == (2, 2, 2)
    assert (found.launched, found.lost, found.mean_distinct) == (6, 0, 3)


def test_passes_of_sequential_scaling(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        return {"findings": "On.", "decision": "revise"} if "decision" in prompt.wants else locksmith(prompt)

    config = ProgramConfig(act=ActConfig(max_steps=1))
    run = MaTTS(scripted_program(script, config), 3, "sequential")
    report = run_stream(run, [corridor(length=3)], bank)
    (result,) = report.results
    assert [outcome.success for outcome in result.passes if outcome] == [False, False, True]
    found = report.summary().scaling
    assert found is not None
    assert found.passes is not None
    assert (found.passes.tasks, found.passes.after_first, found.passes.after_last) == (1, 0, 1)
    assert (found.pass_at, found.compared, report.summary().solved) == ((), 0, 1)


def test_a_notebook_shows_the_progress_of_a_run_and_a_script_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(count: int, **more: Any) -> str:
        with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
            run_stream(scripted_program(), locks(count), bank, **more)
        return capsys.readouterr().out

    assert run(3) == ""
    seen: list[Any] = []
    assert run(3, on_progress=seen.append) == ""
    assert [(each.done, each.total, each.solved, each.scored) for each in seen] == [(n, 3, 0, n) for n in (1, 2, 3)]
    assert seen[0].tokens < seen[2].tokens
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    shown = run(3)
    assert [part.split(" · ")[0] for part in shown.split("\r")[1:]] == ["1 of 3", "2 of 3", "3 of 3"]
    assert (shown.count("\n"), shown[-1]) == (1, "\n")
    assert run(3, on_progress=lambda progress: None) == ""
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        StreamProgram(scripted_program(), bank)(stream=TaskStream("locks", locks(3)))
    assert capsys.readouterr().out == "", "a part of a compile"
