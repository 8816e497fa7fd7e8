"""ReasoningBank: retrieve, act, judge, distil, append (Ouyang et al., ICLR 2026, arXiv 2509.25140, section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import dspy

from rb_dspy.backbones import Backbones, Ledger, metered
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ProgramConfig
from rb_dspy.environments import make_environment
from rb_dspy.errors import InfrastructureError, RBError
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.protocols import Judge as JudgeProtocol
from rb_dspy.schema import Experience, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Distill, Distilled, Foreign, Judge, Memory, Retrieve, as_task, as_trajectory
from rb_dspy.steps.ask import Do
from rb_dspy.steps.events import Appended, emit


class ReasoningBank(dspy.Module):
    """An agent that learns from its own successes and failures.

    ``program(task=task, bank=bank)`` returns a ``dspy.Prediction`` with ``answer``, ``trajectory``, ``verdict``,
    ``memory`` (what the agent was shown), ``memory_items`` (what it learned), ``experience`` and ``usage``.

    The bank is an argument and language models are bound when a call is made, so the program copies, compiles and
    saves like any other dspy program; its state holds prompts only. ``judge`` replaces the LLM judge.

    Raises ``InfrastructureError`` when one task's LM call or environment broke, ``BackboneError`` when a language model
    cannot be used at all. A rollout that had ended by then is in the bank, recorded but not learned from.
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
        self.judge: Any = judge or Judge(config.judge)
        self.distill = Distill(config.distill)

    def forward(
        self, task: Task, bank: MemoryBank, *, environments: EnvironmentFactory | None = None, run_id: str = ""
    ) -> dspy.Prediction:
        """Do ``task`` with what the bank has learned, and learn from it."""
        with self._session() as ledger:
            memory = self.retrieve(task, bank)
            trajectory = self.act(task, memory, environments or self.environments)
            with _kept(task, trajectory, bank, run_id):
                verdict = self._judge(task, trajectory)
                drafts = self.distill(task.without_ground_truth(), trajectory, verdict)
                experience = _append(bank, task, trajectory, verdict, drafts, memory, run_id)
            return _prediction(memory, trajectory, verdict, experience, ledger)

    async def aforward(
        self, task: Task, bank: MemoryBank, *, environments: EnvironmentFactory | None = None, run_id: str = ""
    ) -> dspy.Prediction:
        """``forward`` for asyncio; nothing in it blocks the event loop."""
        with self._session() as ledger:
            memory = await self.retrieve.acall(task, bank)
            trajectory = await self.act.acall(task, memory, environments or self.environments)
            with _kept(task, trajectory, bank, run_id):
                verdict = await self._ajudge(task, trajectory)
                drafts = await self.distill.acall(task.without_ground_truth(), trajectory, verdict)
                experience = await asyncio.to_thread(_append, bank, task, trajectory, verdict, drafts, memory, run_id)
            return _prediction(memory, trajectory, verdict, experience, ledger)

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
        had returned, so that the bank knows which lessons were shown. ``run_id`` names the attempt: the same task and
        rollout id in the same run are learned once, and without a run the same content is.
        """
        task = as_task(task)
        rollout = as_trajectory(task, trajectory)
        if known := bank.known(task, rollout, run_id=run_id):
            return known
        with self._session(), _kept(task, rollout, bank, run_id):
            verdict = self._judge(task, rollout)
            drafts = self.distill(task.without_ground_truth(), rollout, verdict)
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
        if known := await asyncio.to_thread(bank.known, task, rollout, run_id=run_id):
            return known
        with self._session(), _kept(task, rollout, bank, run_id):
            verdict = await self._ajudge(task, rollout)
            drafts = await self.distill.acall(task.without_ground_truth(), rollout, verdict)
            return await asyncio.to_thread(_append, bank, task, rollout, verdict, drafts, memory or Memory(), run_id)

    def _judge(self, task: Task, trajectory: Trajectory) -> Verdict:
        """The judge's word; it may be anybody's judge, so it is checked, and gets no ground truth."""
        verdict = Do("the judge", partial(self.judge, task.without_ground_truth(), trajectory)).run()
        return _checked(verdict)

    async def _ajudge(self, task: Task, trajectory: Trajectory) -> Verdict:
        seen = task.without_ground_truth()
        if isinstance(self.judge, dspy.Module):
            return _checked(await self.judge.acall(seen, trajectory))
        return _checked(await Do("the judge", partial(self.judge, seen, trajectory)).arun())

    @contextmanager
    def _session(self) -> Iterator[Ledger]:
        """This program's language models, where it has any of its own, and a ledger for one call."""
        with self.backbones.use() if self.backbones else nullcontext(), metered() as ledger:
            yield ledger


@contextmanager
def _kept(task: Task, trajectory: Trajectory, bank: MemoryBank, run_id: str) -> Iterator[None]:
    """Keep a rollout that has ended even when judging, distilling or storing it breaks: it cost more than they do.

    It is only recorded: ``seen_tasks`` leaves it out, and learning from the same rollout later is no repetition.
    """
    try:
        yield
    except Exception as exc:
        note = f"not learned from: {exc}"
        try:
            bank.append(task, trajectory, Verdict(label="unknown"), (), run_id=run_id, state="recorded", note=note)
        except RBError as also:
            exc.add_note(f"nor could the rollout be kept: {also}")
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
        distiller=drafts.distiller,
        note=drafts.note,
        shown=memory.items,
    )
    emit(Appended(task, experience))
    return experience


def _checked(verdict: object) -> Verdict:
    if not isinstance(verdict, Verdict):
        raise InfrastructureError(f"the judge gave {verdict!r}; expected a Verdict")
    return verdict


def _prediction(
    memory: Memory, trajectory: Trajectory, verdict: Verdict, experience: Experience, ledger: Ledger
) -> dspy.Prediction:
    """What this call did. ``experience`` is an earlier one where this run had done this rollout already."""
    return dspy.Prediction(
        answer=trajectory.answer,
        trajectory=trajectory,
        verdict=verdict,
        memory=memory,
        memory_items=experience.items,
        experience=experience,
        usage=ledger.usage(),
    )
