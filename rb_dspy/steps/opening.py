"""A rollout's environment: made, reset, and closed in the end whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from operator import methodcaller
from typing import TypeVar

from rb_dspy.errors import InfrastructureError
from rb_dspy.protocols import Environment, EnvironmentFactory, is_instant
from rb_dspy.schema import Task
from rb_dspy.steps.ask import Do, Routine, translated
from rb_dspy.steps.seen import Seen, at_first
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
    """Where all that is asked of it runs under asyncio."""


def within(
    task: Task, environments: EnvironmentFactory, rollout: int, work: Callable[[Opened], Routine[T]]
) -> Routine[T]:
    """``work`` in a fresh environment, which is closed in the end, by whoever runs the steps, unless ``work`` did so.

    Whenever a Ctrl-C comes, what the factory has given is closed: the one thing that knows of it is made before it is.
    """
    opening = _Opening(task, environments, rollout)
    try:
        fresh: Opened = yield opening
        return (yield from _then_closed(fresh, work(fresh)))
    finally:
        opening.closing()
        opening.lane.leave()


class _Opening:
    """Wanted: an ``Opened`` for a rollout."""

    def __init__(self, task: Task, environments: EnvironmentFactory, rollout: int) -> None:
        self._task = task
        self._environments = environments
        self._rollout = rollout
        self.closing = Closing(task)
        self.lane = Lane()

    def run(self) -> Opened:
        fresh: Opened = self._making().run()
        return fresh

    async def arun(self) -> Opened:
        """``run`` in a thread. When cancelled, what was made meanwhile is closed, since nobody gets it."""
        try:
            fresh: Opened = await self._making().arun()
        except asyncio.CancelledError:
            await _closed(self.closing, self.lane).arun()
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
            yield _closed(closing, fresh.lane)
            raise
        if not closing.done:
            yield _closed(closing, fresh.lane)
        return result
    finally:
        closing()  # given up or interrupted: then nobody ran what was yielded


def _closed(closing: Closing, lane: Lane) -> Do:
    return Do("closing the environment", closing, lane)


class Closing:
    """Closes an environment, once. Failing at that costs a warning, not the rollout: its work is done."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.made: list[Environment] = []
        """The environment, as soon as it is made."""
        self._closings = map(methodcaller("close"), self.made)
        self.done = False
        """Whether it is closed."""

    def __call__(self) -> None:
        if not self.made:
            return
        try:
            # In one step of the interpreter, too: a Ctrl-C comes before, or when the environment is closing itself.
            next(self._closings, None)
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 (whatever an environment may raise)
            log.warning("the environment of task %s did not close: %s", self._task.id, one_line(exc, kind=True))
        self.done = True
