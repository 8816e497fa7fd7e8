"""ReasoningBank: retrieve, act, judge, distil, append (Ouyang et al., ICLR 2026, arXiv 2509.25140, section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import dspy

from rb_dspy.backbones import Backbones, Ledger
from rb_dspy.backbones.session import session
from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.config import ProgramConfig
from rb_dspy.environments import make_environment
from rb_dspy.errors import ConfigError, InputError
from rb_dspy.protocols import EnvironmentFactory, Judge as JudgeProtocol, Reranker
from rb_dspy.schema import Experience, MemoryItem, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Distill, Foreign, Judge, Memory, Retrieve, as_trajectory
from rb_dspy.steps.appended import appended, note
from rb_dspy.steps.ask import Do, Routine, adrive, drive
from rb_dspy.steps.ended import Ended, kept
from rb_dspy.steps.ingest import checked, free, unclaimed, waiting
from rb_dspy.steps.judge import Judging, check_judge, check_plain
from rb_dspy.steps.memory import shown_before
from rb_dspy.steps.wanted import Call
from rb_dspy.steps.whole import Whole

_ROLLOUTS = (("0",),)
"""What the rollout of a call is called: the one set of ids that it may have."""


class ReasoningBank(Whole):
    """An agent that learns from its own successes and failures.

    ``program(task=task, bank=bank)`` returns a ``dspy.Prediction`` with ``answer``, ``trajectory``, ``verdict``,
    ``memory`` (what the agent was shown), ``memory_items`` (what it learned), ``experience`` and ``usage``.

    The bank is an argument and language models are bound when a call is made, so the program copies, compiles and
    saves like any other dspy program; its state holds prompts only. ``judge`` replaces the LLM judge; ``reranker``
    chooses among ``RetrieveConfig.candidates``.

    Raises ``InfrastructureError`` when one task's LM call or environment broke, ``BackboneError`` when a language model
    cannot be used at all. A rollout that had ended by then, or when it was interrupted, waits in the bank:
    ``MemoryBank.pending``, ``resume``. ``ConfigError`` for an async judge in a call that could not await it.
    """

    def __init__(
        self,
        config: ProgramConfig | None = None,
        *,
        backbones: Backbones | Mapping[str, Any] | None = None,
        environments: EnvironmentFactory = make_environment,
        judge: JudgeProtocol | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        """``backbones``: also a dict, role -> language model."""
        super().__init__()
        config = ProgramConfig() if config is None else config
        if not isinstance(config, ProgramConfig):
            raise ConfigError(f"got {type(config).__name__} for config; expected a ProgramConfig")
        for what, given in (("environments", environments), ("reranker", reranker)):
            if not callable(given) and not (what == "reranker" and given is None):
                raise ConfigError(f"got {type(given).__name__} for {what}; expected a function, or leave it out")
        self.backbones = Backbones.of(backbones)
        self.environments = environments
        self.retrieve = Retrieve(config.retrieve, reranker)
        self.act = Act(config.act)
        if judge is not None:
            check_judge(judge)
        self.judge: Any = Judge(config.judge) if judge is None else judge
        self.distill = Distill(config.distill)

    def forward(
        self,
        task: Task | str,
        bank: MemoryBank,
        *,
        environments: EnvironmentFactory | None = None,
        run_id: str = "",
        learn: bool = True,
    ) -> dspy.Prediction:
        """Do ``task`` with what the bank has learned, and learn from it. A text is a task of the env ``question``.

        A ``Task`` is never shown a lesson that a task of its id gave first, so that no score is its own echo. A text
        that comes again is another occasion, and is shown what it taught before.

        ``environments``: in place of the program's own. ``run_id`` names the attempt: a task is learned from once in a
        run, and without a name the same rollout is. ``learn=False`` only retrieves and acts: the bank is not written
        to, and may be one that refuses it; ``verdict`` and ``experience`` are None then, and ``memory_items`` is empty.
        """
        if learn:
            check_plain(self.judge)
        task, again = checked(task, bank, run_id)
        with session(self.backbones) as ledger:
            return drive(self._loop(task, again, bank, self._given(environments), run_id, learn, ledger))

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
            return await adrive(self._loop(task, again, bank, self._given(environments), run_id, learn, ledger))

    def resume(self, ingest: Ingest) -> dspy.Prediction:
        """Learn from a rollout that waits in a bank (``MemoryBank.pending``); what was judged or distilled stays.

        Raises ``InputError`` where the run that it is of is at work elsewhere (``Ingest.elsewhere``).

        ``memory`` of the prediction has what the agent had been shown, as far as that is still in the bank; ``usage``
        what this call used: what the rollout had used is in ``trajectory.usage``.
        """
        with session(self.backbones) as ledger:
            return drive(self._resumed(waiting(ingest), ledger))

    async def aresume(self, ingest: Ingest) -> dspy.Prediction:
        """``resume`` for asyncio, and for async judges."""
        with session(self.backbones) as ledger:
            return await adrive(self._resumed(waiting(ingest), ledger))

    def recall(self, task: Task | str, bank: MemoryBank) -> Memory:
        """For an agent loop that is not ours: ``.block`` to put into its prompt, ``.items`` that stand in it.

        A text is shown what the same text taught before; a ``Task`` nothing that a task of its id taught first.
        """
        task, again = checked(task, bank)
        memory: Memory = self.retrieve(task, bank, again)
        return memory

    async def arecall(self, task: Task | str, bank: MemoryBank) -> Memory:
        """``recall`` for asyncio."""
        task, again = checked(task, bank)
        memory: Memory = await self.retrieve.acall(task, bank, again)
        return memory

    def learn(
        self,
        task: Task | str,
        trajectory: Foreign,
        bank: MemoryBank,
        *,
        memory: Memory | None = None,
        run_id: str = "",
    ) -> Experience:
        """Judge and distil a rollout of an agent that is not ours.

        ``trajectory``: ours, a list of chat messages (tool calls included), what an agent of DSPy's returns, or plain
        dicts. ``memory``: what ``recall``
        had returned, so that the bank knows which lessons were shown. ``run_id`` names the attempt: the same task and
        rollout id in the same run are learned once, and without a run the same content is.
        """
        (task, _), shown = checked(task, bank, run_id), _shown(memory)
        ingest = bank.ingest(task, as_trajectory(task, trajectory), run_id=run_id, shown=shown)
        with session(self.backbones):
            done = ingest.experience
            return done if done is not None else drive(self._learned(ingest))

    async def alearn(
        self,
        task: Task | str,
        trajectory: Foreign,
        bank: MemoryBank,
        *,
        memory: Memory | None = None,
        run_id: str = "",
    ) -> Experience:
        """``learn`` for asyncio."""
        (task, _), shown = checked(task, bank, run_id), _shown(memory)
        rollout = as_trajectory(task, trajectory)
        ingest = await asyncio.to_thread(bank.ingest, task, rollout, run_id=run_id, shown=shown)
        with session(self.backbones):
            done = ingest.experience
            return done if done is not None else await adrive(self._learned(ingest))

    def _loop(
        self,
        task: Task,
        again: bool,
        bank: MemoryBank,
        environments: EnvironmentFactory,
        run_id: str,
        learn: bool,
        ledger: Ledger,
    ) -> Routine[dspy.Prediction]:
        """Retrieve, act, judge, distil, append (paper, section 3.2)."""
        if learn:
            yield from free(task, bank, _ROLLOUTS, run_id)
        memory = yield Call(self.retrieve, (task, bank, again))
        if not learn:
            trajectory = yield Call(self.act, (task, memory, environments))
            return _prediction(memory, trajectory, ledger)
        ingest = yield from self._acted(task, memory, bank, environments, run_id)
        experience = yield from self._learned(ingest)
        return _prediction(memory, ingest.state.trajectories[0], ledger, experience, ingest.verdicts)

    def _resumed(self, ingest: Ingest, ledger: Ledger) -> Routine[dspy.Prediction]:
        yield from unclaimed(ingest)
        memory = shown_before((yield Do("looking up what was shown", ingest.shown)))
        experience = yield from self._learned(ingest)
        return _prediction(memory, ingest.state.trajectories[0], ledger, experience, ingest.verdicts)

    def _acted(
        self, task: Task, memory: Memory, bank: MemoryBank, environments: EnvironmentFactory, run_id: str
    ) -> Routine[Ingest]:
        """A rollout, in the bank; also where it is interrupted, once it has ended."""
        keep = partial(bank.ingest, task, run_id=run_id, shown=memory.items)
        ended = Ended(task, keep, early=False)  # there are no others to wait for

        def rollout() -> Routine[Ingest]:
            trajectory = yield Call(self.act, (task, memory, environments, 0, partial(ended.put, 0)))
            ended.put(0, trajectory)
            ingest: Ingest = yield Do("keeping the rollout", partial(ended.keep, [trajectory]))
            return ingest

        return kept(rollout(), ended)

    def _learned(self, ingest: Ingest) -> Routine[Experience]:
        """Judge, distil, append: what is missing of it. Each step is kept before the next begins."""
        task, trajectory = _single(ingest)
        try:
            while ingest.drafts is None:
                if ingest.verdicts is None:
                    verdict = yield Judging(self.judge, task, trajectory)
                    yield Do("keeping the verdict", partial(ingest.judged, [verdict]))
                else:
                    said = yield Call(self.distill, (task.without_ground_truth(), trajectory, ingest.verdicts[0]))
                    keep = partial(ingest.distilled, said.drafts, distiller=said.distiller, note=said.note)
                    yield Do("keeping the lessons", keep)
                task, trajectory = _single(ingest)  # another learner's, where it took the place of this one
            experience: Experience = yield Do("appending", partial(appended, ingest))
        except Exception as exc:
            yield Do("noting what broke", partial(note, ingest, exc))
            raise
        return experience


def _shown(memory: Memory | object | None) -> tuple[MemoryItem, ...]:
    if memory is None:
        return ()
    if not isinstance(memory, Memory):
        raise InputError(f"got {type(memory).__name__} for memory; expected what recall gave, whole: not its .block")
    return memory.items


def _single(ingest: Ingest) -> tuple[Task, Trajectory]:
    rollouts = ingest.state.trajectories
    if len(rollouts) != 1:
        raise InputError(f"task {ingest.task.id}: {len(rollouts)} rollouts wait together; this program learns from one")
    return ingest.task, rollouts[0]


def _prediction(
    memory: Memory,
    trajectory: Trajectory,
    ledger: Ledger,
    experience: Experience | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> dspy.Prediction:
    """What this call did. ``experience`` is an earlier one where this run had done this rollout already."""
    given = verdicts or (experience.verdicts if experience else ())
    return dspy.Prediction(
        answer=trajectory.answer,
        trajectory=trajectory,
        verdict=given[0] if given else None,
        memory=memory,
        memory_items=experience.items if experience else (),
        experience=experience,
        usage=ledger.usage(),
    )
