"""Open the environment of a rollout."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rb_dspy.concurrency import guarded
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Task
from rb_dspy.text import summary_line

_log = logging.getLogger("rb_dspy")


@contextmanager
def open_environment(environments: EnvironmentFactory, task: Task, rollout: int) -> Iterator[Environment]:
    """Make the environment of a rollout and close it after the block.

    Raises:
        InfrastructureError: The factory failed. If ``close`` fails, only a warning is logged.
    """
    environment = guarded("the environment's factory", lambda: environments(task, str(rollout)))
    try:
        yield environment
    finally:
        try:
            environment.close()
        except Exception as exc:  # noqa: BLE001 (a user's environment may raise anything)
            _log.warning("task %s: closing the environment failed: %s", task.id, summary_line(exc, 300))
