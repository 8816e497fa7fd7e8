"""MaTTS: memory-aware test-time scaling (Ouyang et al., ICLR 2026, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dspy

from rb_dspy.backbones import Ledger, lm_for
from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.concurrency import run_in_thread, run_parallel
from rb_dspy.config import MattsConfig, MattsMode
from rb_dspy.errors import BackboneError, ConfigError, InfrastructureError, UnparseableOutput
from rb_dspy.program import MAX_TRIES, ReasoningBank, as_task, check_bank, count_unparseable, run_name, session
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Experience, Polarity, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distilled, Memory, Refine, Select, Selection, judge_rollout
from rb_dspy.steps.memory import render
from rb_dspy.text import summary_line

T = TypeVar("T")

_TEMPERATURE = 0.7
"""Of the agent if several rollouts are taken and nothing else is configured (the paper's value)."""

_OWN_STEPS = ("contrast", "select", "refine")


@dataclass(frozen=True)
class Lost:
    """A rollout that failed, and why."""

    rollout_id: str
    error: str


@dataclass(frozen=True)
class _Lessons:
    """What is learned from the rollouts of a task together, and which of them is handed in."""

    verdicts: Sequence[Verdict]
    drafts: Distilled
    selection: Selection
    polarity: Polarity | None = None


class MaTTS(dspy.Module):
    """Several rollouts of every task, from which lessons are drawn together and of which one is handed in.

    ============  ==============================  ============================
    mode          lessons are drawn from          handed in
    ============  ==============================  ============================
    parallel      all rollouts, contrasted        the selector's choice
    sequential    one rollout, checked k-1 times  the last attempt to answer
    best_of_n     the rollout that is handed in   the selector's choice
    vanilla       each rollout alone              the selector's choice
    ============  ==============================  ============================

    It shares the steps of ``program``, is called as it is, and returns what it returns, for the rollout that is handed
    in; and ``trajectories``, ``verdicts``, ``selection``, ``lost`` (rollouts that failed) and ``launched``. Every
    rollout waits in the bank from its end on; a rollout that fails costs only itself.

    Args:
        program: Its steps, backbones and environments are used.
        k: Rollouts, or passes over one; instead of ``config.k``.
        mode: Instead of ``config.mode``.
        config: Settings.
    """

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
        self.backbones = program.backbones
        self.environments = program.environments
        self.retrieve = program.retrieve
        self.act = program.act
        self.judge: Any = program.judge
        self.distill: Any = program.distill
        self.contrast: Any = Contrast(self.config.contrast)
        self.select: Any = Select(self.config.select)
        self.refine = Refine(self.config.refine)

    def forward(
        self,
        task: Task | str,
        bank: MemoryBank,
        *,
        environments: EnvironmentFactory | None = None,
        run_id: str = "",
        learn: bool = True,
    ) -> dspy.Prediction:
        """Do ``task`` k times with what the bank has learned, and learn from all rollouts together.

        Arguments and errors are those of ``ReasoningBank``; it raises if every rollout failed.
        """
        run_id = run_name(run_id)
        with session(self.backbones) as ledger:
            memory: Memory = self.retrieve(as_task(task), check_bank(bank), isinstance(task, str))
            task = as_task(task)
            keep = partial(bank.record, task, run_id=run_id, shown=memory.items) if learn else lambda trajectory: None
            trajectories, lost, launched = self._rollouts(task, memory, environments or self.environments, keep)
            if not learn:
                lessons = self._select_only(task.without_ground_truth(), trajectories)
                return _prediction(memory, trajectories, lessons, ledger, lost=lost, launched=launched)
            return self._learn(task, trajectories, bank, memory, ledger, run_id, lost=lost, launched=launched)

    def resume(self, pending: Pending) -> dspy.Prediction:
        """Learn from the rollouts of a task that wait in a bank; see ``ReasoningBank.resume``."""
        trajectories, memory = pending.trajectories, render(pending.shown)
        with session(self.backbones) as ledger:
            return self._learn(
                pending.task,
                trajectories,
                pending.bank,
                memory,
                ledger,
                pending.run_id,
                launched=len(trajectories),
                tries=pending.tries,
            )

    async def aforward(self, *args: Any, **kwargs: Any) -> dspy.Prediction:
        """``forward`` for asyncio: in a thread of its own."""
        return await run_in_thread(type(self).forward, self, *args, **kwargs)

    async def aresume(self, pending: Pending) -> dspy.Prediction:
        """``resume`` for asyncio."""
        return await run_in_thread(self.resume, pending)

    def load_state(self, state: dict[str, Any], **kwargs: Any) -> Any:
        """As of any dspy module. A state of ``ReasoningBank`` leaves the prompts for scaling as they are."""
        own = {name: each for name, each in self.dump_state().items() if name.split(".")[0] in _OWN_STEPS}
        return super().load_state({**own, **state}, **kwargs)

    def _rollouts(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, keep: Callable[[Trajectory], object]
    ) -> tuple[tuple[Trajectory, ...], tuple[Lost, ...], int]:
        """The rollouts that came to their end, those that failed, and how many were launched (or passes made)."""
        k = self.config.k
        if self.config.mode == "sequential":
            refined = self.refine(self.act, task, memory, environments, k)
            for trajectory in refined.trajectories:
                keep(trajectory)
            lost = (Lost(str(len(refined.trajectories)), refined.error),) if refined.error else ()
            return refined.trajectories, lost, refined.passes
        self._check_temperature()

        def rollout(number: int) -> Trajectory:
            trajectory: Trajectory = self.act(task, memory, environments, number, _TEMPERATURE if k > 1 else 0.0)
            keep(trajectory)
            return trajectory

        results = run_parallel([partial(rollout, number) for number in range(k)], self.config.at_once)
        errors = [(number, each) for number, each in enumerate(results) if isinstance(each, Exception)]
        for _, error in errors:
            if not isinstance(error, InfrastructureError | BackboneError):
                raise error  # a bug, bad input, or a bank that cannot be written: no other rollout fares better
        if len(errors) == k:
            raise next((error for _, error in errors if isinstance(error, BackboneError)), errors[0][1])
        trajectories = tuple(each for each in results if isinstance(each, Trajectory))
        return trajectories, tuple(Lost(str(number), summary_line(each)) for number, each in errors), k

    def _learn(
        self,
        task: Task,
        trajectories: tuple[Trajectory, ...],
        bank: MemoryBank,
        memory: Memory,
        ledger: Ledger,
        run_id: str,
        *,
        lost: tuple[Lost, ...] = (),
        launched: int = 0,
        tries: int = 0,
    ) -> dspy.Prediction:
        with count_unparseable(bank, task, run_id, trajectories):
            try:
                lessons = self._lessons(task.without_ground_truth(), trajectories)
            except UnparseableOutput as exc:
                if tries + 1 < MAX_TRIES:
                    raise
                unknown = Verdict(label="unknown", reasons=str(exc))
                note = f"no lessons: {exc}"
                lessons = _Lessons([unknown] * len(trajectories), Distilled(note=note), Selection(0, note=note))
            experience = bank.append(
                task,
                trajectories,
                lessons.verdicts,
                lessons.drafts.drafts,
                run_id=run_id,
                polarity=lessons.polarity,
                distiller=lessons.drafts.distiller,
                note=lessons.drafts.note,
                shown=memory.items,
                again=False,
            )
        return _prediction(memory, trajectories, lessons, ledger, experience, lost=lost, launched=launched)

    def _lessons(self, task: Task, trajectories: tuple[Trajectory, ...]) -> _Lessons:
        """Judge, contrast or distil, and select; what waits for nothing runs side by side."""
        mode, limit = self.config.mode, self.config.at_once
        judges = [partial(judge_rollout, self.judge, task, each) for each in trajectories]
        if len(trajectories) == 1 or mode == "sequential":
            verdicts = _verdicts(run_parallel(judges, limit))
            last = _last_answer(trajectories)
            drafts = self.distill(task, trajectories[last], verdicts[last])
            return _Lessons(verdicts, drafts, Selection(last), _polarity(verdicts[last]))
        select = partial(self.select, task, trajectories)
        if mode == "parallel" and not self.config.contrast.labels and not self.config.select.verdicts:
            first: list[Callable[[], Any]] = [partial(self.contrast, task, trajectories), select, *judges]
            drafts, selection, *results = run_parallel(first, limit)
            return _Lessons(_verdicts(results), _result_or_raise(drafts), _result_or_raise(selection))
        verdicts = _verdicts(run_parallel(judges, limit))
        select = partial(select, verdicts)
        if mode == "best_of_n":
            selection = select()
            best = selection.index
            drafts = self.distill(task, trajectories[best], verdicts[best])
            return _Lessons(verdicts, drafts, selection, _polarity(verdicts[best]))
        if mode == "parallel":
            lessons: list[Callable[[], Any]] = [partial(self.contrast, task, trajectories, verdicts)]
        else:
            lessons = [partial(self.distill, task, each, verdicts[n], n) for n, each in enumerate(trajectories)]
        jobs: list[Callable[[], Any]] = [select, *lessons]
        selection, *results = run_parallel(jobs, limit)
        return _Lessons(verdicts, _merge_drafts(results), _result_or_raise(selection))

    def _select_only(self, task: Task, trajectories: tuple[Trajectory, ...]) -> _Lessons:
        """Which rollout is handed in, if nothing is learned; the judge is asked only if the selector reads verdicts."""
        if len(trajectories) == 1 or self.config.mode == "sequential":
            return _Lessons((), Distilled(), Selection(_last_answer(trajectories)))
        verdicts: Sequence[Verdict] = ()
        if self.config.select.verdicts:
            judges = [partial(judge_rollout, self.judge, task, each) for each in trajectories]
            verdicts = _verdicts(run_parallel(judges, self.config.at_once))
        return _Lessons(verdicts, Distilled(), self.select(task, trajectories, verdicts or None))

    def _check_temperature(self) -> None:
        """Refuse to take one sample k times."""
        lm = getattr(self.act.predict, "lm", None) or lm_for("agent")
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
    """The verdicts; ``unknown`` for a rollout on which the judge failed, unless it failed on all of them."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, InfrastructureError | UnparseableOutput):
            raise result
    if not any(isinstance(result, Verdict) for result in results):
        return [_result_or_raise(results[0])]
    return [
        Verdict(label="unknown", reasons=f"not judged: {result}") if isinstance(result, Exception) else result
        for result in results
    ]


def _merge_drafts(results: Sequence[Distilled | Exception]) -> Distilled:
    """The drafts of several calls. A call that failed costs its own lessons only, unless all failed."""
    done = [each for each in results if isinstance(each, Distilled)]
    errors = [each for each in results if isinstance(each, Exception)]
    fatal = [each for each in errors if not isinstance(each, InfrastructureError | UnparseableOutput)]
    if fatal or not done:
        raise (fatal or errors)[0]
    notes = [each.note for each in done if each.note] + [f"not distilled: {each}" for each in errors]
    return Distilled(
        drafts=tuple(dict.fromkeys(draft for each in done for draft in each.drafts)),
        note="; ".join(notes),
        distiller=", ".join(dict.fromkeys(each.distiller for each in done if each.distiller)),
    )


def _polarity(verdict: Verdict) -> Polarity:
    return "success" if verdict.label == "success" else "failure"


def _last_answer(trajectories: Sequence[Trajectory]) -> int:
    """The last attempt with an answer, else the last one."""
    answered = [number for number, each in enumerate(trajectories) if each.answer is not None]
    return (answered or [len(trajectories) - 1])[-1]


def _prediction(
    memory: Memory,
    trajectories: tuple[Trajectory, ...],
    lessons: _Lessons,
    ledger: Ledger,
    experience: Experience | None = None,
    *,
    lost: tuple[Lost, ...],
    launched: int,
) -> dspy.Prediction:
    verdicts = tuple(experience.verdicts if experience else lessons.verdicts) or (None,) * len(trajectories)
    chosen = lessons.selection.index
    return dspy.Prediction(
        answer=trajectories[chosen].answer,
        trajectory=trajectories[chosen],
        verdict=verdicts[chosen],
        memory=memory,
        memory_items=experience.items if experience else (),
        experience=experience,
        trajectories=trajectories,
        verdicts=verdicts,
        selection=lessons.selection,
        lost=lost,
        launched=launched,
        usage=ledger.usage(),
    )
