"""Three policies without a language model. They show whether an environment's scoring can be trusted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal

from rb_dspy.protocols import EnvironmentFamily
from rb_dspy.schema import Outcome, Task

Policy = Literal["random", "empty", "oracle"]
"""Blind guesses; an empty action every turn; the family's own solution."""


def run_baseline(
    family: EnvironmentFamily, task: Task, policy: Policy, *, seed: int = 0, max_steps: int = 50
) -> Outcome:
    """Play ``task`` once and return its outcome: if scoring is sound, 1 for the oracle, far below it for the others."""
    environment = family.make(task)
    rng = random.Random(f"{seed} {task.id}")  # a text seed gives the same numbers in every process
    actions: dict[Policy, Iterator[str]] = {
        "oracle": iter(family.oracle(task) if policy == "oracle" else ()),
        "empty": itertools.repeat(""),
        "random": (family.random_action(environment, task, rng) for _ in itertools.count()),
    }
    try:
        environment.reset(task)
        for action in itertools.islice(actions[policy], max_steps):
            if environment.step(action)[1]:
                break
        outcome = environment.outcome()
    finally:
        environment.close()
    assert outcome is not None
    return outcome
