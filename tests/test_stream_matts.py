"""Test-time scaling over a stream: ground truth of every rollout, and going on where a run was stopped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import (
    MaTTS,
    MattsConfig,
    MemoryBank,
    ReasoningBank,
    RunReport,
    StreamProgram,
    Task,
    TaskResult,
    TaskStream,
    Trajectory,
    run_stream,
)
from rb_dspy.bank import Ingest
from rb_dspy.config import AdaptiveConfig, MattsMode, ProgramConfig
from rb_dspy.errors import ConfigError, InfrastructureError
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Outcome, Step
from rb_dspy.stream import Program
from rb_dspy.testing import Doors, HashEmbedder, Prompt, Reply
from tests.worlds import answers, attempts, backbones, hall, openers, prompts


def scaled(script: Any = openers, mode: MattsMode = "parallel", k: int = 3, **config: Any) -> MaTTS:
    program = ReasoningBank(backbones=backbones(script), environments=Doors.make)
    return MaTTS(program, k, mode, config=MattsConfig(**config))


def agents(program: MaTTS) -> int:
    """Calls of the agent."""
    assert program.backbones is not None
    return sum("action" in prompt.wants for prompt in prompts(program.backbones))


def solved(result: TaskResult) -> list[bool | None]:
    return [outcome.success if outcome else None for outcome in result.outcomes]


def test_every_rollout_has_its_ground_truth_and_the_next_task_is_better(bank: MemoryBank) -> None:
    report = run_stream(scaled(), [hall("Ann", n) for n in range(2)], bank, run_id="r")
    first, second = report.results
    assert [rollout.rollout_id for rollout in first.rollouts] == ["0", "1", "2"]
    assert (solved(first), solved(second)) == ([False, True, False], [True, True, True])
    assert first.prediction is not None
    assert first.prediction.trajectory.rollout_id == "1"
    assert first.outcome is first.outcomes[1]
    assert first.passes == ()
    summary = report.summary()
    assert (summary.solved, summary.scored, summary.agreements) == (2, 2, 2)
    assert summary.scaling is not None
    assert [each.rate for each in summary.scaling.pass_at] == pytest.approx([2 / 3, 5 / 6, 1])
    assert (summary.scaling.best_of_n, summary.scaling.oracle, summary.scaling.mean_distinct) == (1, 1, 3)
    assert (summary.scaling.launched, summary.scaling.lost, summary.scaling.saved) == (6, 0, 0)


@pytest.mark.parametrize("mode", ["vanilla", "best_of_n"])
def test_what_no_rollout_teaches_alone_is_not_learned_without_contrast(bank: MemoryBank, mode: MattsMode) -> None:
    report = run_stream(scaled(mode=mode), [hall("Ann", n) for n in range(2)], bank, run_id="r")
    assert [solved(result) for result in report.results] == [[False, True, False]] * 2


def test_a_selector_that_errs_leaves_a_gap(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        said = openers(prompt)
        if "choice" not in prompt.wants or isinstance(said, str):
            return said
        return {**said, "choice": said["choice"] % 3 + 1}

    report = run_stream(scaled(script), [hall("Ann", 1)], bank, run_id="r")
    found = report.summary().scaling
    assert found is not None
    assert (found.best_of_n, found.oracle, found.selector_gap) == (0, 1, 1)
    assert report.summary().solved == 0


def _down(prompt: Prompt) -> Reply:
    raise lm15.ServerError("the selector is down")


@pytest.mark.parametrize(
    ("selector", "note"),
    [
        (_down, "the selector is down"),
        (lambda prompt: "hm?", "could not be read"),
        (lambda prompt: {"analysis": "The ninth.", "choice": 9}, "the selector chose attempt 9 of 3"),
    ],
    ids=["broke", "unreadable", "out of range"],
)
@pytest.mark.parametrize("mode", ["parallel", "best_of_n"])
def test_what_is_handed_in_without_a_choice_of_the_selector_is_counted(
    bank: MemoryBank, mode: MattsMode, selector: Callable[[Prompt], Reply], note: str
) -> None:
    def script(prompt: Prompt) -> Reply:
        broken = "choice" in prompt.wants and "number 1." in prompt["task"]
        return selector(prompt) if broken else openers(prompt)

    report = run_stream(scaled(script, mode), [hall("Ann", 0), hall("Bo", 1)], bank, run_id="r")
    found = report.summary().scaling
    assert found is not None
    assert found.fallbacks == 1
    notes = [result.prediction.selection.note for result in report.results if result.prediction]
    assert (notes[0], note in notes[1]) == ("", True)


def test_a_vote_that_is_lost_among_others_is_no_fallback(bank: MemoryBank) -> None:
    asked: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        if "choice" in prompt.wants:
            asked.append(prompt)
            if "action: open the green door" in attempts(prompt["candidates"])[0]:
                raise lm15.ServerError("down")
        return openers(prompt)

    report = run_stream(scaled(script, select={"orders": 3}), [hall("Ann", 1)], bank, run_id="r")
    found = report.summary().scaling
    assert found is not None
    assert report.results[0].prediction is not None
    selection = report.results[0].prediction.selection
    assert (len(asked), sum(selection.votes), selection.note != "", found.fallbacks) == (3, 2, True, 0)


def test_a_program_that_is_not_scaled_has_one_outcome_and_no_scaling(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(openers), environments=Doors.make)
    report = run_stream(program, [hall("Ann", 1, right="green")], bank, run_id="r")
    (result,) = report.results
    assert result.outcomes == (result.outcome,)
    assert solved(result) == [True]
    assert len(result.rollouts) == 1
    assert result.passes == ()
    assert report.summary().scaling is None


def test_a_rollout_that_breaks_is_counted_and_used_what_it_used(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and prompt.seed == 1 and prompt.turns:
            raise lm15.ServerError("overloaded")
        return openers(prompt)

    report = run_stream(scaled(script), [hall("Ann", 1, right="yellow")], bank, run_id="r")
    (result,) = report.results
    assert [rollout.rollout_id for rollout in result.rollouts] == ["0", "2"]
    assert solved(result) == [False, True]
    summary = report.summary()
    assert summary.scaling is not None
    assert (summary.scaling.launched, summary.scaling.lost) == (3, 1)
    assert [each.j for each in summary.scaling.pass_at] == [1, 2]
    assert {role: used.calls for role, used in summary.usage.items()} == {
        "agent": 6,  # the call that broke too
        "judge": 2,
        "contraster": 1,
        "selector": 1,
    }


def test_a_task_all_of_whose_rollouts_broke_is_recorded_and_three_of_them_end_the_run(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and "number 0." not in prompt["task"]:
            raise lm15.ServerError("overloaded")
        return openers(prompt)

    seen: list[TaskResult] = []
    with pytest.raises(InfrastructureError, match="3 tasks in a row broke"):
        run_stream(scaled(script), [hall("Ann", n) for n in range(9)], bank, run_id="r", on_result=seen.append)
    assert ["overloaded" in result.error for result in seen] == [False, True, True, True]
    assert [result.rollouts for result in seen[1:]] == [()] * 3
    assert seen[1].usage["agent"].calls == 3
    found = RunReport("r", seen).summary().scaling
    assert found is not None
    assert found.launched == 3


def test_rollouts_that_agreement_made_needless_are_counted(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        return {"thought": "", "action": "7"} if "action" in prompt.wants else {**_said(prompt), "label": "success"}

    program = ReasoningBank(backbones=backbones(script))
    matts = MaTTS(program, 5, config=MattsConfig(adaptive=AdaptiveConfig(enabled=True)))
    report = run_stream(
        matts, [Task(id="q", instruction="Three and four?", env_args={"answer": "7"})], bank, run_id="r"
    )
    found = report.summary().scaling
    assert found is not None
    assert (found.launched, found.saved, found.mean_distinct) == (2, 3, 1)
    assert [each.rate for each in found.pass_at] == [1, 1]
    assert report.results[0].prediction is not None
    assert (found.unconditional, report.results[0].prediction.unconditional) == (2, 2)


@pytest.mark.parametrize("wrong", ["8", "8, says {}"], ids=["failures agree", "failures differ"])
@pytest.mark.parametrize("first", [2, 3, 4])
def test_pass_at_j_is_what_a_rollout_is_worth_also_where_agreement_spares_some(
    bank: MemoryBank, first: int, wrong: str
) -> None:
    """Each way in which four rollouts may end, once: the mean is what is to be expected, without any chance.

    A rollout is right, wrong or lost, each as often; so it is worth a third, and one that came to its end a half.
    """
    k, ways = 4, list(itertools.product("rwl", repeat=4))

    def script(prompt: Prompt) -> Reply:
        if "action" not in prompt.wants:
            right = "final answer: 7" in prompt.text
            return {"reasons": "Counted.", "label": "success" if right else "failure", "analysis": "", "choice": 1}
        seed = prompt.seed or 0
        way = re.search(r"way (\w+)", prompt["task"])
        assert way is not None
        if way[1][seed] == "l":
            raise lm15.ServerError("overloaded")
        return {"thought": "", "action": "7" if way[1][seed] == "r" else wrong.format(seed)}

    tasks = [
        Task(id="".join(way), instruction=f"Three and four, the way {''.join(way)}?", env_args={"answer": "7"})
        for way in ways
    ]
    config = MattsConfig(adaptive=AdaptiveConfig(enabled=True, first=first))
    matts = MaTTS(ReasoningBank(backbones=backbones(script)), k, config=config)
    found = run_stream(matts, tasks, bank, run_id="r", learn=False).summary().scaling
    assert found is not None
    js = range(1, first + 1)
    assert {each.j: each.rate for each in found.pass_at} == pytest.approx({j: 1 - (1 / 2) ** j for j in js})
    assert {each.j: each.rate for each in found.pass_at_with_lost} == pytest.approx({j: 1 - (2 / 3) ** j for j in js})
    assert (found.unconditional, found.saved > 0) == ((first, True) if first < k else (None, False))


def _said(prompt: Prompt) -> dict[str, Any]:
    said = answers(prompt)
    assert not isinstance(said, str)
    return dict(said)


def test_passes_over_new_attempts(bank: MemoryBank) -> None:
    report = run_stream(scaled(mode="sequential"), [hall("Ann", 1, right="yellow")], bank, run_id="r")
    (result,) = report.results
    assert [outcome.success for outcome in result.passes if outcome] == [False, False, True]
    assert len(result.outcomes) == len(result.rollouts) == 3
    found = report.summary().scaling
    assert found is not None
    assert found.passes is not None
    assert (found.passes.after_first, found.passes.after_last, found.passes.after_any) == (0, 1, 1)
    assert (found.pass_at, found.compared, found.launched) == ((), 0, 3)
    assert report.summary().solved == 1


def test_a_last_attempt_that_cannot_be_read_is_told_from_what_was_handed_in(bank: MemoryBank) -> None:
    report = run_stream(scaled(speechless_at_last, "sequential", 2), [hall("Ann", 1, right="green")], bank, run_id="r")
    found = report.summary()
    assert found.scaling is not None
    assert found.scaling.passes is not None
    assert (found.scaling.passes.after_first, found.scaling.passes.after_last) == (1, 0)
    assert found.scaling.passes.handed_in == found.solved == 1


def speechless_at_last(prompt: Prompt) -> Reply:
    """The first attempt opens the green door; nothing can be read of the second, which a check asks for."""
    if "decision" in prompt.wants:
        return {"findings": "Look again.", "decision": "revise"}
    return "?" if "action" in prompt.wants and prompt.seed else openers(prompt)


def test_passes_over_one_attempt_that_is_opened_again(bank: MemoryBank) -> None:
    tries = ["8", "7", "9"]

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            return {"thought": "", "action": tries[prompt.turns]}
        if "decision" in prompt.wants:
            return {"findings": "Count again.", "decision": "revise"}
        return answers(prompt)

    matts = MaTTS(ReasoningBank(backbones=backbones(script)), 3, "sequential")
    report = run_stream(
        matts, [Task(id="q", instruction="Three and four?", env_args={"answer": "7"})], bank, run_id="r"
    )
    (result,) = report.results
    assert [outcome.success for outcome in result.passes if outcome] == [False, True, False]
    assert solved(result) == [False]
    found = report.summary().scaling
    assert found is not None
    assert found.passes is not None
    assert (found.passes.after_first, found.passes.after_last, found.passes.after_any) == (0, 0, 1)


class _Sums:
    """A question that may be answered again. Where the task is ``bad``, the answer 9 breaks it at ``where``."""

    action_rules = "a number"

    def __init__(self, task: Task, where: str) -> None:
        self.where = where if "bad" in task.instruction else ""
        self.said: list[str] = []

    def reset(self, task: Task) -> str:
        return "Say a number."

    def step(self, action: str) -> tuple[str, bool]:
        self._break("step", action)
        self.said.append(action)
        return "Noted.", not (self.where == "agent" and action == "9")

    def valid_actions(self) -> None:
        return None

    def answer(self) -> str | None:
        self._break("answer", self.said[-1])
        return self.said[-1]

    def outcome(self) -> Outcome:
        success = self.said[-1] == "7"
        return Outcome(reward=float(success), success=success)

    def reopen(self) -> str:
        if self.said[-1] == "8":
            self._break("reopen", "9")
        return "Say it again."

    def close(self) -> None:
        pass

    def _break(self, where: str, said: str) -> None:
        if where == self.where and said == "9":
            raise ValueError("the server fell over")


def _sums(where: str, first: str = "8", then: str = "9") -> tuple[MaTTS, list[Task]]:
    """Two good tasks, answered with 7, and two bad ones, which break at the correction of the ``first`` answer."""

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            if where == "agent" and prompt.turns > 1 and "bad" in prompt["task"]:
                raise lm15.ServerError("overloaded")
            good = "good" in prompt["task"]
            return {"thought": "", "action": "7" if good else then if prompt.turns else first}
        if "decision" in prompt.wants:
            return {"findings": "Count again.", "decision": "revise"}
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=lambda task, rollout_id: _Sums(task, where))
    tasks = [Task(id=f"q/{n}", instruction=f"{'bad' if n % 2 else 'good'} sum {n}") for n in range(4)]
    return MaTTS(program, 2, "sequential"), tasks


@pytest.mark.parametrize("where", ["reopen", "step", "answer", "agent"])
def test_an_answer_whose_correction_broke_is_scored_as_what_was_handed_in(bank: MemoryBank, where: str) -> None:
    matts, tasks = _sums(where)
    report = run_stream(matts, tasks, bank, run_id="r")
    assert [result.error for result in report.results] == [""] * 4
    assert [result.prediction.answer for result in report.results if result.prediction] == ["7", "8", "7", "8"]
    assert [result.outcome.success for result in report.results if result.outcome] == [True, False, True, False]
    assert [[o.success for o in result.passes if o] for result in report.results] == [[True, True], [False]] * 2
    summary = report.summary()
    assert (summary.solved, summary.scored, summary.lost, summary.success_rate) == (2, 4, 0, 0.5)
    assert summary.scaling is not None
    assert summary.scaling.lost == 2
    assert summary.scaling.passes is not None
    assert (summary.scaling.passes.tasks, summary.scaling.passes.handed_in) == (4, 2)
    matts, tasks = _sums(where)
    assert StreamProgram(matts, embedder=HashEmbedder())(stream=TaskStream("s", tuple(tasks))).score == 0.5


@pytest.mark.parametrize("where", ["step", "answer", "agent"])
def test_a_correction_that_broke_costs_no_success_that_was_reached_before(bank: MemoryBank, where: str) -> None:
    matts, tasks = _sums(where, first="7")
    report = run_stream(matts, tasks, bank, run_id="r")
    assert [result.outcome.success for result in report.results if result.outcome] == [True] * 4


def _waiting(bank: MemoryBank, task: Task, run_id: str, *doors: str) -> Ingest:
    """Rollouts of a run, which are not learned from yet: each opened the red door, then another."""

    def rollout(number: int, door: str) -> Trajectory:
        chest = "springs open" if door == task.env_args["right"] else "stays locked"
        steps = (
            Step(action="open the red door"),
            Step(action=f"open the {door} door", observation=f"The chest {chest}."),
        )
        return Trajectory(task_id=task.id, rollout_id=str(number), steps=steps)

    return bank.ingest(task, [rollout(number, door) for number, door in enumerate(doors)], run_id=run_id)


def test_several_rollouts_that_wait_are_learned_from_together(bank: MemoryBank) -> None:
    _waiting(bank, hall("Ann", 1), "r", "green", "blue")
    matts = scaled()
    (result,) = run_stream(matts, [hall("Ann", 1)], bank, run_id="r").results
    assert result.resumed
    assert (result.outcome, result.outcomes, result.passes) == (None, (), ())
    assert (agents(matts), len(result.rollouts)) == (0, 2)
    assert "blue door decides" in next(iter(bank.items())).content
    assert bank.pending() == []


def test_a_single_rollout_that_waits_is_learned_from_by_matts_too(bank: MemoryBank) -> None:
    _waiting(bank, hall("Ann", 1), "r", "blue")
    matts = scaled()
    (result,) = run_stream(matts, [hall("Ann", 1)], bank, run_id="r").results
    assert (result.resumed, agents(matts), bank.pending()) == (True, 0, [])


def test_reasoning_bank_leaves_several_rollouts_to_wait_and_does_the_task(bank: MemoryBank) -> None:
    waits = _waiting(bank, hall("Ann", 1), "r", "green", "blue")
    program = ReasoningBank(backbones=backbones(openers), environments=Doors.make)
    (result,) = run_stream(program, [hall("Ann", 1)], bank, run_id="r", resume="all").results
    assert (result.resumed, result.error) == (False, "")
    assert [ingest.state.id for ingest in bank.pending()] == [waits.state.id]


def test_a_run_that_goes_on_asks_no_model_about_what_it_learned_from_the_rollouts_that_were_left(
    bank: MemoryBank,
) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and not prompt.seed:
            raise lm15.ServerError("overloaded")
        return openers(prompt)

    tasks, matts = [hall("Ann", n) for n in range(2)], scaled(script)
    run_stream(matts, tasks[:1], bank, run_id="r")
    assert matts.backbones is not None
    asked = len(prompts(matts.backbones))
    assert run_stream(matts, tasks[:1], bank, run_id="r").results == []
    assert len(prompts(matts.backbones)) == asked
    assert len(run_stream(matts, tasks[:1], bank, run_id="between").results) == 1
    assert run_stream(matts, tasks[:1], bank, run_id="r").results == []
    assert [result.task for result in run_stream(matts, tasks, bank, run_id="r").results] == tasks[1:]
    assert len(run_stream(matts, tasks, bank, run_id="new").results) == 2


@pytest.mark.parametrize(
    ("mode", "step"),
    [
        *(("parallel", step) for step in ("action", "label", "choice", "memory_items")),
        *(("sequential", step) for step in ("action", "decision", "label", "memory_items")),
    ],
)
def test_a_scaled_run_that_was_stopped_anywhere_ends_as_if_it_had_not_been(
    tmp_path: Path, mode: MattsMode, step: str
) -> None:
    tasks = [hall("Ann", n) for n in range(3)]
    # A rollout is judged while others go on; an interrupt then would leave those out.
    all_ended = Barrier(3 if (mode, step) == ("parallel", "label") else 1)

    def stop(prompt: Prompt) -> Reply:
        if step in prompt.wants and "number 1." in prompt["task"]:
            all_ended.wait(10)
            raise KeyboardInterrupt
        return openers(prompt)

    def run(path: Path, script: Any) -> None:
        with MemoryBank.open(path, scope="s", embedder=HashEmbedder()) as bank:
            run_stream(scaled(script, mode), tasks, bank, run_id="r")

    def learned(path: Path) -> list[object]:
        with MemoryBank.open(path, scope="s", embedder=HashEmbedder(), create=False) as bank:
            assert (bank.pending(), bank.doctor()) == ([], [])
            return [
                (e.task.id, e.verdicts, [t.steps for t in e.trajectories], [i.content for i in e.items], e.shown)
                for e in bank.experiences()
            ]

    run(tmp_path / "whole.sqlite", openers)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped.sqlite", stop)
    run(tmp_path / "stopped.sqlite", openers)
    assert learned(tmp_path / "stopped.sqlite") == learned(tmp_path / "whole.sqlite")


def test_a_setting_that_would_break_every_task_ends_the_run(bank: MemoryBank) -> None:
    config = ProgramConfig.model_validate({"act": {"temperature": 0}})
    matts = MaTTS(ReasoningBank(config, backbones=backbones(openers), environments=Doors.make), 2)
    with pytest.raises(ConfigError, match="temperature 0"):
        run_stream(matts, [hall("Ann", n) for n in range(2)], bank, run_id="r")


def test_anything_that_is_called_like_a_program_can_be_run(bank: MemoryBank) -> None:
    class Counted:
        """A program of the user's own around one of ours."""

        def __init__(self, inner: ReasoningBank) -> None:
            self.inner = inner
            self.environments: EnvironmentFactory = inner.environments
            self.done: list[str] = []

        def __call__(
            self, *, task: Task, bank: MemoryBank, environments: EnvironmentFactory, run_id: str
        ) -> dspy.Prediction:
            self.done.append(task.id)
            return self.inner(task=task, bank=bank, environments=environments, run_id=run_id)

        def resume(self, ingest: Ingest) -> dspy.Prediction:
            return self.inner.resume(ingest)

    program = Counted(ReasoningBank(backbones=backbones(openers), environments=Doors.make))
    as_program: Program = program
    report = run_stream(as_program, [hall("Ann", 1, right="green")], bank, run_id="r")
    assert program.done == ["hall/Ann/1"]
    assert report.summary().solved == 1


def test_the_toy_hall_tells_nothing_before_both_doors_are_open() -> None:
    seen = []
    for right in ("red", "green"):
        hall_ = Doors.make(hall("Ann", 1, right=right), "0")
        seen.append([hall_.reset(hall("Ann", 1)), hall_.step("open the red door"), hall_.valid_actions()])
        assert not hall_.outcome().success
        assert hall_.step("open the red door") == ("Nothing happens: 'open the red door' is not possible here.", False)
        assert "springs open" in hall_.step("open the green door")[0]
        assert hall_.outcome().success
        assert hall_.valid_actions() == ()
    assert seen[0] == seen[1]
    shut = Doors.make(hall("Ann", 1, right="blue"), "0")
    shut.reset(hall("Ann", 1))
    shut.step("open the red door")
    assert shut.step("open the green door") == (
        "The green door is open, and the hall locks all others. The chest stays locked.",
        True,
    )
    assert not shut.outcome().success
    three = Task(id="t", instruction="x", env_args={"right": "b", "doors": ["a", "b", "c"]})
    assert Doors.make(three, "0").valid_actions() == ("open the a door", "open the b door", "open the c door")
