"""Three policies without a language model. They show whether an environment's scoring can be trusted."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from rb_dspy.errors import InputError
from rb_dspy.protocols import Environment, EnvironmentFamily
from rb_dspy.schema import Outcome, Task

Policy = Literal["random", "empty", "oracle"]
"""Blind guesses; an empty action every turn; the family's own solution."""


@dataclass(frozen=True)
class BaselineRow:
    """Result of one policy: means over ``tasks`` tasks. Reward and success are in [0, 1], seconds are per task."""

    policy: Policy
    tasks: int
    reward: float
    success: float
    steps: float
    seconds: float


def run_baseline(
    family: EnvironmentFamily, task: Task, policy: Policy, *, seed: int = 0, max_steps: int = 50
) -> Outcome:
    """Play ``task`` once and return its outcome. Deterministic for task, policy and seed if the oracle is.

    Raises ``InputError`` for an unknown policy or a task without ground truth, and whatever the environment raises.
    """
    return _play(family, task, policy, seed, max_steps)[0]


def compare(
    family: EnvironmentFamily, *, seed: int = 0, tasks: int = 20, max_steps: int = 50
) -> tuple[BaselineRow, ...]:
    """Play the first ``tasks`` tasks for ``seed`` with each policy; one row per policy.

    If scoring is sound, the oracle reaches 1 and the other policies stay below it. Raises ``InputError`` if the family
    generates no tasks.
    """
    drawn = list(itertools.islice(family.tasks(seed=seed), tasks))
    if not drawn:
        raise InputError(f"{family.name} generated no tasks to compare on; expected tasks >= 1")
    rows = []
    for policy in get_args(Policy):
        start = time.perf_counter()
        results = [_play(family, task, policy, seed, max_steps) for task in drawn]
        n = len(results)
        rows.append(
            BaselineRow(
                policy=policy,
                tasks=n,
                reward=sum(outcome.reward for outcome, _ in results) / n,
                success=sum(outcome.success for outcome, _ in results) / n,
                steps=sum(steps for _, steps in results) / n,
                seconds=(time.perf_counter() - start) / n,
            )
        )
    return tuple(rows)


def _play(family: EnvironmentFamily, task: Task, policy: Policy, seed: int, max_steps: int) -> tuple[Outcome, int]:
    """Return the outcome and the number of steps."""
    environment = family.make(task)
    try:
        environment.reset(task)
        steps, done = 0, False
        for action in itertools.islice(_actions(family, environment, task, policy, seed), max_steps):
            _, done = environment.step(action)
            steps += 1
            if done:
                break
        outcome = environment.outcome()
    finally:
        environment.close()
    if outcome is None:
        raise InputError(f"task {task.id!r} has no ground truth; baselines need tasks with a known outcome")
    return outcome, steps


def _actions(
    family: EnvironmentFamily, environment: Environment, task: Task, policy: Policy, seed: int
) -> Iterator[str]:
    """Yield the policy's actions. Only the oracle's end."""
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
