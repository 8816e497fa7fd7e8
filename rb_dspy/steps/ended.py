"""Rollouts that had come to their end when the call that they belong to was interrupted: they wait in the bank."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rb_dspy.bank import Ingest
from rb_dspy.schema import Task, Trajectory
from rb_dspy.steps.ask import Do, Routine, Stopped

log = logging.getLogger("rb_dspy")

T = TypeVar("T")

Ended = dict[int, Trajectory]
"""Rollouts, or attempts, by their number, put in as each comes to its end, before its environment is closed."""

Keep = Callable[[list[Trajectory]], Ingest]
"""Puts rollouts into the bank. Doing it twice is doing it once."""


def kept(work: Routine[T], task: Task, ended: Ended, keep: Keep) -> Routine[T]:
    """``work``, which fills ``ended``; those are kept where it is interrupted, given up or cancelled, which goes on."""
    try:
        return (yield from work)
    except (GeneratorExit, KeyboardInterrupt, Stopped):
        _after_all(task, ended, keep)
        raise
    except CancelledError:
        yield Do("keeping the rollouts that had ended", partial(_after_all, task, ended, keep))
        raise


def _after_all(task: Task, ended: Ended, keep: Keep) -> None:
    """Failing at it costs a warning: what interrupted the work is what the caller is to see."""
    if ended:
        try:
            keep([ended[number] for number in sorted(ended)])
        except Exception as exc:  # noqa: BLE001 (whatever a store may raise)
            log.warning("task %s: the rollouts that had ended could not be kept: %s", task.id, exc)
