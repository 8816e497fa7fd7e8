"""What is rated at the same time: after a failure, or Ctrl-C, nothing that waits is begun."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from rb_dspy.compile.measure import in_threads
from rb_dspy.errors import BackboneError


def refuse() -> None:
    raise BackboneError("bad key")


def press_ctrl_c() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.parametrize(("end", "error"), [(refuse, BackboneError), (press_ctrl_c, KeyboardInterrupt)])
def test_what_waits_is_not_begun_after(end: Callable[[], None], error: type[BaseException]) -> None:
    begun: list[int] = []
    interrupted = threading.Event()

    def job(number: int) -> None:
        begun.append(number)
        if number == 8:  # all are queued by then
            end()
        interrupted.wait(0.05)

    with pytest.raises(error):
        in_threads(job, range(100), 4)
    assert len(begun) < 20


def test_results_are_in_the_order_of_the_inputs() -> None:
    assert in_threads(str, range(9), 3) == [str(number) for number in range(9)]
