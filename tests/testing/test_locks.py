"""The public world: what helps in it, and that nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from rb_dspy import MaTTS, MemoryBank, TaskStream, run_stream
from rb_dspy.testing import Prompt, Reply, corridor, hall, lock, locks, locksmith, scripted_program
from rb_dspy.testing.locks import GUESS, code_of


def solved(program: Any, tasks: Any, bank: MemoryBank, **options: Any) -> list[bool]:
    return [result.solved for result in run_stream(program, tasks, bank, **options).results]


def test_a_lesson_opens_the_next_lock_of_its_maker_and_no_other(bank: MemoryBank) -> None:
    tasks = [lock(maker, n, tells=True) for maker in ("Abus", "Yale") for n in range(3)]
    assert solved(scripted_program(), tasks, bank.fork(), learn=False) == [False] * 6
    report = run_stream(scripted_program(), tasks, bank)
    typed = [result.prediction.answer for result in report.results if result.prediction]
    assert typed == [GUESS, code_of("Abus"), code_of("Abus"), GUESS, code_of("Yale"), code_of("Yale")]
    assert [result.solved for result in report.results] == [False, True, True] * 2
    assert solved(scripted_program(), [lock("Abus", 9, presses=3)], bank) == [True]


def test_without_memory_every_fifth_lock_opens_and_with_it_most(bank: MemoryBank) -> None:
    assert solved(scripted_program(), locks(20), bank.fork(), learn=False) == [n % 5 == 4 for n in range(20)]
    assert solved(scripted_program(), locks(20), bank).count(True) > 9


@pytest.mark.parametrize(("k", "expected"), [(1, [False] * 3), (3, [True] * 3)])
def test_only_several_attempts_tell_the_door_that_decides(bank: MemoryBank, k: int, expected: list[bool]) -> None:
    halls = TaskStream("halls", [hall("Elm", n) for n in range(3)])
    assert solved(MaTTS(scripted_program(), k=k), halls, bank) == expected
    assert any("blue" in item.content for item in bank.items()) is (k > 1)


def test_a_corridor_takes_several_steps(bank: MemoryBank) -> None:
    (result,) = run_stream(scripted_program(), [corridor(length=4)], bank).results
    assert (result.solved, len(result.rollouts[0].steps)) == (True, 4)


def test_a_script_knows_its_role_by_what_is_asked(bank: MemoryBank) -> None:
    roles: list[str] = []

    def script(prompt: Prompt) -> Reply:
        roles.append(prompt.role)
        assert prompt.get("no such field", "none") == "none"
        return locksmith(prompt)

    MaTTS(scripted_program(script), k=2)(task=hall(), bank=bank)
    assert sorted(set(roles)) == ["agent", "distiller", "judge", "selector"]
    MaTTS(scripted_program(script), k=2, mode="sequential")(task=corridor(), bank=bank)
    assert "checker" in roles
