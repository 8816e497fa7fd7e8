"""A rollout's environment: made, reset, and closed in the end whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from operator import methodcaller
from typing import TypeVar

from rb_dspy.errors import InfrastructureError
from rb_dspy.protocols import Environment, EnvironmentFactory, is_instant
from rb_dspy.schema import Task
from rb_dspy.steps.ask import Do, Overdue, Routine, translated
from rb_dspy.steps.seen import Seen, at_first, check_plain
from rb_dspy.steps.threads import Lane
from rb_dspy.text import visible
from rb_dspy.wording import one_line

log = logging.getLogger("rb_dspy")

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """A fresh environment, reset, which whoever asked for it closes."""

    environment: Environment
    first: Seen | Exception
    """What it shows first, or what the reset raised: then too there is something to close."""
    rules: str
    closing: Closing
    lane: Lane
    """Where all that is asked of it runs under asyncio, and where it has a time limit."""


def within(
    task: Task,
    environments: EnvironmentFactory,
    rollout: int,
    work: Callable[[Opened], Routine[T]],
    seconds: float | None = None,
) -> Routine[T]:
    """``work`` in a fresh environment, which is closed in the end, by whoever runs the steps, unless ``work`` did so.

    Whenever a Ctrl-C comes, what the factory has given is closed: the one thing that knows of it is made before it is.
    ``seconds`` are those that a call of the environment may take; one that takes more raises ``Overdue``, and the
    environment is closed when that call comes back, for which nobody waits.
    """
    opening = _Opening(task, environments, rollout, seconds)
    try:
        fresh: Opened = yield opening
        return (yield from _then_closed(fresh, work(fresh)))
    finally:
        try:
            _Close(opening.closing, opening.lane).now()
        finally:
            opening.lane.leave()


class _Opening:
    """Wanted: an ``Opened`` for a rollout."""

    def __init__(self, task: Task, environments: EnvironmentFactory, rollout: int, seconds: float | None) -> None:
        self._task = task
        self._environments = environments
        self._rollout = rollout
        self.closing = Closing(task)
        self.lane = Lane(seconds, f"task {task.id}, rollout {rollout}")

    def run(self) -> Opened:
        fresh: Opened = self._making().run()
        return fresh

    async def arun(self) -> Opened:
        """``run`` in a thread. When cancelled, what was made meanwhile is closed, since nobody gets it."""
        try:
            fresh: Opened = await self._making().arun()
        except asyncio.CancelledError:
            await _Close(self.closing, self.lane).arun()
            raise
        return fresh

    def _making(self) -> Do:
        return Do("making the environment", self._make, self.lane)

    def _make(self) -> Opened:
        made = self.closing.made
        # What an environment makes of its arguments is neither the next rollout's nor the caller's.
        task = self._task.model_copy(update={"env_args": deepcopy(self._task.env_args)})
        # In one step of the interpreter: a Ctrl-C comes before it is made, or when it is in the list.
        made.extend(map(self._environments, [task], [str(self._rollout)]))
        if not made:  # to ``extend`` that is where there is no more to come
            raise InfrastructureError("making the environment broke: StopIteration")
        first: Seen | Exception
        rules = ""
        try:
            first = at_first(made[0], task)
            with translated("reading the environment's action rules"):
                rules = visible(made[0].action_rules)
            self.lane.here = is_instant(made[0])
        except Exception as exc:  # noqa: BLE001 (raised where the episode begins)
            first = exc
        except BaseException:
            self.closing()
            raise
        return Opened(made[0], first, rules, self.closing, self.lane)


def _then_closed(fresh: Opened, work: Routine[T]) -> Routine[T]:
    """``work``, and the environment is closed in the end, by whoever runs its steps, unless ``work`` did so."""
    closing = fresh.closing
    try:
        try:
            result = yield from work
        except (Exception, asyncio.CancelledError):
            yield _Close(closing, fresh.lane)
            raise
        if not closing.done:
            yield _Close(closing, fresh.lane)
        return result
    finally:
        _Close(closing, fresh.lane).now()  # given up or interrupted: then nobody ran what was yielded


@dataclass(frozen=True)
class _Close:
    """Wanted: that an environment is closed; behind a call that does not come back, when it does."""

    closing: Closing
    lane: Lane

    def run(self) -> None:
        if self._left_behind():
            return
        with suppress(Overdue):  # it was told of
            try:
                self._asked().run()
            except BaseException:  # a Ctrl-C ends the waiting; another one is not to be needed
                self.lane.lost = True
                raise

    async def arun(self) -> None:
        if not self._left_behind():
            with suppress(Overdue):
                await self._asked().arun()

    def now(self) -> None:
        """``run``, in this thread where the environment may be used in any."""
        if self.lane.seconds is None:
            self.closing()
        elif not self.closing.done:
            self.run()

    def _asked(self) -> Do:
        return Do("closing the environment", self.closing, self.lane)

    def _left_behind(self) -> bool:
        if self.lane.lost and not self.closing.awaits:
            self.closing.awaits = True
            self.lane.submit(self.closing)
        return self.lane.lost


class Closing:
    """Closes an environment, once. Failing at that costs a warning, not the rollout: its work is done."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.made: list[Environment] = []
        """The environment, as soon as it is made."""
        self._closings = map(methodcaller("close"), self.made)
        self.done = False
        """Whether it is closed."""
        self.awaits = False
        """Whether it will be when a call of it comes back that nobody waits for."""

    def __call__(self) -> None:
        if not self.made:
            return
        try:
            # In one step of the interpreter, too: a Ctrl-C comes before, or when the environment is closing itself.
            check_plain(next(self._closings, None), "close")
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 (whatever an environment may raise)
            log.warning("the environment of task %s did not close: %s", self._task.id, one_line(exc, kind=True))
        self.done = True
