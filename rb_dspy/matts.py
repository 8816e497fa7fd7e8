"""MaTTS: memory-aware test-time scaling (Ouyang et al., ICLR 2026, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dspy

from rb_dspy.agents import ExternalAct
from rb_dspy.backbones import active
from rb_dspy.bank import MemoryBank
from rb_dspy.concurrency import run_parallel
from rb_dspy.config import MattsConfig, MattsMode
from rb_dspy.errors import BackboneError, BudgetSpent, ConfigError, InfrastructureError, UnparseableOutput
from rb_dspy.learner import Learner, Lessons, attempt_of
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distilled, Memory, Refine, Select, Selection, judge_rollout
from rb_dspy.text import summary_line

T = TypeVar("T")

_TEMPERATURE = 0.7
"""Temperature of the agent for several rollouts, if nothing else is configured (the paper's value)."""


@dataclass(frozen=True)
class Lost:
    """A rollout that failed, and why."""

    rollout_id: str
    error: str


class MaTTS(Learner):
    """Takes several rollouts of every task, learns from them together, and submits one.

    ============  ==============================  ==============================
    mode          lessons are drawn from          submitted
    ============  ==============================  ==============================
    parallel      all rollouts, contrasted        the selector's choice
    sequential    one rollout, checked k-1 times  that rollout
    best_of_n     the submitted rollout           the selector's choice
    vanilla       each rollout alone              the selector's choice
    ============  ==============================  ==============================

    It shares the steps of ``program``, is called in the same way, and returns the same fields for the submitted
    rollout, plus ``trajectories``, ``verdicts``, ``selection``, ``lost`` (rollouts that failed) and ``launched``. Every
    rollout is stored as pending when it ends (sequential: after its last pass); one that fails does not affect the
    others, and a call raises if all failed. What an interrupted call has not done of the k, ``resume`` does.

    Args:
        program: Its steps, backbones and environments are used.
        k: Number of rollouts, or of passes over one; overrides ``config.k``.
        mode: Overrides ``config.mode``.
        config: Settings.
    """

    _optional = (*Learner._optional, "contrast", "select", "refine")

    def __init__(
        self,
        program: ReasoningBank,
        k: int | None = None,
        mode: MattsMode | None = None,
        *,
        config: MattsConfig | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(program, ReasoningBank):
            raise ConfigError(f"MaTTS: got {type(program).__name__} for program; expected a ReasoningBank")
        changes = {name: value for name, value in (("k", k), ("mode", mode)) if value is not None}
        self.config = MattsConfig(**{**dict(config or MattsConfig()), **changes})
        if self.config.mode == "sequential" and isinstance(program.act, ExternalAct):
            raise ConfigError(
                "MaTTS: mode 'sequential' continues a rollout, which an agent of yours cannot; use another"
            )
        self.backbones = program.backbones
        self.environments = program.environments
        self.redactor = program.redactor
        self.retrieve = program.retrieve
        self.act = program.act
        self.judge = program.judge
        self.distill = program.distill
        self.review = program.review
        self.skip_known = program.skip_known
        self.systems, self.own_retrieve = program.systems, program.own_retrieve
        self.teach, self.curate, self.repeats_tasks = program.teach, program.curate, program.repeats_tasks
        self.contrast: Any = Contrast(self.config.contrast)
        self.select: Any = Select(self.config.select)
        self.refine = Refine(self.config.refine)

    def _is_short(self, rollouts: Sequence[Trajectory]) -> bool:
        return self.config.mode != "sequential" and len(rollouts) < self.config.k

    def _rollouts(
        self,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        keep: Callable[[Trajectory], object],
        stored: tuple[Trajectory, ...] = (),
    ) -> tuple[tuple[Trajectory, ...], dict[str, Any]]:
        """Return the finished rollouts; and those that failed, and how many were launched (or passes made)."""
        k, ids = self.config.k, {each.rollout_id for each in stored}
        numbers = [number for number in range(k) if str(number) not in ids][: max(0, k - len(stored))]
        if stored and (self.config.mode == "sequential" or not numbers):
            return stored, {}
        if self.config.mode == "sequential":
            refined = self.refine(self.act, task, memory, environments, k)
            keep(refined.trajectory)
            failed = (Lost(str(refined.passes), refined.error),) if refined.error else ()
            return (refined.trajectory,), {"lost": failed, "launched": refined.passes}
        self._check_temperature()

        def rollout(number: int) -> Trajectory:
            trajectory: Trajectory = self.act(task, memory, environments, number, _TEMPERATURE if k > 1 else 0.0)
            keep(trajectory)
            return trajectory

        results = run_parallel([partial(rollout, number) for number in numbers], self.config.at_once)
        errors = [(number, each) for number, each in zip(numbers, results, strict=True) if isinstance(each, Exception)]
        for _, error in errors:
            if isinstance(error, BudgetSpent) or not isinstance(error, InfrastructureError | BackboneError):
                raise error  # a cap, a bug, bad input, or a bank that cannot be written: the other rollouts fail too
        refused = next((error for _, error in errors if isinstance(error, BackboneError)), None)
        if len(errors) == len(numbers) and (refused or not stored):
            raise refused or errors[0][1]
        trajectories = [*stored, *(each for each in results if isinstance(each, Trajectory))]
        trajectories.sort(key=lambda each: (len(each.rollout_id), each.rollout_id))  # by number
        lost = tuple(Lost(str(number), summary_line(each)) for number, each in errors)
        return tuple(trajectories), {"lost": lost, "launched": len(stored) + len(numbers)}

    def _lessons(
        self, task: Task, trajectories: tuple[Trajectory, ...], bank: MemoryBank, memory: Memory, learn: bool = True
    ) -> Lessons:
        """Judge, contrast or distill, and select; independent calls run in parallel.

        One rollout is learned from as ``ReasoningBank`` does. Without ``learn``, only select; the judge is called only
        if the selector reads verdicts.
        """
        task = task.without_ground_truth()
        mode, run = self.config.mode, partial(run_parallel, limit=self.config.at_once)
        judges = [partial(judge_rollout, self.judge_in_use, task, each) for each in trajectories]
        select = partial(self.select, task, trajectories)
        alone = len(trajectories) == 1
        if not learn:
            verdicts = _verdicts(run(judges)) if self.config.select.verdicts and not alone else None
            selection = Selection(0) if alone else select(verdicts)
            return Lessons(verdicts or (), selection=selection)
        if alone:
            verdict, lessons = self._taught(task, trajectories[0], bank, memory)
            return Lessons((verdict,), lessons)
        if (
            self.teach is None
            and mode == "parallel"
            and not (self.config.contrast.labels or self.config.select.verdicts)
        ):
            drafts, selection, *results = run([partial(self.contrast, task, trajectories), select, *judges])
            return Lessons(_verdicts(results), _result_or_raise(drafts), _result_or_raise(selection))
        verdicts = _verdicts(run(judges))
        if mode == "best_of_n":
            selection = select(verdicts)
            best = selection.index
            drafts = self._learned(task, trajectories, verdicts, [best], bank, memory)
            return Lessons(verdicts, drafts, selection, "success" if verdicts[best].label == "success" else "failure")
        numbers = range(len(trajectories))
        groups = [numbers] if mode == "parallel" else [[number] for number in numbers]
        teachers = [partial(self._learned, task, trajectories, verdicts, group, bank, memory) for group in groups]
        selection, *results = run([partial(select, verdicts), *teachers])
        return Lessons(verdicts, _merge_drafts(results), _result_or_raise(selection))

    def _learned(
        self,
        task: Task,
        trajectories: Sequence[Trajectory],
        verdicts: Sequence[Verdict],
        group: Sequence[int],
        bank: MemoryBank,
        memory: Memory,
    ) -> Distilled:
        """Learn from the rollouts of ``group``: from several together, or from one alone."""
        drafts: Distilled
        if self.teach is not None:
            attempts = [attempt_of(task, trajectories[n], verdicts[n], memory, bank, n) for n in group]
            drafts = self.teach(attempts, bank)
        elif len(group) > 1:
            drafts = self.contrast(task, trajectories, verdicts)
        else:
            drafts = self.distill(task, trajectories[group[0]], verdicts[group[0]], group[0])
        return drafts

    def _prediction(
        self, lessons: Lessons, rollouts: Sequence[Trajectory], *parts: Any, **more: Any
    ) -> dspy.Prediction:
        verdicts = tuple(lessons.verdicts) or (None,) * len(rollouts)
        added = {"trajectories": rollouts, "verdicts": verdicts, "selection": lessons.selection, "lost": ()}
        launched = 0 if more.get("stored") else sum(1 + len(each.checks) for each in rollouts)
        return super()._prediction(lessons, rollouts, *parts, **{**added, "launched": launched, **more})

    def _check_temperature(self) -> None:
        """Raise ``ConfigError`` if all k rollouts would be equal."""
        if not hasattr(self.act, "predict"):
            return  # an agent of the user's, which samples as it does
        lm = getattr(self.act.predict, "lm", None) or active().lm("agent")
        own = {**lm.kwargs, **getattr(self.act.predict, "config", {})}.get("temperature")
        temperature = self.act.config.temperature if own is None else own
        if self.config.k > 1 and temperature == 0:
            raise ConfigError(
                f"MaTTS: the agent's temperature is 0, so {self.config.k} rollouts would be equal; set it above 0, or"
                " use mode='sequential'"
            )


BankProgram = ReasoningBank | MaTTS
"""A program that learns with a bank."""


def _result_or_raise(result: T | Exception) -> T:
    if isinstance(result, Exception):
        raise result
    return result


def _verdicts(results: Sequence[Verdict | Exception]) -> list[Verdict]:
    """Return the verdicts; ``unknown`` for a rollout on which the judge failed, unless it failed on all of them."""
    _raise_if_fatal(results)
    return [
        Verdict(label="unknown", reasons=f"not judged: {each}") if isinstance(each, Exception) else each
        for each in results
    ]


def _merge_drafts(results: Sequence[Distilled | Exception]) -> Distilled:
    """Merge the drafts of several calls. A failed call loses only its own lessons, unless all failed."""
    _raise_if_fatal(results)
    done = [each for each in results if isinstance(each, Distilled)]
    notes = [f"not distilled: {each}" if isinstance(each, Exception) else each.note for each in results]
    return Distilled(
        drafts=tuple(dict.fromkeys(draft for each in done for draft in each.drafts)),
        note="; ".join(filter(None, notes)),
        distiller=", ".join(dict.fromkeys(each.distiller for each in done if each.distiller)),
        marks={id: mark for each in done for id, mark in each.marks.items()},
    )


def _raise_if_fatal(results: Sequence[object]) -> None:
    """Raise an error that affects more than one call, or the first error if every call failed."""
    errors = [each for each in results if isinstance(each, Exception)]
    fatal = [each for each in errors if not isinstance(each, InfrastructureError | UnparseableOutput)]
    if fatal or len(errors) == len(results):
        raise (fatal or errors)[0]
