"""MaTTS: several rollouts of one task, one of them handed in, lessons from all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Environment, MaTTS, MemoryBank, Task, Verdict, errors
from rb_dspy.testing import Faulty, Lock, Prompt, Reply, lock
from rb_dspy.testing.locks import GUESS
from tests.scenarios.helpers import Spy, easy, learned_tasks, lessons, program

SIDE_BY_SIDE = ("parallel", "vanilla", "best_of_n")
CODE = "4711"


class Repeats(Lock):
    """A lock that says what was typed, also when it stays shut."""

    def step(self, action: str) -> tuple[str, bool]:
        observation, done = super().step(action)
        return f"{action}: {observation}", done


def types_code_in(*good: int) -> Any:
    """An agent that types the code in the rollouts with these numbers, and others in the others."""

    def agent(prompt: Prompt) -> Reply:
        number = prompt.seed or 0
        return {"thought": "I try.", "action": CODE if number in good else f"try{number}"}

    return agent


def scaled(spy: Any, k: int = 3, mode: Any = "parallel", breaks: Any = (), ids: list[str] | None = None) -> MaTTS:
    """The locks of the rollouts in ``breaks`` break at their first step."""

    def make(task: Task, rollout_id: str) -> Environment:
        if ids is not None:
            ids.append(rollout_id)
        made = Repeats.make(task, rollout_id)
        return Faulty(made, error=OSError("the lock has no power")) if int(rollout_id) in breaks else made

    return MaTTS(program(spy, environments=make), k=k, mode=mode)


def answers(done: Any) -> list[str]:
    return sorted(str(rollout.answer) for rollout in done.trajectories)


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_the_selected_rollout_is_the_answer(bank: MemoryBank, mode: str) -> None:
    spy, ids = Spy({"agent": types_code_in(1)}), list[str]()
    done = scaled(spy, mode=mode, ids=ids)(task=lock(code=CODE), bank=bank)

    assert answers(done) == [CODE, "try0", "try2"]
    assert done.answer == CODE
    assert done.trajectory == done.trajectories[done.selection.index]
    assert done.verdict == done.verdicts[done.selection.index]
    assert done.selection.analysis == "The last observations show it."
    assert sorted(verdict.label for verdict in done.verdicts) == ["failure", "failure", "success"]
    assert len({rollout.rollout_id for rollout in done.trajectories}) == len(set(ids)) == 3
    assert done.lost == ()
    assert (spy.roles_asked().count("agent"), spy.roles_asked().count("selector")) == (3, 1)
    assert learned_tasks(bank) == [easy().id], "one experience holds all rollouts"
    assert len(done.experience.trajectories) == len(done.experience.verdicts) == 3
    assert bank.pending() == []


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_the_bank_knows_which_rollout_was_submitted(bank: MemoryBank, mode: str, tmp_path: Path) -> None:
    several = scaled(Spy({"agent": types_code_in(1)}), mode=mode)
    several.judge = lambda task, rollout: Verdict(label="failure")
    done = several(task=lock(code=CODE), bank=bank, run_id="r")
    assert done.experience.submitted == done.selection.index != 0
    again = several(task=lock(code=CODE), bank=bank, run_id="r")
    assert (again.stored, again.answer, again.selection.index) == (True, CODE, done.selection.index)
    bank.export_jsonl(tmp_path / "x.jsonl")
    other = MemoryBank.open(scope="other", embedder=bank.embedder)
    other.import_jsonl(tmp_path / "x.jsonl")
    assert other.experiences()[0].submitted == done.selection.index
    with pytest.raises(errors.InputError, match="submitted is 3; expected the place of a trajectory"):
        other.append(done.experience.task, done.trajectories, done.verdicts, [], submitted=3)


def test_parallel_contrasts_all_rollouts_in_one_prompt(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_in(1)})
    done = scaled(spy)(task=lock(code=CODE), bank=bank)
    (asked,) = spy.of("distiller")
    assert all(answer in asked.text for answer in answers(done))
    assert lessons(bank) == {f"What Abus made opens with {CODE}."}


def test_vanilla_distils_each_rollout_alone(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_in(1)})
    done = scaled(spy, mode="vanilla")(task=lock(code=CODE), bank=bank)
    asked = spy.of("distiller")
    assert len(asked) == 3
    assert [sum(answer in prompt.text for answer in answers(done)) for prompt in asked] == [1, 1, 1]
    assert lessons(bank) == {f"What Abus made opens with {CODE}.", "A guess stays shut; look for a lesson."}


def test_best_of_n_distils_the_selected_rollout_only(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_in(1)})
    scaled(spy, mode="best_of_n")(task=lock(code=CODE), bank=bank)
    (asked,) = spy.of("distiller")
    assert f"It opens with {CODE}." in asked.text
    assert "try0" not in asked.text
    assert lessons(bank) == {f"What Abus made opens with {CODE}."}


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_a_rollout_that_breaks_costs_only_itself(bank: MemoryBank, mode: str) -> None:
    done = scaled(Spy({"agent": types_code_in(1)}), mode=mode, breaks=[2])(task=lock(code=CODE), bank=bank)
    assert answers(done) == [CODE, "try0"]
    assert done.answer == CODE
    assert len(done.lost) == 1
    assert "no power" in str(done.lost[0])
    assert len(done.experience.trajectories) == 2
    assert bank.pending() == []


def test_a_single_survivor_is_learned_from(bank: MemoryBank) -> None:
    done = scaled(Spy({"agent": types_code_in(1)}), breaks=[0, 2])(task=lock(code=CODE), bank=bank)
    assert (done.answer, len(done.lost), len(done.trajectories)) == (CODE, 2, 1)
    assert lessons(bank) == {f"What Abus made opens with {CODE}."}


@pytest.mark.parametrize("mode", [*SIDE_BY_SIDE, "sequential"])
def test_if_all_rollouts_break_the_task_is_an_infrastructure_error(bank: MemoryBank, mode: str) -> None:
    with pytest.raises(errors.InfrastructureError):
        scaled(Spy(), mode=mode, breaks=range(20))(task=easy(), bank=bank)
    assert (bank.experiences(), bank.pending()) == ([], [])


async def test_awaited_it_does_the_same(bank: MemoryBank) -> None:
    done = await scaled(Spy({"agent": types_code_in(0)}), k=2).acall(task=lock(code=CODE), bank=bank)
    assert (done.answer, answers(done)) == (CODE, [CODE, "try1"])
    assert learned_tasks(bank) == [easy().id]


def test_one_rollout_is_the_plain_loop(bank: MemoryBank) -> None:
    spy = Spy()
    done = scaled(spy, k=1)(task=easy(), bank=bank)
    assert spy.roles_asked() == ["agent", "judge", "distiller"]
    assert (done.answer, done.lost) == (GUESS, ())
