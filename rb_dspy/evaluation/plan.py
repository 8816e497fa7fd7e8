"""What an evaluation runs: arms, orders and cells; and the stored plan, so that evaluations are not mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from rb_dspy.environments import make_environment
from rb_dspy.environments.question import ANSWERS
from rb_dspy.errors import InputError
from rb_dspy.evaluation.arms import Arm, ArmLike, as_arms, models, oracle_lessons, temperatures
from rb_dspy.evaluation.identity import identity
from rb_dspy.jsonl import digest
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.memories import Signal
from rb_dspy.protocols import Embedder
from rb_dspy.schema import MemoryDraft, Task
from rb_dspy.stream import TaskStream

Lessons = Sequence[MemoryDraft] | str | Path
Tasks = TaskStream | Iterable[Task | str | Mapping[str, Any]]

Cell = tuple[str, int]
"""The name of an arm and the number of an order, from 0."""

_SETTINGS = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "reasoning_effort")
"""Settings of a language model in the plan; keys and addresses are left out."""


@dataclass(frozen=True)
class ArmSettings:
    """The settings of an arm that a report needs."""

    memory: str
    models: dict[str, str]
    own: str = ""
    learns: bool = True
    needs_lessons: bool = False
    signal: Signal | None = "judge"
    repeats_tasks: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class Plan:
    """Arms, tasks in their orders, and cells in the order in which they start."""

    arms: dict[str, Arm]
    orders: list[TaskStream]
    cells: list[Cell]
    baseline: str
    seed: int

    @property
    def total(self) -> int:
        """Tasks over all cells."""
        return len(self.cells) * len(self.orders[0])


def plan_of(
    arms: Mapping[str, ArmLike] | Sequence[ArmLike],
    stream: Tasks,
    *,
    program: BankProgram | None,
    orders: int,
    seed: int,
    baseline: str | None,
) -> Plan:
    """The plan of an evaluation. Orders run one after the other; the arms take turns at being first.

    Raises:
        InputError: An argument cannot be used.
    """
    named = as_arms(arms, program)
    tasks = TaskStream.of(stream)
    check_truth(tasks, *(arm.program for arm in named.values()))
    if not isinstance(orders, int) or orders < 1:
        raise InputError(f"orders is {orders!r:.40}; expected an integer of at least 1; 8 are enough for a verdict")
    if baseline is not None and baseline not in named:
        raise InputError(f"baseline is {baseline!r}; expected one of the arms: {', '.join(named)}")
    names = list(named)
    cells = [
        (name, order)
        for order in range(orders)
        for name in [*names[order % len(names) :], *names[: order % len(names)]]
        if order == 0 or not named[name].repeats
    ]
    ordered = [tasks, *(tasks.permuted(seed + order) for order in range(1, orders))]
    return Plan(named, ordered, cells, baseline or ("none" if "none" in named else names[0]), seed)


def check_truth(stream: TaskStream, *programs: BankProgram) -> None:
    """Raise ``InputError`` if the stream is empty, or has only questions without a known answer.

    Other environments say only at the end of a rollout whether there is ground truth.
    """
    if not len(stream):
        raise InputError(f"{stream.name}: has no tasks; expected at least one")
    questions = all(program.environments is make_environment for program in programs)
    if questions and all(task.env == "question" and task.env_args.keys().isdisjoint(ANSWERS) for task in stream):
        raise no_truth(stream)


def no_truth(stream: TaskStream) -> InputError:
    """The error for a stream without ground truth."""
    question = stream.tasks[0].env == "question"
    cure = "put the answers into env_args.answer" if question else "let Environment.outcome return it"
    return InputError(f"{stream.name}: no task has ground truth, so nothing can be scored; {cure}")


def describe(plan: Plan) -> dict[str, Any]:
    """The plan as JSON; an evaluation continues in its folder only if this is equal."""
    tasks = plan.orders[0]
    return {
        "format": "rb_dspy evaluation",
        "version": 1,
        "stream": tasks.name,
        "digest": tasks.digest,
        "tasks": len(tasks),
        "orders": len(plan.orders),
        "seed": plan.seed,
        "baseline": plan.baseline,
        "names": list(plan.arms),
        "arms": {name: _describe_arm(arm) for name, arm in plan.arms.items()},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    return {name: installed(name) for name in ("rb-dspy", "dspy")}


def describe_sources(plan: Plan, *, lessons: Lessons | None, embedder: Embedder | str | None) -> dict[str, Any]:
    """The rest of the plan as JSON: the oracle lessons, if an arm uses them, and the embedder of the banks."""
    oracle = any(arm.needs_lessons for arm in plan.arms.values())
    drafts = oracle_lessons(lessons, plan.orders[0]) if oracle else []
    return {
        "lessons": digest([draft.model_dump() for draft in drafts]) if oracle else None,
        "embedder": embedder if isinstance(embedder, str | None) else embedder.id,
    }


def settings_of(arm: Arm) -> ArmSettings:
    """The settings of an arm for the report."""
    names = {role: str(lm.model) for role, lm in models(arm).items()}
    about = {
        name: getattr(arm, name) for name in ("memory", "own", "learns", "needs_lessons", "repeats_tasks", "repeats")
    }
    return ArmSettings(**about, signal=arm.learns_from, models=names)


def _describe_arm(arm: Arm) -> dict[str, Any]:
    program, equipped = arm.program, arm.equipped()
    steps = ("retrieve", "act", "judge", "distill", "review", "teach", "curate", "contrast", "select", "refine")
    memory = {name: getattr(equipped, name) for name in ("retrieve", "teach", "curate")}
    return {
        "memory": arm.memory,
        "systems": [identity(each) for each in arm.systems],
        "signal": arm.learns_from,
        "remembers": {name: _step(step) for name, step in memory.items() if step},
        "program": type(program).__name__ if _is_ours(program) else identity(type(program)),
        "environments": identity(program.environments),
        "steps": {name: _step(getattr(program, name)) for name in steps if getattr(program, name, None)},
        "skip_known": program.skip_known,
        "matts": program.config.model_dump(mode="json") if isinstance(program, MaTTS) else None,
        "prompts": digest(equipped.dump_state()),
        "models": {
            role: {"model": str(lm.model), **{name: lm.kwargs[name] for name in _SETTINGS if name in lm.kwargs}}
            for role, lm in models(arm).items()
        },
        "temperatures": temperatures(arm),
        "bank": None if arm.bank is None else digest([[item.id, item.seq] for item in arm.bank.items()]),
    }


def _step(step: Any) -> Any:
    """The settings of a step, and the name of its reranker; one that may have more is named by its code and state."""
    if not type(step).__module__.startswith("rb_dspy.steps.") or not hasattr(step, "config"):
        return identity(step)
    reranker = {"reranker": step.reranker and identity(step.reranker)} if hasattr(step, "reranker") else {}
    return {"step": type(step).__name__, **step.config.model_dump(mode="json"), **reranker}


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith("rb_dspy.")
