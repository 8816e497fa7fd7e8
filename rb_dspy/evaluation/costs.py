"""Estimate the cost of an evaluation before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pydantic

from rb_dspy.backbones.usage import price_of, total_usage
from rb_dspy.evaluation.arms import ArmLike
from rb_dspy.evaluation.plan import Plan, Tasks, describe, plan_of, settings_of
from rb_dspy.evaluation.records import TaskRecord, check_plan, read_records
from rb_dspy.matts import BankProgram
from rb_dspy.text import counted

PILOT = 8
"""Tasks of each arm from which the others are estimated. On scripted streams of growing prompts the tokens were off by
at most 27 %; from two tasks by up to 41 %, where tasks differ much."""


class Estimate(pydantic.BaseModel, frozen=True):
    """Calls, tokens and cost of the remaining tasks, by those that are done; None before each arm has one."""

    tasks: int
    """Over all arms and orders."""
    done: int
    """Tasks that are done already."""
    calls: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    """In US dollars; None if the price of a model is unknown. Prompt tokens from a provider's cache count in full."""
    seconds: float | None = None
    """With the number of jobs."""
    assumes: str

    def __str__(self) -> str:
        left = f" ({self.done:,} done)" if self.done else ""
        if self.calls is None or self.seconds is None:
            return f"{counted(self.tasks, 'task')}{left}; {self.assumes}"
        cost = "cost unknown" if self.cost is None else f"${self.cost:,.2f}"
        tokens = f"{self.prompt_tokens:,} + {self.completion_tokens:,} tokens"
        use = f"{self.calls:,} calls, {tokens}, {cost}, {self.seconds / 3600:.1f} h"
        return f"{counted(self.tasks, 'task')}{left}: {use}; {self.assumes}"


def estimate(
    arms: Mapping[str, ArmLike] | Sequence[ArmLike],
    stream: Tasks,
    *,
    program: BankProgram | None = None,
    orders: int = 8,
    jobs: int = 1,
    seed: int = 0,
    baseline: str | None = None,
    folder: str | Path | None = None,
) -> Estimate:
    """Estimate what ``evaluate`` with these arguments will use; no model is called.

    How many calls a task takes, only a run of it shows: an agent may take one turn or thirty. So the numbers come from
    the tasks that are done in ``folder``, and are None until each arm has one; ``measure`` does the first ones.

    Raises:
        InputError: An argument cannot be used, or the folder has another evaluation.
    """
    plan = plan_of(arms, stream, program=program, orders=orders, seed=seed, baseline=baseline)
    records: dict[str, list[TaskRecord]] = {name: [] for name in plan.arms}
    if folder is not None and check_plan(Path(folder), describe(plan)):
        for record in read_records(Path(folder)):
            records[record.arm].append(record)
    return estimate_of(plan, records, jobs)


def estimate_of(plan: Plan, records: Mapping[str, Sequence[TaskRecord]], jobs: int) -> Estimate:
    """The estimate for the tasks of ``plan`` that have no record; ``records`` are by arm."""
    size, done = len(plan.orders[0]), sum(map(len, records.values()))
    if not all(records.values()):
        assumes = f"calls and cost are measured on the first {counted(min(PILOT, size), 'task')} of each arm"
        return Estimate(tasks=plan.total, done=done, assumes=assumes)
    calls = prompt = completion = seconds = 0.0
    cost: float | None = 0.0
    for name, arm in plan.arms.items():
        share = sum(cell == name for cell, _ in plan.cells) * size / len(records[name]) - 1
        usage = total_usage([record.usage for record in records[name]])
        paid = price_of(usage, settings_of(arm).models)
        cost = None if cost is None or paid is None else cost + share * paid
        seconds += share * sum(record.seconds for record in records[name])
        calls += share * sum(used.calls for used in usage.values())
        prompt += share * sum(used.prompt_tokens for used in usage.values())
        completion += share * sum(used.completion_tokens for used in usage.values())
    measured = counted(min(map(len, records.values())), "task")
    return Estimate(
        tasks=plan.total,
        done=done,
        calls=round(calls),
        prompt_tokens=round(prompt),
        completion_tokens=round(completion),
        cost=cost,
        seconds=seconds / min(jobs, len(plan.cells)),
        assumes=f"measured on {measured} of each arm, or more",
    )
