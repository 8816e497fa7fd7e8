"""What is counted of calls that fail, by threads that fail at the same time."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rb_dspy.tracking.guard import Guard


def fails() -> None:
    raise TimeoutError


def works() -> None:
    pass


def elsewhere(function: Callable[[], object]) -> None:
    """Call ``function`` in another thread, and wait for it."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def is_tried(guard: Guard) -> bool:
    return guard("trying", lambda: True) is True


def test_what_works_after_what_failed_elsewhere_meanwhile_ends_the_row() -> None:
    guard = Guard()
    for _ in range(3):
        guard("slow", elsewhere, lambda: guard("quick", fails))
    assert guard.failures == 0
    assert is_tried(guard)


def test_what_failed_inside_counts_whatever_worked_elsewhere_meanwhile() -> None:
    guard = Guard()

    def fails_inside() -> None:
        elsewhere(lambda: guard("elsewhere", works))
        guard("inside", fails)

    guard("before", fails)
    guard("outside", fails_inside)
    assert guard.failures == 1
    guard("after", fails)
    guard("after", fails)
    assert not is_tried(guard)


def test_calls_inside_of_calls_count_in_the_order_in_which_they_end() -> None:
    guard = Guard()

    def fails_too() -> None:
        guard("inside", fails)
        guard("inside", works)
        fails()

    guard("outside", fails_too)
    assert guard.failures == 1
    guard("outside", lambda: guard("inside", fails))
    assert guard.failures == 2


class Clock:
    """In the place of ``time``."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("most", "lost"), [(14.0, True), (16.0, False)])
def test_seconds_are_lost_once_and_none_is_forgotten(monkeypatch: pytest.MonkeyPatch, most: float, lost: bool) -> None:
    """One call fails from 0 to 10, and another from 5 to 15."""
    clock = Clock()
    monkeypatch.setattr("rb_dspy.tracking.guard.time", clock)
    monkeypatch.setattr("rb_dspy.tracking.guard.MAX_SECONDS", most)
    guard = Guard()
    second_began, first_ended = threading.Event(), threading.Event()

    def second() -> None:
        second_began.set()
        first_ended.wait()
        clock.now = 15.0
        fails()

    other = threading.Thread(target=guard.part(), args=("second", second))

    def first() -> None:
        clock.now = 5.0
        other.start()
        second_began.wait()
        clock.now = 10.0
        fails()

    guard("first", first)
    first_ended.set()
    other.join()
    assert guard.given_up is lost
    assert is_tried(guard.part()) is not lost


def test_of_many_at_once_one_is_warned_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-9)
    try:
        for round in range(300):
            guard, together = Guard(), threading.Barrier(8)

            def warn(number: int, guard: Guard = guard, together: Any = together) -> None:
                together.wait()
                guard.part().warn(f"call {number}")

            threads = [threading.Thread(target=warn, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            warned = [record for record in caplog.records if record.levelno == logging.WARNING]
            assert len(warned) == round + 1
    finally:
        sys.setswitchinterval(before)
