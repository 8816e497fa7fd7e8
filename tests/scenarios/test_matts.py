"""MaTTS: several rollouts of one task, one of them handed in, lessons from all."""

from __future__ import annotations

from typing import Any

import pytest
from dspy import lm15

from rb_dspy import MaTTS, MemoryBank, errors, run_stream
from rb_dspy.testing import Prompt, Reply
from tests.scenarios.world import (
    GUESS,
    Spy,
    keypad,
    keypad_rooms,
    keypads,
    last,
    learned_tasks,
    lessons,
    program,
    resume_all,
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


def test_sequential_checks_and_tries_again_and_hands_in_the_last_attempt(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_at(2)})
    done = scaled(spy, k=2, mode="sequential")(task=keypad(code=CODE), bank=bank)
    assert done.answer == CODE
    assert "checker" in spy.roles_asked()
    assert "Wrong code." in spy.of("agent")[-1].text, "the new attempt reads what the check found"
    assert done.verdict.label == "success"
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


def test_a_selector_that_is_down_costs_no_task(bank: MemoryBank) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    done = scaled(Spy({"selector": down}))(task=keypad(), bank=bank)
    assert done.answer == GUESS
    assert done.selection.note
    assert len(done.experience.trajectories) == 3


def test_rollouts_wait_if_the_contraster_is_down_and_are_resumed_together(bank: MemoryBank) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    broken = scaled(Spy({"agent": types_code_at(2), "distiller": down}))
    with pytest.raises(errors.InfrastructureError):
        broken(task=keypad(code=CODE), bank=bank, run_id="r")
    assert bank.pending()
    assert bank.experiences() == []

    spy = Spy()
    resume_all(scaled(spy), bank)
    assert spy.of("agent") == [], "no rollout is done again"
    (experience,) = bank.experiences()
    assert sorted(str(rollout.answer) for rollout in experience.trajectories) == [CODE, "try1", "try3"]
    assert lessons(bank) == {f"Here the code is {CODE}."}
    assert bank.pending() == []


def test_a_contrasted_lesson_needs_no_evidence(bank: MemoryBank) -> None:
    def plain(prompt: Prompt) -> Reply:
        draft = {"title": "Compare", "description": "For keypads.", "content": "Compare codes."}
        return {"analysis": "So.", "memory_items": [draft]}

    done = scaled(Spy({"distiller": plain}))(task=keypad(), bank=bank)
    assert [item.content for item in done.memory_items] == ["Compare codes."]


async def test_awaited_it_does_the_same(bank: MemoryBank) -> None:
    done = await scaled(Spy({"agent": types_code_at(1)}), k=2).acall(task=keypad(code=CODE), bank=bank)
    assert (done.answer, answers(done)) == (CODE, [CODE, "try2"])
    assert learned_tasks(bank) == [keypad().id]


def test_one_rollout_is_the_plain_loop(bank: MemoryBank) -> None:
    spy = Spy()
    done = scaled(spy, k=1)(task=keypad(), bank=bank)
    assert spy.roles_asked() == ["agent", "judge", "distiller"]
    assert (done.answer, done.lost) == (GUESS, ())


def test_a_report_has_pass_at_k_and_what_the_selector_misses(bank: MemoryBank) -> None:
    """Of four tasks with two rollouts each, three have a success; a selector that says "1" hands in some of them."""
    spy = Spy({"agent": types_code_at(1, 4, 5, 6), "selector": lambda prompt: {"analysis": "Any.", "choice": 1}})
    report = run_stream(scaled(spy, k=2), keypads(4, code=CODE), bank, run_id="r")
    scaling = report.summary().scaling
    assert scaling is not None
    assert [(each.j, each.tasks) for each in scaling.pass_at] == [(1, 4), (2, 4)]
    assert [each.rate for each in scaling.pass_at] == pytest.approx([0.5, 0.75])
    assert scaling.oracle == pytest.approx(0.75)
    assert scaling.best_of_n == report.summary().success_rate
    assert scaling.selector_gap == pytest.approx(0.75 - (report.summary().success_rate or 0))
    assert (scaling.launched, scaling.lost) == (8, 0)


def test_settings_that_cannot_work_are_refused(bank: MemoryBank) -> None:
    with pytest.raises(errors.ConfigError):
        MaTTS(program(), k=2, mode="no such mode")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError):
        MaTTS(program(), k=0)
