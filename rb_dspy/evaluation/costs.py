"""Estimate the cost of an evaluation before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pydantic

from rb_dspy.backbones.prices import price
from rb_dspy.config import MattsConfig
from rb_dspy.evaluation.arms import Arm, ArmLike
from rb_dspy.evaluation.plan import Tasks, describe, plan_of, settings_of
from rb_dspy.evaluation.records import TaskRecord, check_plan, read_records
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.steps import Judge
from rb_dspy.stream.report import total_usage
from rb_dspy.stream.templates import family_attribute
from rb_dspy.text import counted, estimate_tokens

TURNS = 5
"""Turns of a rollout if the environment does not say; at most the step limit."""
_PROMPT, _OBSERVATION, _ANSWER, _VERDICT, _LESSONS = 500, 200, 150, 150, 250
"""Assumed tokens: the instructions of a role, an observation, an answer of the agent, the judge, the distiller."""


class Use(NamedTuple):
    """The usage of one role."""

    calls: float
    prompt_tokens: float
    completion_tokens: float


class Estimate(pydantic.BaseModel):
    """Calls, tokens and cost of the remaining tasks. Rough: within a factor of two or three."""

    model_config = pydantic.ConfigDict(frozen=True)

    tasks: int
    """Over all arms and orders."""
    done: int
    """Tasks that are done already."""
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """In US dollars; None if the price of a model is unknown. Prompt tokens from a provider's cache count in full."""
    seconds: float | None
    """Estimated from finished tasks and the number of jobs; None if an arm has none."""
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
    """Estimate what ``evaluate`` with these arguments will use; no model is called.

    Arms with records in ``folder`` are estimated from these; others from their steps, with typical lengths.

    Raises:
        InputError: An argument cannot be used, or the folder has another evaluation.
    """
    plan = plan_of(arms, stream, program=program, orders=orders, seed=seed, baseline=baseline)
    records: dict[str, list[TaskRecord]] = {name: [] for name in plan.arms}
    if folder is not None:
        check_plan(Path(folder), describe(plan, seed=seed))
        for record in read_records(Path(folder)):
            records[record.arm].append(record)
    turns = fmean(family_attribute(task.env, "turns", lambda _: TURNS)(task) for task in plan.orders[0])
    length = fmean(estimate_tokens(task.instruction) for task in plan.orders[0])
    uses: list[Use] = []
    cost: float | None = 0.0
    seconds = 0.0
    for name, arm in plan.arms.items():
        left = sum(cell == name for cell, _ in plan.cells) * len(plan.orders[0]) - len(records[name])
        roles = _measured(records[name]) if records[name] else _assumed(arm, length, turns)
        models = settings_of(arm).models
        for role, use in roles.items():
            total = Use(*(left * each for each in use))
            uses.append(total)
            each = price(models.get(role, ""), round(total.prompt_tokens), round(total.completion_tokens))
            cost = None if cost is None or each is None else cost + each
        seconds += left * fmean([record.seconds for record in records[name]] or [0.0])
    measured = all(records.values())
    return Estimate(
        tasks=plan.total,
        done=sum(map(len, records.values())),
        calls=round(sum(use.calls for use in uses)),
        prompt_tokens=round(sum(use.prompt_tokens for use in uses)),
        completion_tokens=round(sum(use.completion_tokens for use in uses)),
        cost=cost,
        seconds=seconds / min(jobs, len(plan.cells)) if measured else None,
        assumes="estimated from finished tasks"
        if measured
        else f"assumes {counted(math.ceil(turns), 'turn')} a task, and short answers",
    )


def _measured(records: Sequence[TaskRecord]) -> dict[str, Use]:
    """Mean usage per task, by role. Calls answered from dspy's cache are counted, but use no tokens."""
    return {
        role: Use(used.calls / len(records), used.prompt_tokens / len(records), used.completion_tokens / len(records))
        for role, used in total_usage([record.usage for record in records]).items()
    }


def _assumed(arm: Arm, instruction: float, turns: float) -> dict[str, Use]:
    """Usage of a typical task, by role."""
    program = arm.program
    config = program.config if isinstance(program, MaTTS) else MattsConfig(k=1)
    k, turns = config.k, min(turns, program.act.config.max_steps)
    transcript = turns * (_OBSERVATION + _ANSWER)
    retrieve = program.retrieve.config
    lessons = 0 if arm.memory == "none" else min(retrieve.max_tokens, 60 * retrieve.k)
    start = _PROMPT + instruction
    turn = start + lessons + _OBSERVATION + (turns - 1) * (_OBSERVATION + _ANSWER) / 2
    calls = {"agent": (k * turns, turn, _ANSWER)}
    if arm.learns and arm.memory != "true_verdicts" and isinstance(program.judge, Judge):
        calls["judge"] = (k, start + transcript, _VERDICT)
    if arm.learns and arm.memory != "raw":
        if config.mode == "parallel" and k > 1:
            calls["contraster"] = (1, start + k * transcript, _LESSONS)
        else:
            calls["distiller"] = (k if config.mode == "vanilla" else 1, start + transcript, _LESSONS)
    if config.mode != "sequential" and k > 1:
        calls["selector"] = (config.select.orders, start + k * transcript, _VERDICT)
    return {role: Use(number, number * read, number * written) for role, (number, read, written) in calls.items()}
