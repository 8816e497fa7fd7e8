"""ReasoningBank: retrieve, act, judge, distil, append (Ouyang et al., ICLR 2026, arXiv 2509.25140, section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import dspy

from rb_dspy.backbones import Backbones, Ledger
from rb_dspy.backbones.session import session
from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.config import ProgramConfig
from rb_dspy.environments import make_environment
from rb_dspy.errors import ConfigError, InputError, RBError
from rb_dspy.protocols import EnvironmentFactory, Judge as JudgeProtocol, Reranker
from rb_dspy.schema import Experience, MemoryItem, Task, Trajectory
from rb_dspy.steps import Act, Distill, Foreign, Judge, Memory, Retrieve, as_trajectory
from rb_dspy.steps.ask import Do, Routine, adrive, drive
from rb_dspy.steps.ended import Ended, kept
from rb_dspy.steps.events import Appended, emit
from rb_dspy.steps.ingest import checked, free, waiting
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
        self.backbones = Backbones.of(backbones)
        self.environments = environments
        self.retrieve = Retrieve(config.retrieve, reranker)
        self.act = Act(config.act)
        if judge is not None:
            check_judge(judge)
        self.judge: Any = Judge(config.judge) if judge is None else judge
        self.distill = Distill(config.distill)

    def forward(
        self, task: Task | str, bank: MemoryBank, *, environments: EnvironmentFactory | None = None, run_id: str = ""
    ) -> dspy.Prediction:
        """Do ``task`` with what the bank has learned, and learn from it. A text is a task of the env ``question``.

        A ``Task`` is never shown what was learned from a task of its id, so that no score is its own echo. A text that
        comes again is another occasion, and is shown what it taught before.
        """
        check_plain(self.judge)
        task, again = checked(task, bank, run_id)
        with session(self.backbones) as ledger:
            drive(free(task, bank, _ROLLOUTS, run_id))
            memory = self.retrieve(task, bank, again)
            ingest = drive(self._acted(task, memory, bank, environments or self.environments, run_id))
            self._learned(ingest)
            return _prediction(memory, ingest, ledger)

    async def aforward(
        self, task: Task | str, bank: MemoryBank, *, environments: EnvironmentFactory | None = None, run_id: str = ""
    ) -> dspy.Prediction:
        """``forward`` for asyncio; nothing in it blocks the event loop."""
        task, again = checked(task, bank, run_id)
        with session(self.backbones) as ledger:
            await adrive(free(task, bank, _ROLLOUTS, run_id))
            memory = await self.retrieve.acall(task, bank, again)
            ingest = await adrive(self._acted(task, memory, bank, environments or self.environments, run_id))
            await self._alearned(ingest)
            return _prediction(memory, ingest, ledger)

    def resume(self, ingest: Ingest) -> dspy.Prediction:
        """Learn from a rollout that waits in a bank (``MemoryBank.pending``); what was judged or distilled stays.

        ``memory`` of the prediction has what the agent had been shown, as far as that is still in the bank; ``usage``
        what this call used: what the rollout had used is in ``trajectory.usage``.
        """
        with session(self.backbones) as ledger:
            memory = shown_before(waiting(ingest).shown())
            self._learned(ingest)
            return _prediction(memory, ingest, ledger)

    async def aresume(self, ingest: Ingest) -> dspy.Prediction:
        """``resume`` for asyncio, and for async judges."""
        with session(self.backbones) as ledger:
            memory = shown_before(await asyncio.to_thread(waiting(ingest).shown))
            await self._alearned(ingest)
            return _prediction(memory, ingest, ledger)

    def recall(self, task: Task | str, bank: MemoryBank) -> Memory:
        """For an agent loop that is not ours: ``.block`` to put into its prompt, ``.items`` that stand in it.

        A text is shown what the same text taught before; a ``Task`` nothing that was learned from a task of its id.
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

        ``trajectory``: ours, a list of chat messages (tool calls included), or plain dicts. ``memory``: what ``recall``
        had returned, so that the bank knows which lessons were shown. ``run_id`` names the attempt: the same task and
        rollout id in the same run are learned once, and without a run the same content is.
        """
        (task, _), shown = checked(task, bank, run_id), _shown(memory)
        ingest = bank.ingest(task, as_trajectory(task, trajectory), run_id=run_id, shown=shown)
        with session(self.backbones):
            return ingest.experience or self._learned(ingest)

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
            return ingest.experience or await self._alearned(ingest)

    def _acted(
        self, task: Task, memory: Memory, bank: MemoryBank, environments: EnvironmentFactory, run_id: str
    ) -> Routine[Ingest]:
        """A rollout, in the bank; also where it is interrupted, once it has ended."""
        keep = partial(bank.ingest, task, run_id=run_id, shown=memory.items)
        ended: Ended = {}

        def rollout() -> Routine[Ingest]:
            ended[0] = yield Call(self.act, (task, memory, environments, 0, partial(ended.__setitem__, 0)))
            ingest: Ingest = yield Do("keeping the rollout", partial(keep, ended[0]))
            return ingest

        return kept(rollout(), task, ended, keep)

    def _learned(self, ingest: Ingest) -> Experience:
        """Judge, distil, append: what is missing of it. Each step is kept before the next begins."""
        task, trajectory = _single(ingest)
        with _noted(ingest):
            while ingest.drafts is None:
                if ingest.verdicts is None:
                    ingest.judged([Judging(self.judge, task, trajectory).run()])
                else:
                    said = self.distill(task.without_ground_truth(), trajectory, ingest.verdicts[0])
                    ingest.distilled(said.drafts, distiller=said.distiller, note=said.note)
                task, trajectory = _single(ingest)  # another learner's, where it took the place of this one
            return admitted(ingest)

    async def _alearned(self, ingest: Ingest) -> Experience:
        task, trajectory = _single(ingest)
        async with _anoted(ingest):
            while ingest.drafts is None:
                if ingest.verdicts is None:
                    await asyncio.to_thread(ingest.judged, [await Judging(self.judge, task, trajectory).arun()])
                else:
                    said = await self.distill.acall(task.without_ground_truth(), trajectory, ingest.verdicts[0])
                    await asyncio.to_thread(ingest.distilled, said.drafts, distiller=said.distiller, note=said.note)
                task, trajectory = _single(ingest)
            return await asyncio.to_thread(admitted, ingest)


@contextmanager
def _noted(ingest: Ingest) -> Iterator[None]:
    """Say on a rollout that waits why it could not be learned from."""
    try:
        yield
    except Exception as exc:
        note(ingest, exc)
        raise


@asynccontextmanager
async def _anoted(ingest: Ingest) -> AsyncIterator[None]:
    try:
        yield
    except Exception as exc:
        await asyncio.to_thread(note, ingest, exc)
        raise


def note(ingest: Ingest, exc: Exception) -> None:
    """Say on rollouts that wait why they could not be learned from."""
    try:
        ingest.failed(f"not learned from: {exc}")
    except RBError as also:
        exc.add_note(f"nor could that be noted: {also}")


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


def admitted(ingest: Ingest) -> Experience:
    """The experience that the bank now holds, durably."""
    experience = ingest.admitted()
    emit(Appended(experience.task, experience))
    return experience


def _prediction(memory: Memory, ingest: Ingest, ledger: Ledger) -> dspy.Prediction:
    """What this call did. ``experience`` is an earlier one where this run had done this rollout already."""
    experience = ingest.admitted()
    trajectory = ingest.state.trajectories[0]
    return dspy.Prediction(
        answer=trajectory.answer,
        trajectory=trajectory,
        verdict=(ingest.verdicts or experience.verdicts)[0],
        memory=memory,
        memory_items=experience.items,
        experience=experience,
        usage=ledger.usage(),
    )
