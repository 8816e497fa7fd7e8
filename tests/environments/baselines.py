"""Three policies without a language model. They show whether an environment's scoring can be trusted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal, get_args

from rb_dspy.errors import InputError
from rb_dspy.protocols import Environment, EnvironmentFamily
from rb_dspy.schema import Outcome, Task

Policy = Literal["random", "empty", "oracle"]
"""Blind guesses; an empty action every turn; the family's own solution."""


def run_baseline(
    family: EnvironmentFamily, task: Task, policy: Policy, *, seed: int = 0, max_steps: int = 50
) -> Outcome:
    """Play ``task`` once and return its outcome. Deterministic for task, policy and seed if the oracle is.

    If scoring is sound, the oracle reaches 1 and the other policies stay far below it on average. Raises ``InputError``
    for an unknown policy or a task without ground truth, and whatever the environment raises.
    """
    environment = family.make(task)
    try:
        environment.reset(task)
        for action in itertools.islice(_actions(family, environment, task, policy, seed), max_steps):
            if environment.step(action)[1]:
                break
        outcome = environment.outcome()
    finally:
        environment.close()
    if outcome is None:
        raise InputError(f"task {task.id!r} has no ground truth; baselines need tasks with a known outcome")
    return outcome


def _actions(
    family: EnvironmentFamily, environment: Environment, task: Task, policy: Policy, seed: int
) -> Iterator[str]:
    """Yield the policy's actions. Only the actions of the oracle end."""
    if policy == "oracle":
        yield from family.oracle(task)
        return
    rng = random.Random(f"{seed} {task.id}")  # a text seed gives the same numbers in every process
    while True:
        if policy == "empty":
            yield ""
        elif policy == "random":
            yield family.random_action(environment, task, rng)
        else:
            raise InputError(f"unknown policy {policy!r}; expected one of {', '.join(get_args(Policy))}")
