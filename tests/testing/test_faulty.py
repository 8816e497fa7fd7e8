"""The environment with something wrong."""

from __future__ import annotations

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.environments.scored import ScoredEnvironments
from rb_dspy.errors import InfrastructureError
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Environment
from rb_dspy.testing import Corridor, Faulty, Lock
from tests.worlds import answers, backbones, corridor, lock


def test_with_nothing_wrong_it_is_the_other_one(bank: MemoryBank) -> None:
    for make, task in ((Corridor.make, corridor()), (Lock.make, lock("a", 1))):
        scored = [ScoredEnvironments(make), ScoredEnvironments(Faulty.of(make))]
        done = [
            ReasoningBank(backbones=backbones(answers))(task=task, bank=bank, environments=s, learn=False)
            for s in scored
        ]
        assert done[0].trajectory.steps == done[1].trajectory.steps
        assert done[0].answer == done[1].answer
        assert scored[0].outcome(task.id, "0") == scored[1].outcome(task.id, "0") is not None
    assert isinstance(Faulty(Corridor()), Environment)
    assert Faulty(Corridor()).reopen() == Corridor().reopen()
    assert Faulty(Lock("1")).reopen() is None


@pytest.mark.parametrize("at", ["reset", "step", "valid_actions"])
def test_it_breaks_where_it_is_told_to(bank: MemoryBank, at: str) -> None:
    make = Faulty.of(Corridor.make, at=at, after=0 if at == "reset" else 1, error=OSError("gone"))  # type: ignore[arg-type]
    with pytest.raises(InfrastructureError, match="OSError: gone"):
        ReasoningBank(backbones=backbones(answers), environments=make)(task=corridor(), bank=bank)
    calls = [Faulty(Lock("1"), at="answer", error=ValueError()), Faulty(Lock("1"), at="outcome", error=ValueError())]
    for environment, call in zip(calls, ("answer", "outcome"), strict=True):
        with pytest.raises(ValueError, match=r"^$"):
            getattr(environment, call)()
