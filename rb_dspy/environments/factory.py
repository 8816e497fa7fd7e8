"""From a task to an environment, by the name that the task carries."""

from __future__ import annotations

from rb_dspy.plugins import environment_family
from rb_dspy.protocols import Environment
from rb_dspy.schema import Task


def make_environment(task: Task, rollout_id: str) -> Environment:  # noqa: ARG001 (EnvironmentFactory)
    """A fresh environment of the family ``task.env``; the rollout's id makes no difference to it.

    Raises ``InputError`` for a family that is not installed, ``MissingDependency`` where the family cannot run here.
    """
    return environment_family(task.env).make(task)
