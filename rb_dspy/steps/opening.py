"""A rollout's environment: made, reset, and closed in the end whatever happens."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TypeVar

from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Task
from rb_dspy.steps.ask import Do, Routine, Wanted
from rb_dspy.steps.seen import Seen, at_first

log = logging.getLogger("rb_dspy")

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """A fresh environment, reset, which whoever asked for it closes."""

    environment: Environment
    first: Seen | Exception
    """What it shows first, or what the reset raised: then too there is something to close."""
    closing: Closing


def opened(task: Task, environments: EnvironmentFactory, rollout: int) -> Wanted:
    """Wanted: an ``Opened`` for a rollout."""
    return _Opening(task, environments, rollout)


@dataclass(frozen=True)
class _Opening:
    task: Task
    environments: EnvironmentFactory
    rollout: int

    def run(self) -> Opened:
        made: list[Opened] = []
        try:
            fresh: Opened = self._made(made).run()
        except BaseException:  # a Ctrl-C that came when it was made already
            for orphan in made:
                orphan.closing()
            raise
        return fresh

    async def arun(self) -> Opened:
        """``run`` in a thread. When cancelled, what was made meanwhile is closed, since nobody gets it."""
        made: list[Opened] = []
        try:
            fresh: Opened = await self._made(made).arun()
        except asyncio.CancelledError:
            for orphan in made:
                await _closed(orphan.closing).arun()
            raise
        return fresh

    def _made(self, made: list[Opened]) -> Do:
        def make() -> Opened:
            environment = self.environments(self.task, str(self.rollout))
            closing = Closing(environment, self.task)
            first: Seen | Exception
            try:
                first = at_first(environment, self.task)
            except Exception as exc:  # noqa: BLE001 (raised where the episode begins)
                first = exc
            except BaseException:
                closing()
                raise
            made.append(Opened(environment, first, closing))
            return made[-1]

        return Do("making the environment", make)


def then_closed(fresh: Opened, work: Routine[T]) -> Routine[T]:
    """``work``, and the environment is closed in the end, by whoever runs its steps, unless ``work`` did so."""
    closing = fresh.closing
    try:
        try:
            result = yield from work
        except (Exception, asyncio.CancelledError):
            yield _closed(closing)
            raise
        if not closing.done:
            yield _closed(closing)
        return result
    finally:
        closing()  # given up or interrupted: then nobody ran what was yielded


def _closed(closing: Closing) -> Do:
    return Do("closing the environment", closing)


class Closing:
    """Closes an environment, once. Failing at that costs a warning, not the rollout: its work is done."""

    def __init__(self, environment: Environment, task: Task) -> None:
        self._environment = environment
        self._task = task
        self.done = False
        """Whether it is closed, or being closed."""

    def __call__(self) -> None:
        if self.done:
            return
        self.done = True
        try:
            self._environment.close()
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 (whatever an environment may raise)
            log.warning("the environment of task %s did not close: %s: %s", self._task.id, type(exc).__name__, exc)
