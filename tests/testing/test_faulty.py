"""The environment with something wrong."""

from __future__ import annotations

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.environments.scored import ScoredEnvironments
from rb_dspy.protocols import Environment
from rb_dspy.testing import Corridor, Faulty, Lock, corridor, lock, scripted_program


def test_with_nothing_wrong_it_is_the_other_one(bank: MemoryBank) -> None:
    for make, task in ((Corridor.make, corridor()), (Lock.make, lock("a", 1))):
        scored = [ScoredEnvironments(make), ScoredEnvironments(Faulty.of(make))]
        done = [scripted_program()(task=task, bank=bank, environments=s, learn=False) for s in scored]
        assert done[0].trajectory.steps == done[1].trajectory.steps
        assert done[0].answer == done[1].answer
        assert scored[0].outcome(task.id, "0") == scored[1].outcome(task.id, "0") is not None
    assert isinstance(Faulty(Corridor()), Environment)
    assert Faulty(Corridor()).reopen() == Corridor().reopen()
    assert Faulty(Lock("1")).reopen() is None


def test_it_breaks_from_a_call_on() -> None:
    faulty = Faulty(Lock("1"), at="outcome", after=1, error=ValueError("gone"))
    assert faulty.outcome() is not None
    for _ in range(2):
        with pytest.raises(ValueError, match="gone"):
            faulty.outcome()


def test_it_shows_far_too_much() -> None:
    faulty = Faulty(Corridor(), padding=50_000)
    shown = [faulty.reset(corridor()), faulty.step("forward")[0], str(faulty.reopen())]
    assert [len(each) > 50_000 for each in shown] == [True] * 3
