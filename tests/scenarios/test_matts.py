"""MaTTS: several rollouts of one task, one of them handed in, lessons from all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MaTTS, MemoryBank, Verdict, errors
from rb_dspy.testing import Prompt, Reply
from tests.scenarios.world import (
    GUESS,
    Spy,
    keypad,
    keypad_rooms,
    last,
    learned_tasks,
    lessons,
    program,
)

SIDE_BY_SIDE = ("parallel", "vanilla", "best_of_n")
CODE = "right"


def types_code_at(*good: int) -> Any:
    """An agent that types the right code at the keypads with these numbers, and its own number at the others."""

    def agent(prompt: Prompt) -> Reply:
        number = int(last(prompt).split("Keypad ")[1].split()[0])
        return {"thought": "I try.", "action": CODE if number in good else f"try{number}"}

    return agent


def scaled(spy: Any, k: int = 3, mode: Any = "parallel", breaks: Any = (), ids: list[str] | None = None) -> MaTTS:
    return MaTTS(program(spy, environments=keypad_rooms(breaks, ids)), k=k, mode=mode)


def answers(done: Any) -> list[str]:
    return sorted(str(rollout.answer) for rollout in done.trajectories)


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_the_selected_rollout_is_the_answer(bank: MemoryBank, mode: str) -> None:
    spy, ids = Spy({"agent": types_code_at(2)}), list[str]()
    done = scaled(spy, mode=mode, ids=ids)(task=keypad(code=CODE), bank=bank)

    assert answers(done) == [CODE, "try1", "try3"]
    assert done.answer == CODE
    assert done.trajectory == done.trajectories[done.selection.index]
    assert done.verdict == done.verdicts[done.selection.index]
    assert done.selection.analysis == "The keypads say so."
    assert sorted(verdict.label for verdict in done.verdicts) == ["failure", "failure", "success"]
    assert len({rollout.rollout_id for rollout in done.trajectories}) == len(set(ids)) == 3
    assert done.lost == ()
    assert (spy.roles_asked().count("agent"), spy.roles_asked().count("selector")) == (3, 1)
    assert learned_tasks(bank) == [keypad().id], "one experience holds all rollouts"
    assert len(done.experience.trajectories) == len(done.experience.verdicts) == 3
    assert bank.pending() == []


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_the_bank_knows_which_rollout_was_submitted(bank: MemoryBank, mode: str, tmp_path: Path) -> None:
    several = scaled(Spy({"agent": types_code_at(2)}), mode=mode)
    several.judge = lambda task, rollout: Verdict(label="failure")
    done = several(task=keypad(code=CODE), bank=bank, run_id="r")
    assert done.experience.submitted == done.selection.index != 0
    again = several(task=keypad(code=CODE), bank=bank, run_id="r")
    assert (again.stored, again.answer, again.selection.index) == (True, CODE, done.selection.index)
    bank.export_jsonl(tmp_path / "x.jsonl")
    other = MemoryBank.open(scope="other", embedder=bank.embedder)
    other.import_jsonl(tmp_path / "x.jsonl")
    assert other.experiences()[0].submitted == done.selection.index
    with pytest.raises(errors.InputError, match="submitted is 3; expected the place of a trajectory"):
        other.append(done.experience.task, done.trajectories, done.verdicts, [], submitted=3)


def test_parallel_contrasts_all_rollouts_in_one_prompt(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_at(2)})
    done = scaled(spy)(task=keypad(code=CODE), bank=bank)
    (asked,) = spy.of("distiller")
    assert all(f"took {answer}" in asked.text for answer in answers(done))
    assert lessons(bank) == {f"Here the code is {CODE}."}


def test_vanilla_distils_each_rollout_alone(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_at(2)})
    done = scaled(spy, mode="vanilla")(task=keypad(code=CODE), bank=bank)
    asked = spy.of("distiller")
    assert len(asked) == 3
    assert [sum(f"took {answer}" in prompt.text for answer in answers(done)) for prompt in asked] == [1, 1, 1]
    assert lessons(bank) == {f"Here the code is {CODE}.", "A guess stays shut; ask."}


def test_best_of_n_distils_the_selected_rollout_only(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_at(2)})
    scaled(spy, mode="best_of_n")(task=keypad(code=CODE), bank=bank)
    (asked,) = spy.of("distiller")
    assert f"took {CODE} and opens" in asked.text
    assert "try1" not in asked.text
    assert lessons(bank) == {f"Here the code is {CODE}."}


def test_sequential_checks_and_keeps_an_answer_that_the_environment_has_judged(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_at(2)})
    done = scaled(spy, k=2, mode="sequential")(task=keypad(code=CODE), bank=bank)
    assert (done.answer, len(spy.of("agent"))) == ("try1", 1)
    assert "checker" in spy.roles_asked()
    assert done.verdict.label == "failure"
    assert learned_tasks(bank) == [keypad().id]


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_a_rollout_that_breaks_costs_only_itself(bank: MemoryBank, mode: str) -> None:
    done = scaled(Spy({"agent": types_code_at(2)}), mode=mode, breaks=[3])(task=keypad(code=CODE), bank=bank)
    assert answers(done) == [CODE, "try1"]
    assert done.answer == CODE
    assert len(done.lost) == 1
    assert "no power" in str(done.lost[0])
    assert len(done.experience.trajectories) == 2
    assert bank.pending() == []


def test_a_single_survivor_is_learned_from(bank: MemoryBank) -> None:
    done = scaled(Spy({"agent": types_code_at(2)}), breaks=[1, 3])(task=keypad(code=CODE), bank=bank)
    assert (done.answer, len(done.lost), len(done.trajectories)) == (CODE, 2, 1)
    assert lessons(bank) == {f"Here the code is {CODE}."}


@pytest.mark.parametrize("mode", [*SIDE_BY_SIDE, "sequential"])
def test_if_all_rollouts_break_the_task_is_an_infrastructure_error(bank: MemoryBank, mode: str) -> None:
    with pytest.raises(errors.InfrastructureError):
        scaled(Spy(), mode=mode, breaks=range(1, 20))(task=keypad(), bank=bank)
    assert (bank.experiences(), bank.pending()) == ([], [])


async def test_awaited_it_does_the_same(bank: MemoryBank) -> None:
    done = await scaled(Spy({"agent": types_code_at(1)}), k=2).acall(task=keypad(code=CODE), bank=bank)
    assert (done.answer, answers(done)) == (CODE, [CODE, "try2"])
    assert learned_tasks(bank) == [keypad().id]


def test_one_rollout_is_the_plain_loop(bank: MemoryBank) -> None:
    spy = Spy()
    done = scaled(spy, k=1)(task=keypad(), bank=bank)
    assert spy.roles_asked() == ["agent", "judge", "distiller"]
    assert (done.answer, done.lost) == (GUESS, ())
