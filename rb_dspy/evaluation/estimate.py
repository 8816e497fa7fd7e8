"""What an evaluation will cost, before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import pydantic

from rb_dspy.backbones.prices import price_of
from rb_dspy.evaluation.arms import Arm, ArmLike
from rb_dspy.evaluation.plan import Tasks, plan_of, settings_of
from rb_dspy.evaluation.records import TaskRecord, read_records
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.schema import RoleUsage, Usage
from rb_dspy.steps import Judge
from rb_dspy.stream.report import total_usage
from rb_dspy.text import counted, estimate_tokens

TURNS = 5
"""Of a rollout, if the step limit is not lower."""
_PROMPT, _OBSERVATION, _ANSWER, _VERDICT, _LESSONS = 500, 200, 150, 150, 250
"""Tokens: of the instructions of a role, of an observation, of an answer of the agent, the judge, the distiller."""
_SCALE = 1_000
"""A mean is kept as usage of so many tasks, because usage counts whole calls."""


class Estimate(pydantic.BaseModel):
    """Calls, tokens and money of the tasks that are not done yet. Rough: within a factor of two or three."""

    model_config = pydantic.ConfigDict(frozen=True)

    tasks: int
    """Over all arms and orders."""
    done: int
    """Of these."""
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """In US dollars; None if the price of a model is unknown. Prompt tokens from a provider's cache count in full."""
    seconds: float | None
    """By the tasks that are done, in so many jobs; None if none is."""
    assumes: str

    def __str__(self) -> str:
        cost = "cost unknown" if self.cost is None else f"${self.cost:,.2f}"
        time = "" if self.seconds is None else f", {self.seconds / 3600:.1f} h"
        tokens = f"{self.prompt_tokens:,} + {self.completion_tokens:,} tokens"
        left = f" ({self.done:,} done)" if self.done else ""
        return f"{counted(self.tasks, 'task')}{left}: {self.calls:,} calls, {tokens}, {cost}{time}; {self.assumes}"


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
    """Estimate what ``evaluate`` with these arguments will use; nothing is called.

    Arms with records in ``folder`` are estimated by them; others by their steps, with typical lengths.
    """
    plan = plan_of(arms, stream, program=program, orders=orders, seed=seed, baseline=baseline)
    records: dict[str, list[TaskRecord]] = {name: [] for name in plan.arms}
    for record in [] if folder is None else read_records(Path(folder)):
        if (record.arm, record.order) in plan.sizes:
            records[record.arm].append(record)
    length = fmean(estimate_tokens(task.instruction) for task in plan.orders[0])
    usages: list[Usage] = []
    cost: float | None = 0.0
    seconds = 0.0
    for name, arm in plan.arms.items():
        left = sum(cell == name for cell, _ in plan.cells) * len(plan.orders[0]) - len(records[name])
        each = _measured(records[name]) if records[name] else _assumed(arm, length)
        usage = {role: _times(used, left / _SCALE) for role, used in each.items()}
        usages.append(usage)
        price = price_of(usage, settings_of(arm).models)
        cost = None if cost is None or price is None else cost + price
        seconds += left * fmean([record.seconds for record in records[name]] or [0.0])
    measured = all(records.values())
    total = total_usage(usages).values()
    return Estimate(
        tasks=plan.total,
        done=sum(map(len, records.values())),
        calls=sum(used.calls for used in total),
        prompt_tokens=sum(used.prompt_tokens for used in total),
        completion_tokens=sum(used.completion_tokens for used in total),
        cost=cost,
        seconds=seconds / min(jobs, len(plan.cells)) if measured else None,
        assumes="by the tasks that are done"
        if measured
        else f"assumes {TURNS} turns a task at most, and short answers",
    )


def _measured(records: Sequence[TaskRecord]) -> Usage:
    """The mean of a task, times ``_SCALE``."""
    total = total_usage([record.usage for record in records])
    return {role: _times(used, _SCALE / len(records)) for role, used in total.items()}


def _assumed(arm: Arm, instruction: float) -> Usage:
    """A typical task, times ``_SCALE``."""
    program = arm.program
    config = program.config if isinstance(program, MaTTS) else None
    rollouts = config.k if config else 1
    turns = min(TURNS, program.act.config.max_steps)
    transcript = turns * (_OBSERVATION + _ANSWER)
    lessons = 0 if arm.memory == "none" else min(program.retrieve.config.max_tokens, 60 * program.retrieve.config.k)
    first = _PROMPT + instruction + lessons + _OBSERVATION
    usage = {"agent": _usage(rollouts * turns, first + (turns - 1) * (_OBSERVATION + _ANSWER) / 2, _ANSWER)}
    reading = _PROMPT + instruction + transcript
    if arm.learns:
        if arm.memory != "true_verdicts" and isinstance(program.judge, Judge):
            usage["judge"] = _usage(rollouts, reading, _VERDICT)
        if arm.memory != "raw":
            contrasted = config is not None and config.mode == "parallel" and rollouts > 1
            role, read = ("contraster", rollouts) if contrasted else ("distiller", 1)
            calls = rollouts if config is not None and config.mode == "vanilla" else 1
            usage[role] = _usage(calls, _PROMPT + instruction + read * transcript, _LESSONS)
    if config is not None and config.mode != "sequential" and rollouts > 1:
        usage["selector"] = _usage(config.select.orders, _PROMPT + instruction + rollouts * transcript, _VERDICT)
    return usage


def _usage(calls: int, prompt_tokens: float, completion_tokens: float) -> RoleUsage:
    count = _SCALE * calls
    prompts, completions = round(count * prompt_tokens), round(count * completion_tokens)
    return RoleUsage(calls=count, prompt_tokens=prompts, completion_tokens=completions)


def _times(used: RoleUsage, factor: float) -> RoleUsage:
    return RoleUsage(
        calls=round(used.calls * factor),
        prompt_tokens=round(used.prompt_tokens * factor),
        completion_tokens=round(used.completion_tokens * factor),
        cached_calls=round(used.cached_calls * factor),
    )
