"""MaTTS: memory-aware test-time scaling (Ouyang et al., ICLR 2026, section 3.3)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dspy
import pydantic

from rb_dspy.backbones import Ledger
from rb_dspy.backbones.session import session
from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.config import MattsConfig, MattsMode
from rb_dspy.errors import ConfigError
from rb_dspy.matts.lessons import Known, Lessons, all_judged, told
from rb_dspy.matts.rollouts import Meanwhile, OneRefined, Rollouts, SideBySide
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Experience, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Memory, Refine, Select, Selection
from rb_dspy.steps.appended import appended, note
from rb_dspy.steps.ask import Do, Routine, adrive, drive
from rb_dspy.steps.ended import Ended, kept
from rb_dspy.steps.ingest import checked, free, unclaimed, waiting
from rb_dspy.steps.judge import check_plain
from rb_dspy.steps.memory import shown_before
from rb_dspy.steps.player import heat
from rb_dspy.steps.wanted import Call, Result, Together, values
from rb_dspy.steps.whole import Whole
from rb_dspy.wording import first_misfit

_OWN = ("contrast", "select", "refine")


class MaTTS(Whole):
    """Several rollouts of every task, which teach more together than each alone, and of which the best is handed in.

    ``MaTTS(program, k=4, mode="parallel")`` shares the steps of ``program``, is called as it is, and returns what it
    returns: ``answer``, ``trajectory`` and ``verdict`` are those of the rollout that is handed in. In addition
    ``trajectories`` and ``verdicts`` of all that came to their end, ``selection``, ``lost`` (those that broke),
    ``launched`` and ``saved`` (rollouts that agreement made needless; of sequential scaling, passes), and
    ``unconditional`` (how many were launched whatever came of others; None of passes, and where it is not known).

    Modes: ``parallel`` (contrast), ``sequential`` (check and correct), the paper's ablation ``vanilla`` (each rollout
    distilled alone), and our ``best_of_n`` (only the best is); see ``matts.lessons``. One experience with all rollouts
    is appended in every mode. A rollout that breaks costs only itself: of two or more that are left the lessons are
    drawn together, of one as ``ReasoningBank`` does; with none it raises. The rollouts that have ended (of sequential
    scaling, the attempts) wait in the bank as one (``MemoryBank.pending``): when it is interrupted, and
    while others are under way ``steps.later.SECONDS`` after they ended, so that ``kill -9`` costs no more than that;
    for who learns from them meanwhile see ``MemoryBank.ingest``. Its predictors have the program's names, so it takes a
    state of ``ReasoningBank`` too.

    Raises like ``ReasoningBank``; ``ConfigError`` where the agent's temperature is 0, so that all rollouts would be
    one.
    """

    def __init__(
        self,
        program: ReasoningBank,
        k: int | None = None,
        mode: MattsMode | None = None,
        *,
        config: MattsConfig | None = None,
    ) -> None:
        """``k`` and ``mode`` are those of ``config`` where they are not given."""
        super().__init__()
        if not isinstance(program, ReasoningBank):
            raise ConfigError(f"MaTTS: got {type(program).__name__} for a program; expected a ReasoningBank")
        self.config = _config(MattsConfig() if config is None else config, k=k, mode=mode)
        self.backbones = program.backbones
        self.environments = program.environments
        self.retrieve = program.retrieve
        self.act = program.act
        self.judge: Any = program.judge
        self.distill = program.distill
        self.contrast = Contrast(self.config.contrast)
        self.select = Select(self.config.select, self.config.at_once)
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
        """Do ``task`` several times with what the bank has learned, and learn from all of it.

        ``learn=False``: as of ``ReasoningBank``; the judge is asked only where the selector reads verdicts or adaptive
        scaling waits for them.
        """
        if learn or self._judges():
            check_plain(self.judge)
        task, again = checked(task, bank, run_id)
        with session(self.backbones) as ledger:
            return drive(self._scaled(task, again, bank, self._given(environments), run_id, learn, ledger))

    async def aforward(
        self,
        task: Task | str,
        bank: MemoryBank,
        *,
        environments: EnvironmentFactory | None = None,
        run_id: str = "",
        learn: bool = True,
    ) -> dspy.Prediction:
        """``forward`` for asyncio; nothing in it blocks the event loop."""
        task, again = checked(task, bank, run_id)
        with session(self.backbones) as ledger:
            made = self._scaled(task, again, bank, self._given(environments), run_id, learn, ledger)
            return await adrive(made)

    def load_state(self, state: dict[str, Any], **kwargs: Any) -> Any:
        """As of any dspy module; a state of ``ReasoningBank`` leaves the prompts for scaling as they are."""
        own = {name: each for name, each in self.dump_state().items() if name.split(".")[0] in _OWN}
        return super().load_state({**own, **state}, **kwargs)

    def resume(self, ingest: Ingest) -> dspy.Prediction:
        """Learn from rollouts that wait in a bank (``MemoryBank.pending``), one or several; see ``ReasoningBank``."""
        with session(self.backbones) as ledger:
            return drive(self._resumed(waiting(ingest), ledger))

    async def aresume(self, ingest: Ingest) -> dspy.Prediction:
        """``resume`` for asyncio, and for async judges."""
        with session(self.backbones) as ledger:
            return await adrive(self._resumed(waiting(ingest), ledger))

    def _resumed(self, ingest: Ingest, ledger: Ledger) -> Routine[dspy.Prediction]:
        yield from unclaimed(ingest)
        memory = shown_before((yield Do("looking up what was shown", ingest.shown)))
        rollouts = Rollouts(launched=len(ingest.state.trajectories))
        return (yield from self._learned(memory, ingest, rollouts, Known(), ledger))

    def _scaled(
        self,
        task: Task,
        again: bool,
        bank: MemoryBank,
        environments: EnvironmentFactory,
        run_id: str,
        learn: bool,
        ledger: Ledger,
    ) -> Routine[dspy.Prediction]:
        self._check_temperature()
        if learn:
            yield from free(task, bank, self._rollout_ids(), run_id)
        memory = yield Call(self.retrieve, (task, bank, again))
        if not learn:
            return (yield from self._answered(memory, task, environments, ledger))
        ended = Ended(task, partial(bank.ingest, task, run_id=run_id, shown=memory.items))
        acted = self._acted(task, memory, environments, ended)
        rollouts, ingest, results = yield from kept(acted, ended)
        known = Known(tuple(rollouts.trajectories), rollouts.verdicts, results)
        return (yield from self._learned(memory, ingest, rollouts, known, ledger))

    def _acted(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, ended: Ended
    ) -> Routine[tuple[Rollouts, Ingest, dict[Hashable, Result]]]:
        """The rollouts, in the bank, and what was learned from them meanwhile."""
        making = self._rollouts(partial(self._meanwhile, task, ended))
        rollouts = yield from making.routine(task, memory, environments, ended.put)
        if rollouts.meanwhile is None:
            return rollouts, (yield Do("keeping the rollouts", partial(ended.keep, rollouts.trajectories))), {}
        ((ingest, results),) = values([rollouts.meanwhile])
        return rollouts, ingest, results

    def _answered(
        self, memory: Memory, task: Task, environments: EnvironmentFactory, ledger: Ledger
    ) -> Routine[dspy.Prediction]:
        """The rollouts, and which of them is handed in; nothing is learned."""
        lessons = self._lessons()
        making = self._making(self.judge if self._judges() else None)
        rollouts = yield from making.routine(task, memory, environments, lambda number, trajectory: None)
        trajectories = tuple(rollouts.trajectories)
        # Where only waves waited for verdicts, a judge that is down costs no answer.
        said = all_judged if lessons.chooses_by_verdicts else told
        verdicts = said(rollouts.verdicts) if self._judges() else []
        selection = yield from lessons.chosen(task.without_ground_truth(), trajectories, verdicts)
        return _prediction(memory, trajectories, verdicts, selection, rollouts, ledger)

    def _meanwhile(self, task: Task, ended: Ended) -> Routine[tuple[Ingest, dict[Hashable, Result]] | None]:
        """Keep what has ended, and ask at the same time what needs no verdicts."""
        group = ended.group()
        if not group:
            return None
        jobs = self._lessons().early(task.without_ground_truth(), tuple(group))
        *results, kept = yield Together([*jobs.values(), Do("keeping the rollouts", partial(ended.keep, group))])
        ingest: Ingest
        (ingest,) = values([kept])
        return ingest, dict(zip(jobs, results, strict=True))

    def _learned(
        self, memory: Memory, ingest: Ingest, rollouts: Rollouts, known: Known, ledger: Ledger
    ) -> Routine[dspy.Prediction]:
        lessons = self._lessons()
        task = ingest.task.without_ground_truth()
        try:
            chosen_from, selection = yield from lessons.learned(ingest, known)
            experience: Experience = yield Do("appending", partial(appended, ingest))
            # Those of this call, as ReasoningBank gives them, where the bank had learned from others of their names.
            trajectories, verdicts = ingest.state.trajectories, ingest.verdicts or experience.verdicts
            if selection is None or trajectories != chosen_from:
                selection = yield from lessons.chosen(task, trajectories, verdicts)
        except Exception as exc:
            yield Do("noting what broke", partial(note, ingest, exc))
            raise
        return _prediction(memory, trajectories, verdicts, selection, rollouts, ledger, experience)

    def _judges(self) -> bool:
        """Whether a call that learns nothing asks the judge."""
        waits = self.config.adaptive.enabled and self.config.mode != "sequential"
        return self.config.k > 1 and (waits or self._lessons().chooses_by_verdicts)

    def _rollouts(self, meanwhile: Meanwhile) -> SideBySide | OneRefined:
        """``meanwhile``: what is done with all rollouts while they are judged, where nothing has to wait for that."""
        config = self.config
        side_by_side = self._making(self.judge)
        if isinstance(side_by_side, OneRefined) or config.adaptive.enabled or self._lessons().needs_verdicts:
            return side_by_side
        if config.k == 1 or config.at_once is not None:  # who waits for all rollouts would take the place of one
            return replace(side_by_side, judge=None)
        return replace(side_by_side, meanwhile=meanwhile)

    def _making(self, judge: Any) -> SideBySide | OneRefined:
        config = self.config
        if config.mode == "sequential":
            return OneRefined(self.act, self.refine, config.k)
        return SideBySide(self.act, judge, config.k, config.adaptive, config.at_once)

    def _rollout_ids(self) -> list[list[str]]:
        """The sets of ids that the rollouts of a call may have, where none is lost."""
        config = self.config
        counts = {config.k}
        if config.mode == "sequential" and config.refine.until_confirmed:
            counts |= {*range(1, config.k)}
        elif config.adaptive.enabled:
            counts |= {min(config.adaptive.first, config.k)}
        if config.mode == "sequential":
            counts |= {1}  # of an environment that can go on
        return [[str(number) for number in range(count)] for count in sorted(counts)]

    def _lessons(self) -> Lessons:
        return Lessons(self.config.mode, self.judge, self.distill, self.contrast, self.select, self.config.at_once)

    def _check_temperature(self) -> None:
        """Refuse to take one sample k times."""
        if self.config.k == 1 or self.config.mode == "sequential":
            return
        given, whose = heat("agent", self.act.predict, self.act.config.temperature)
        if given == 0:
            places = {"model": "the agent's language model", "predictor": "the agent's predictor", "step": "ActConfig"}
            where = places[whose]
            raise ConfigError(
                f"{where} has temperature 0, so {self.config.k} rollouts would all be one; set it above 0, or use"
                " mode='sequential'"
            )


BankProgram = ReasoningBank | MaTTS
"""A program of ours that learns with a bank: scaled, or not."""


def _prediction(
    memory: Memory,
    trajectories: tuple[Trajectory, ...],
    verdicts: Sequence[Verdict],
    selection: Selection,
    rollouts: Rollouts,
    ledger: Ledger,
    experience: Experience | None = None,
) -> dspy.Prediction:
    """What a call did. ``verdicts`` are None each where nobody was asked for any."""
    said = tuple(verdicts) or (None,) * len(trajectories)
    return dspy.Prediction(
        answer=trajectories[selection.index].answer,
        trajectory=trajectories[selection.index],
        verdict=said[selection.index],
        memory=memory,
        memory_items=experience.items if experience else (),
        experience=experience,
        trajectories=trajectories,
        verdicts=said,
        selection=selection,
        lost=tuple(rollouts.lost),
        launched=rollouts.launched,
        saved=rollouts.saved,
        unconditional=rollouts.unconditional,
        usage=ledger.usage(),
    )


def _config(config: MattsConfig, **given: Any) -> MattsConfig:
    if not isinstance(config, MattsConfig):
        raise ConfigError(f"MaTTS: got {type(config).__name__} for config; expected a MattsConfig")
    update = {name: value for name, value in given.items() if value is not None}
    try:
        made = MattsConfig.model_validate({**dict(config), **update})
    except pydantic.ValidationError as exc:
        misfit = first_misfit(exc)
        raise ConfigError(f"MaTTS: {misfit.loc[0]} = {misfit.input!r}: {misfit.why}") from None
    if made.mode == "sequential" and made.adaptive.enabled:
        raise ConfigError(
            "MaTTS: adaptive is for rollouts side by side; sequential scaling ends early with refine.until_confirmed"
        )
    return made
