"""Rollouts that have come to their end, and their place in the bank while others of their call are under way."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Protocol, TypeVar

from rb_dspy.bank import Ingest
from rb_dspy.schema import Task, Trajectory
from rb_dspy.steps.ask import Do, Routine, Stopped
from rb_dspy.steps.later import later

log = logging.getLogger("rb_dspy")

T = TypeVar("T")

Told = Callable[[int, Trajectory], object]
"""Is told of a rollout, or an attempt, that has come to its end, with its number; before its environment is closed. It
must not raise.
"""


class Keep(Protocol):
    """Puts rollouts into the bank, in the place of what is there of them; twice is once. See ``MemoryBank.ingest``."""

    def __call__(self, trajectory: Sequence[Trajectory], *, instead: Ingest | None) -> Ingest: ...


class Ended:
    """The rollouts, or attempts, of one call that have come to their end, by their number.

    One that has ended is in the bank ``later.SECONDS`` after, so that a process that dies loses no more: all that have
    ended by then as one group, which a larger one takes the place of, in the end the call's own. Those that end within
    that time of each other, or of the call's rollouts, cost no write of their own. With ``early=False`` nothing is kept
    before it is asked for.
    """

    def __init__(self, task: Task, keep: Keep, *, early: bool = True) -> None:
        self._task = task
        self._keep = keep
        self._ended: dict[int, Trajectory] = {}
        self._due = False
        self._turn = Lock()  # of threads of ours only: a Ctrl-C must not meet who holds it
        self._done: Event | None = None
        self._kept: Ingest | None = None
        self.needless = not early
        """Whether nothing is to be kept early, or not any more."""

    def put(self, number: int, trajectory: Trajectory) -> None:
        """Take down that it has ended: a ``Told``, which does not wait either."""
        if self._ended.get(number) is trajectory:
            return
        self._ended[number] = trajectory
        if not (self._due or self.needless):
            self._due = True
            later(self)

    def group(self) -> list[Trajectory]:
        """Those that have ended, in the order of their numbers."""
        ended = self._ended.copy()  # in one go: others may end meanwhile
        return [ended[number] for number in sorted(ended)]

    def keep(self, group: Sequence[Trajectory]) -> Ingest:
        """These are the call's, in the place of what was kept early, of which nothing comes any more."""
        self.stop()
        return self._put_away(group)

    def stop(self) -> None:
        """Nothing is kept early any more; what is being kept now is waited for."""
        self.needless = True
        if self._done is not None:
            self._done.wait()

    def interrupted(self) -> None:
        """Keep those that have ended. Failing at it costs a warning: the caller is to see what interrupted the work."""
        group = self.group()
        if group:
            try:
                self.keep(group)
            except Exception as exc:  # noqa: BLE001 (whatever a store may raise)
                self._warn(exc)

    def run(self) -> None:
        """Keep those that have ended, while others are under way: see ``later.Job``."""
        with self._turn:
            self._due = False  # before they are looked at: one that ends from now on is kept after this
            self._done = Event()  # before it is looked whether to go on: who stops this sees it then, or is seen
            try:
                if not self.needless:
                    self._put_away(self.group())
            except Exception as exc:  # noqa: BLE001 (as above)
                self._warn(exc)
            finally:
                self._done.set()

    def _put_away(self, group: Sequence[Trajectory]) -> Ingest:
        ingest = self._keep(group, instead=self._kept)
        if ingest.experience is None:  # else it is a name that was learned from before, and nothing waits there
            self._kept = ingest
        return ingest

    def _warn(self, exc: Exception) -> None:
        log.warning("task %s: the rollouts that had ended could not be kept: %s", self._task.id, exc)


def kept(work: Routine[T], ended: Ended) -> Routine[T]:
    """``work``, which fills ``ended``; those are kept where it is interrupted, given up or cancelled, which goes on."""
    try:
        return (yield from work)
    except (GeneratorExit, KeyboardInterrupt, Stopped):
        ended.interrupted()
        raise
    except CancelledError:
        yield Do("keeping the rollouts that had ended", ended.interrupted)
        raise
    except Exception:
        yield Do("waiting for rollouts that are being kept", ended.stop)
        raise
    finally:
        ended.stop()
