"""Parts of the caller's own that are empty, and so false to Python, are parts all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rb_dspy import MaTTS, MemoryBank, ReasoningBank
from rb_dspy.config import ProgramConfig, RetrieveConfig
from rb_dspy.schema import Retrieved, Task
from rb_dspy.testing import Lock
from tests.worlds import backbones, lock


class Made:
    """A factory that is as long as the list of what it made: empty at first."""

    def __init__(self) -> None:
        self.made: list[Lock] = []

    def __len__(self) -> int:
        return len(self.made)

    def __call__(self, task: Task, rollout_id: str) -> Lock:
        self.made.append(Lock.make(task, rollout_id))
        return self.made[-1]


def never(task: Task, rollout_id: str) -> Lock:
    raise AssertionError("these environments are not asked for")


CALLS: dict[str, Callable[..., Any]] = {
    "plain": lambda program, **call: program(**call),
    "asyncio": lambda program, **call: asyncio.run(program.acall(**call)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("k", [1, 3])
def test_an_empty_factory_makes_the_environments(bank: MemoryBank, k: int, call: str) -> None:
    alone, made = ReasoningBank(backbones=backbones(), environments=never), Made()
    CALLS[call](alone if k == 1 else MaTTS(alone, k=k), task=lock("a", 1), bank=bank, environments=made)
    assert len(made) == k


def test_an_empty_reranker_chooses_among_all_candidates(bank: MemoryBank) -> None:
    class Last:
        def __init__(self) -> None:
            self.given: list[int] = []

        def __len__(self) -> int:
            return 0

        def __call__(self, query: str, found: list[Retrieved]) -> list[Retrieved]:
            self.given.append(len(found))
            return found[::-1]

    last = Last()
    program = ReasoningBank(
        ProgramConfig(retrieve=RetrieveConfig(candidates=3)),
        backbones=backbones(),
        environments=Lock.make,
        reranker=last,
    )
    for maker in "abc":
        program(task=lock(maker, 1), bank=bank)
    program.recall(lock("d", 1), bank)
    assert last.given[-1] == 3
