"""ReasoningBank: retrieve, act, judge, distil, append (Ouyang et al., ICLR 2026, arXiv 2509.25140, section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import dspy

from rb_dspy.backbones import Backbones, Ledger, lm_of, metered
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ProgramConfig
from rb_dspy.environments import make_environment
from rb_dspy.errors import BackboneError, InfrastructureError
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.protocols import Judge as JudgeProtocol
from rb_dspy.schema import Experience, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Distill, Distilled, Foreign, Judge, Memory, Retrieve, as_task, as_trajectory
from rb_dspy.steps.events import Appended, emit


class ReasoningBank(dspy.Module):
    """An agent that learns from its own successes and failures.

    ``program(task=task, bank=bank)`` returns a ``dspy.Prediction`` with ``answer``, ``trajectory``, ``verdict``,
    ``memory`` (what the agent was shown), ``memory_items`` (what it learned), ``experience`` and ``usage``.

    The bank is an argument and language models are bound when a call is made, so the program copies, compiles and
    saves like any other dspy program; its state holds prompts only. ``judge`` replaces the LLM judge.

    Raises ``InfrastructureError`` when one task's LM call or environment broke, ``BackboneError`` when a language model
    cannot be used at all. A rollout that had ended by then is in the bank, judged ``unknown``.
    """

    def __init__(
        self,
        config: ProgramConfig | None = None,
        *,
        backbones: Backbones | None = None,
        environments: EnvironmentFactory = make_environment,
        judge: JudgeProtocol | None = None,
    ) -> None:
        super().__init__()
        config = config or ProgramConfig()
        self.backbones = backbones
        self.environments = environments
        self.retrieve = Retrieve(config.retrieve)
        self.act = Act(config.act)
        self.judge = judge or Judge(config.judge)
        self.distill = Distill(config.distill)

    def forward(
        self, task: Task, bank: MemoryBank, *, environments: EnvironmentFactory | None = None, run_id: str = ""
    ) -> dspy.Prediction:
        """Do ``task`` with what the bank has learned, and learn from it."""
        with self._session() as ledger:
            memory = self.retrieve(task, bank)
            trajectory = self.act(task, memory, environments or self.environments)
            with _kept(task, trajectory, bank, run_id):
                verdict = self.judge(task, trajectory)
                drafts = self.distill(task, trajectory, verdict)
            experience = _append(bank, task, trajectory, verdict, drafts, memory, run_id)
            return _prediction(memory, experience, ledger)

    async def aforward(
        self, task: Task, bank: MemoryBank, *, environments: EnvironmentFactory | None = None, run_id: str = ""
    ) -> dspy.Prediction:
        """``forward`` for asyncio; nothing in it blocks the event loop."""
        with self._session() as ledger:
            memory = await self.retrieve.acall(task, bank)
            trajectory = await self.act.acall(task, memory, environments or self.environments)
            with _kept(task, trajectory, bank, run_id):
                verdict = await self._ajudge(task, trajectory)
                drafts = await self.distill.acall(task, trajectory, verdict)
            experience = await asyncio.to_thread(_append, bank, task, trajectory, verdict, drafts, memory, run_id)
            return _prediction(memory, experience, ledger)

    def recall(self, task: Task | str, bank: MemoryBank) -> Memory:
        """For an agent loop that is not ours: ``.block`` to put into its prompt, ``.items`` that stand in it."""
        memory: Memory = self.retrieve(as_task(task), bank)
        return memory

    async def arecall(self, task: Task | str, bank: MemoryBank) -> Memory:
        """``recall`` for asyncio."""
        memory: Memory = await self.retrieve.acall(as_task(task), bank)
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
        had returned, so that the bank knows which lessons were shown. Learning the same rollout again is a no-op.
        """
        task = as_task(task)
        rollout = as_trajectory(task, trajectory)
        with self._session():
            with _kept(task, rollout, bank, run_id):
                verdict = self.judge(task, rollout)
                drafts = self.distill(task, rollout, verdict)
            return _append(bank, task, rollout, verdict, drafts, memory or Memory(), run_id)

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
        task = as_task(task)
        rollout = as_trajectory(task, trajectory)
        with self._session():
            with _kept(task, rollout, bank, run_id):
                verdict = await self._ajudge(task, rollout)
                drafts = await self.distill.acall(task, rollout, verdict)
            return await asyncio.to_thread(_append, bank, task, rollout, verdict, drafts, memory or Memory(), run_id)

    async def _ajudge(self, task: Task, trajectory: Trajectory) -> Verdict:
        verdict: Verdict
        if isinstance(self.judge, dspy.Module):
            verdict = await self.judge.acall(task, trajectory)
        else:
            verdict = await asyncio.to_thread(self.judge, task, trajectory)
        return verdict

    @contextmanager
    def _session(self) -> Iterator[Ledger]:
        """This program's language models, where it has any of its own, and a ledger for one call."""
        with self.backbones.use() if self.backbones else nullcontext(), metered() as ledger:
            yield ledger


@contextmanager
def _kept(task: Task, trajectory: Trajectory, bank: MemoryBank, run_id: str) -> Iterator[None]:
    """Keep a rollout that has ended even when judging or distilling it breaks: it cost more than they do.

    It is kept under a run of its own, so that learning from the same rollout later is not taken for a repetition.
    """
    try:
        yield
    except (InfrastructureError, BackboneError) as exc:
        unjudged = f"{run_id} not judged".strip()
        bank.append(task, trajectory, Verdict(label="unknown"), (), run_id=unjudged, note=f"not judged: {exc}")
        raise


def _append(
    bank: MemoryBank,
    task: Task,
    trajectory: Trajectory,
    verdict: Verdict,
    drafts: Distilled,
    memory: Memory,
    run_id: str,
) -> Experience:
    experience = bank.append(
        task,
        trajectory,
        verdict,
        drafts.drafts,
        run_id=run_id,
        distiller=str(lm_of("distiller").model) if drafts.drafts else "",
        note=drafts.note,
        shown=memory.items,
    )
    emit(Appended(task, experience))
    return experience


def _prediction(memory: Memory, experience: Experience, ledger: Ledger) -> dspy.Prediction:
    (trajectory,), (verdict,) = experience.trajectories, experience.verdicts
    return dspy.Prediction(
        answer=trajectory.answer,
        trajectory=trajectory,
        verdict=verdict,
        memory=memory,
        memory_items=experience.items,
        experience=experience,
        usage=ledger.usage(),
    )
