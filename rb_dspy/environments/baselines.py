"""Three players that need no language model: they show whether an environment's scoring can be trusted."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Iterator
from typing import Literal, get_args

from rb_dspy.errors import InputError
from rb_dspy.protocols import Environment, EnvironmentFamily
from rb_dspy.schema import Outcome, Task

Policy = Literal["random", "empty", "oracle"]
"""Blind guesses; an empty action each turn; the family's own solution."""

POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclasses.dataclass(frozen=True)
class BaselineRow:
    """What one policy reached: means over ``tasks`` tasks; reward and success in [0, 1], seconds a task."""

    policy: Policy
    tasks: int
    reward: float
    success: float
    steps: float
    seconds: float


def run_baseline(
    family: EnvironmentFamily, task: Task, policy: Policy, *, seed: int = 0, max_steps: int = 50
) -> Outcome:
    """Play ``task`` once and give its outcome. Deterministic for task, policy and seed, as far as the oracle is.

    Raises ``InputError`` for an unknown policy or a task without ground truth, and what the environment raises.
    """
    return _play(family, task, policy, seed, max_steps)[0]


def compare(
    family: EnvironmentFamily, *, seed: int = 0, tasks: int = 20, max_steps: int = 50
) -> tuple[BaselineRow, ...]:
    """One row a policy, over the same first ``tasks`` tasks of the family's stream for ``seed``.

    Sound scoring shows random and empty below the oracle, and the oracle at 1. Raises ``InputError`` where the family
    generates no tasks.
    """
    drawn = list(itertools.islice(family.tasks(seed=seed), tasks))
    if not drawn:
        raise InputError(f"{family.name} gave no tasks to compare on; expected tasks >= 1 of a family that makes some")
    rows = []
    for policy in POLICIES:
        start = time.perf_counter()
        played = [_play(family, task, policy, seed, max_steps) for task in drawn]
        n = len(played)
        rows.append(
            BaselineRow(
                policy=policy,
                tasks=n,
                reward=sum(outcome.reward for outcome, _ in played) / n,
                success=sum(outcome.success for outcome, _ in played) / n,
                steps=sum(steps for _, steps in played) / n,
                seconds=(time.perf_counter() - start) / n,
            )
        )
    return tuple(rows)


def _play(family: EnvironmentFamily, task: Task, policy: Policy, seed: int, max_steps: int) -> tuple[Outcome, int]:
    """The outcome, and how many steps were taken."""
    environment = family.make(task)
    steps = 0
    try:
        environment.reset(task)
        actions = _actions(family, environment, task, policy, seed)
        for steps, action in enumerate(itertools.islice(actions, max_steps), start=1):  # noqa: B007 (used below)
            if environment.step(action)[1]:
                break
        outcome = environment.outcome()
        if outcome is None:
            raise InputError(f"task {task.id!r} has no ground truth; baselines need a task whose outcome is known")
        return outcome, steps
    finally:
        environment.close()


def _actions(
    family: EnvironmentFamily, environment: Environment, task: Task, policy: Policy, seed: int
) -> Iterator[str]:
    """What the policy does, turn by turn; without end but for the oracle."""
    if policy == "oracle":
        return iter(family.oracle(task))
    if policy == "empty":
        return itertools.repeat("")
    if policy == "random":
        rng = random.Random(f"{seed} {task.id}")  # seeding with text is the same in every process
        return (family.random_action(environment, task, rng) for _ in itertools.count())
    raise InputError(f"unknown policy {policy!r}; expected one of {', '.join(POLICIES)}")
