"""Open the environment of a rollout, and turn what it raises into an error of the task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rb_dspy.concurrency import check_cancelled
from rb_dspy.errors import InfrastructureError, RBError, describe_error
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Task
from rb_dspy.text import summary_line

T = TypeVar("T")

_log = logging.getLogger("rb_dspy")


@contextmanager
def open_environment(environments: EnvironmentFactory, task: Task, rollout: int) -> Iterator[Environment]:
    """Make the environment of a rollout and close it after the block.

    Raises:
        InfrastructureError: The factory failed. If ``close`` fails, only a warning is logged.
    """
    environment = guarded("factory", lambda: environments(task, str(rollout)))
    try:
        yield environment
    finally:
        try:
            environment.close()
        except Exception as exc:  # noqa: BLE001 (a user's environment may raise anything)
            _log.warning("task %s: closing the environment failed: %s", task.id, summary_line(exc, 300))


def guarded(what: str, call: Callable[[], T]) -> T:
    """Call the environment; turn its exceptions into an ``InfrastructureError`` of this task."""
    check_cancelled()
    try:
        return call()
    except RBError:
        raise
    except Exception as exc:
        raise InfrastructureError(f"the environment's {what} failed: {describe_error(exc, 300)}") from exc
