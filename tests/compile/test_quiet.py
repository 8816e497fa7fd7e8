"""Nothing of the optimizers' on the terminal, no work done twice, and nothing left changed."""

from __future__ import annotations

import logging
import threading
import time

import dspy
import pytest
from dspy.teleprompt import bootstrap
from dspy.utils.parallelizer import ParallelExecutor

from rb_dspy.compile.quiet import quiet


def test_a_straggler_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Slow(dspy.Module):
        def forward(self, number: int) -> dspy.Prediction:
            started.append(number)
            time.sleep(1.5 if number else 0)
            return dspy.Prediction(number=number)

    def run() -> list[int]:
        started.clear()
        examples = [dspy.Example(number=number).with_inputs("number") for number in (0, 1)]
        dspy.Evaluate(devset=examples, metric=lambda *_: 1.0, num_threads=2)(Slow())
        return sorted(started)

    original = ParallelExecutor.__init__

    def impatient(self: ParallelExecutor, *args: object, **kwargs: object) -> None:
        original(self, *args, **{**kwargs, "timeout": 0.2})

    monkeypatch.setattr(ParallelExecutor, "__init__", impatient)
    assert run() == [0, 1, 1]  # what dspy does after its two minutes
    with quiet():
        assert run() == [0, 1]


def test_blocks_may_overlap_and_the_last_one_puts_all_back() -> None:
    before = (ParallelExecutor.__init__, bootstrap.tqdm, logging.getLogger("dspy.teleprompt").level)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with quiet():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with quiet():
        thread.start()
        assert entered.wait(10)
    assert ParallelExecutor(num_threads=2).timeout == 0  # the other block is not over
    assert "print" in vars(bootstrap)
    leave.set()
    thread.join(10)
    assert (ParallelExecutor.__init__, bootstrap.tqdm, logging.getLogger("dspy.teleprompt").level) == before
    assert "print" not in vars(bootstrap)
    assert ParallelExecutor(num_threads=2).timeout == 120
