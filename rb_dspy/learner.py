"""The loop of a program with a bank: retrieve, act, judge, distill, append; what differs are rollouts and lessons."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import dspy

from rb_dspy.backbones import Backbones, Ledger, metered
from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.bank.admission import checked_name
from rb_dspy.concurrency import run_in_thread
from rb_dspy.errors import InputError, InvalidTask, UnparseableOutput
from rb_dspy.memories import Attempt, Curated, Curator, Distiller, MemorySystem, unjudged
from rb_dspy.protocols import EnvironmentFactory, Judge as JudgeProtocol, Redactor
from rb_dspy.schema import Experience, MemoryItem, Polarity, Task, Trajectory, Verdict, cleaned
from rb_dspy.steps import Distill, Distilled, Judge, Memory, Review, Selection, judge_rollout
from rb_dspy.steps.memory import render
from rb_dspy.steps.statements import hold_all
from rb_dspy.text import summary_line

Cleaned = TypeVar("Cleaned", Task, Trajectory)

MAX_TRIES = 3
"""After this many unparseable answers of the judge, the distiller or a curator, a rollout is appended as far as it is
known: without lessons, or, if only a curator failed, with the lessons as they were distilled."""


_REASON = 300
"""Most characters of the reason why nothing is shown."""


@dataclass(frozen=True)
class Lessons:
    """The result of learning from a task's rollouts: a verdict for each, drafts, and the selected rollout."""

    verdicts: Sequence[Verdict] = ()
    distilled: Distilled = field(default_factory=Distilled)
    selection: Selection = field(default_factory=lambda: Selection(0))
    polarity: Polarity | None = None


class Learner(dspy.Module):
    """What ``ReasoningBank`` and ``MaTTS`` share: they differ in their rollouts, and in the lessons of these."""

    backbones: Backbones | None
    environments: EnvironmentFactory
    redactor: Redactor
    retrieve: Any
    judge: Any
    distill: Any
    review: Review | None
    """Judges and distils in one call; None: two calls."""
    skip_known: bool
    systems: tuple[MemorySystem, ...]
    """The memory system, then those that were put over it, without their steps; empty: lessons."""
    own_retrieve: Any
    """The step ``retrieve`` without memory systems."""
    teach: Distiller | None
    """A memory system's step instead of ``distill``, ``contrast`` and ``review``."""
    curate: Sequence[Curator]
    repeats_tasks: bool
    _optional: tuple[str, ...] = ("retrieve", "teach", "curate")
    """The steps whose prompts a saved program may lack."""

    def forward(
        self,
        task: Task | str,
        bank: MemoryBank,
        *,
        environments: EnvironmentFactory | None = None,
        run_id: str = "",
        learn: bool = True,
        origin: str = "",
    ) -> dspy.Prediction:
        """Do ``task`` with the lessons in the bank, and learn from the rollout.

        Args:
            task: A str is a task of the environment ``question``. A ``Task`` is never shown a lesson that was first
                learned from a task with the same id; a str may be shown lessons from an earlier call with that text.
            bank: Read, and appended to if ``learn``.
            environments: Used instead of the program's own.
            run_id: A run learns from each task once: if it has, nothing is done, and the stored rollout is returned
                with its verdict. Without a ``run_id`` every call is a new run.
            learn: If False, only retrieve and act; ``verdict`` and ``experience`` are None then.
            origin: Where the texts of the task come from, if not from its environment, such as ``mail:customer-17``;
                ``TrustConfig`` decides how far what is learned from them is trusted. Empty: ``env:`` and the name of
                the environment.

        Returns:
            ``answer``, ``trajectory``, ``verdict``, ``memory`` (the lessons shown to the agent), ``memory_items`` (the
            lessons learned), ``experience``, ``stored`` (True: an earlier call of this run did the task) and ``usage``.
            If another call of this run learned from the task meanwhile, this rollout is returned with its own verdict,
            nothing is learned from it, and ``experience`` is None.

        Raises:
            InputError: An argument is invalid, or what the run learned from this task was removed from the bank.
            BackboneError: A language model cannot be used at all.
            InfrastructureError: A call of a language model or the environment failed. A finished rollout stays pending
                in the bank; see ``MemoryBank.pending`` and ``resume``.
            UnparseableOutput: The judge's or the distiller's answer could not be parsed; the rollout stays pending.
        """
        run_id = checked_name("run id", run_id) if run_id else f"call-{uuid.uuid4().hex[:12]}"
        with session(self.backbones) as ledger:
            if learn and (known := check_bank(bank).known(as_task(task), run_id=run_id)):
                items = {item.id: item for item in bank.items(known.shown)}
                memory = render(first_shown([items[id] for id in known.shown if id in items], known.trajectories))
                selection = Selection(known.submitted or 0, note="stored by an earlier call of this run")
                lessons = Lessons(known.verdicts, selection=selection)
                return self._prediction(lessons, known.trajectories, memory, ledger, known, stored=True)
            memory = self.recall(task, bank)
            task = as_task(task)
            origin = checked_name("origin", origin or f"env:{task.env}")
            about: dict[str, Any] = {"run_id": run_id, "origin": origin}
            keep = self._keeper(bank, task, memory, **about) if learn else lambda _: None
            rollouts, more = self._rollouts(task, memory, environments or self.environments, keep)
            if not learn:
                lessons = self._lessons(task, rollouts, bank, memory, learn)
                return self._prediction(lessons, rollouts, memory, ledger, **more)
            return self._learn(task, rollouts, bank, memory, ledger, **about, **more)

    def load_state(self, state: dict[str, Any], **kwargs: Any) -> Any:
        """Load as any dspy module does; what a program with another memory does not have stays as it is."""
        own = {name: each for name, each in self.dump_state().items() if name.split(".")[0] in self._optional}
        return super().load_state({**own, **state}, **kwargs)

    def recall(self, task: Task | str, bank: MemoryBank) -> Memory:
        """Retrieve for an external agent: put ``.block`` into its prompt; ``.items`` are the lessons in it.

        If a memory system asks a language model whose answer cannot be parsed, nothing is shown, and ``.problem`` says
        why: the same prompt would get the same answer again. The note of the experience says it, too.
        """
        own_lessons = self.repeats_tasks or isinstance(task, str)
        return self._remembered(lambda: self.retrieve(as_task(task), check_bank(bank), own_lessons))

    def _remembered(self, recall: Callable[[], Memory]) -> Memory:
        """What ``recall`` returns, or nothing, and why, if an answer of a language model cannot be used."""
        try:
            with session(self.backbones):  # a memory system may ask a language model
                return recall()
        except UnparseableOutput as exc:
            return Memory(problem=f"nothing shown: {self.redactor(summary_line(exc, _REASON))}")

    def use_memory(self, system: MemorySystem) -> Self:
        """Take the steps of a memory system, in this program; those that it lacks stay. Returns the program.

        A system that teaches takes the place of one that the program has; another is put over it.
        """
        if not self.systems:
            self.own_retrieve = self.retrieve
        if system.teach is not None:
            self.systems, self.retrieve, self.repeats_tasks = (), self.own_retrieve, False
            self.teach, self.curate = system.teach, ()
        self.retrieve = self.retrieve if system.retrieve is None else system.retrieve
        self.curate = [*self.curate, *system.curate]
        self.repeats_tasks = self.repeats_tasks or system.repeats_tasks
        self.systems = (*self.systems, replace(system, retrieve=None, teach=None, curate=()))
        return self

    @property
    def judge_in_use(self) -> JudgeProtocol:
        """The step that judges: ``judge``, unless the memory learns without feedback."""
        judge: JudgeProtocol = self.judge
        return unjudged if any(each.signal == "none" for each in self.systems) else judge

    def resume(self, pending: Pending, environments: EnvironmentFactory | None = None) -> dspy.Prediction:
        """Learn from the pending rollouts of a task (``MemoryBank.pending``).

        If an answer of a language model cannot be parsed, the rollouts stay pending; at the third such answer they are
        appended without lessons, with the stated verdict or ``unknown``. A correction always stays pending.

        Args:
            pending: The rollouts.
            environments: ``MaTTS`` does here what is missing of its k rollouts, with the same lessons. None: it learns
                from those that there are. A rollout with a stated verdict or feedback is learned from as it is.
        """
        task, rollouts, bank = pending.task, pending.trajectories, pending.bank
        shown = first_shown(pending.shown, rollouts)
        memory = replace(render(shown), problem=next((each.shown.problem for each in rollouts), ""))
        about: dict[str, Any] = {"run_id": pending.run_id, "origin": pending.origin}
        stated = any(each.known_label or each.feedback for each in rollouts)
        more: dict[str, Any] = {}
        with session(self.backbones) as ledger:
            # after a try all have been done
            if environments and pending.run_id and not stated and not pending.tries and self._is_short(rollouts):
                memory = memory if memory.problem else self._again(task, shown, bank)
                keep = self._keeper(bank, task, memory, **about)
                rollouts, more = self._rollouts(task, memory, environments, keep, rollouts)
            return self._learn(task, rollouts, bank, memory, ledger, **about, reward=pending.reward, **more)

    async def aforward(self, *args: Any, **kwargs: Any) -> dspy.Prediction:
        """``forward`` for asyncio: runs in its own thread."""
        return await run_in_thread(type(self).forward, self, *args, **kwargs)

    async def arecall(self, *args: Any, **kwargs: Any) -> Memory:
        """``recall`` for asyncio."""
        return await run_in_thread(self.recall, *args, **kwargs)

    async def aresume(self, pending: Pending, environments: EnvironmentFactory | None = None) -> dspy.Prediction:
        """``resume`` for asyncio."""
        return await run_in_thread(self.resume, pending, environments)

    def _clean(self, value: Cleaned) -> Cleaned:
        """A task or a rollout without secrets; the arguments of an environment stay."""
        return cleaned(value, self.redactor)

    def _keeper(self, bank: MemoryBank, task: Task, memory: Memory, **about: Any) -> Callable[[Trajectory], object]:
        """Return what stores a rollout when it ends, so that a crash loses none."""
        task = self._clean(task)

        def keep(rollout: Trajectory) -> object:
            shown: list[MemoryItem | str] = [*memory.items, *rollout.shown.ids]
            return bank.record(task, self._clean(noted(rollout, memory)), shown=shown, **about)

        return keep

    def _is_short(self, rollouts: Sequence[Trajectory]) -> bool:
        """Whether ``_rollouts`` does more of these rollouts."""
        return False

    def _again(self, task: Task, items: Sequence[MemoryItem], bank: MemoryBank) -> Memory:
        """What further rollouts of an interrupted call are shown: the same items, as memory writes them."""
        again = getattr(self.retrieve, "again", None)
        return (
            render(items) if again is None else self._remembered(lambda: again(task, items, bank, self.repeats_tasks))
        )

    def _rollouts(
        self,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        keep: Callable[[Trajectory], object],
        stored: tuple[Trajectory, ...] = (),
    ) -> tuple[tuple[Trajectory, ...], dict[str, Any]]:
        """Act, and ``keep`` each rollout, except those that are ``stored``. Returns all, and more of the prediction."""
        raise NotImplementedError

    def _lessons(
        self, task: Task, trajectories: tuple[Trajectory, ...], bank: MemoryBank, memory: Memory, learn: bool = True
    ) -> Lessons:
        """Learn from rollouts that were shown ``memory``, or, without ``learn``, only select one."""
        raise NotImplementedError

    def _taught(
        self, task: Task, trajectory: Trajectory, bank: MemoryBank, memory: Memory
    ) -> tuple[Verdict, Distilled]:
        """Judge and distill one rollout (paper, section 3.2): in one call, in two, or, if it is known, judge it only.

        A step that was replaced is called, and so is the distiller after a stated verdict.
        """
        task, own = task.without_ground_truth(), self.teach is None and type(self.distill) is Distill
        known = own and self.skip_known and hold_all(memory.items, trajectory)
        judge = self.judge_in_use
        if self.review and own and type(judge) is Judge and not known and trajectory.known_label is None:
            both: tuple[Verdict, Distilled] = self.review(task, trajectory)
            return both
        verdict = judge_rollout(judge, task, trajectory)
        if known and verdict.label == "success":
            return verdict, Distilled(note="nothing new: the lessons shown hold what the environment said")
        if self.teach is not None:
            return verdict, self.teach([attempt_of(task, trajectory, verdict, memory, bank)], bank)
        return verdict, self.distill(task, trajectory, verdict)

    def _learn(
        self,
        task: Task,
        rollouts: tuple[Trajectory, ...],
        bank: MemoryBank,
        memory: Memory,
        ledger: Ledger,
        *,
        run_id: str,
        origin: str,
        reward: float | None = None,
        **more: Any,
    ) -> dspy.Prediction:
        """Append the lessons of rollouts that are pending in ``bank``; judge, distiller and bank get them redacted.

        The experience is None if the run learned from other rollouts of the task meanwhile.

        Raises:
            UnparseableOutput: The bank counts the tries; at the last one, only if these rollouts are a correction.
        """
        answers = [rollout.answer for rollout in rollouts]
        task, rollouts = self._clean(task), tuple(self._clean(noted(each, memory)) for each in rollouts)
        more |= {"answers": answers}
        lessons: Lessons | None = None
        try:
            lessons = self._lessons(task, rollouts, bank, memory)
            curated = self._curated(lessons, task.without_ground_truth(), rollouts, bank, memory)
        except UnparseableOutput as exc:
            tries = bank.record_failure(task, str(exc), run_id=run_id, trajectories=rollouts)
            if tries < MAX_TRIES or bank.known(task, rollouts, run_id=run_id):  # a correction has lessons to lose
                raise
            note = f"{'not distilled' if lessons is None else 'kept as learned, not curated'}: {exc}"
            if lessons is None:
                verdicts = [Verdict(label=each.known_label or "unknown", reasons=str(exc)) for each in rollouts]
                lessons = Lessons(verdicts, selection=Selection(0, note=note))
            curated = Curated(lessons.distilled.drafts, marks=lessons.distilled.marks, note=note)
        problems = dict.fromkeys(each.shown.problem for each in rollouts)
        experience = bank.append(
            task,
            rollouts,
            lessons.verdicts,
            curated.drafts,
            retired=curated.retired,
            marks=curated.marks,
            run_id=run_id,
            polarity=lessons.polarity,
            distiller=lessons.distilled.distiller,
            note="; ".join(filter(None, [curated.note, *problems])),
            origin=origin,
            shown=[*memory.items, *(id for each in rollouts for id in each.shown.ids)],
            reward=reward,
            submitted=lessons.selection.index,
            again=False,  # a deleted lesson stays deleted,
            recorded=True,  # and a removed rollout stays removed
        )
        if experience.trajectories != rollouts:
            return self._prediction(lessons, rollouts, memory, ledger, **more)
        lessons = replace(lessons, verdicts=experience.verdicts)
        return self._prediction(lessons, rollouts, memory, ledger, experience, **more)

    def _curated(
        self, lessons: Lessons, task: Task, rollouts: Sequence[Trajectory], bank: MemoryBank, memory: Memory
    ) -> Curated:
        pairs = zip(rollouts, lessons.verdicts, strict=True)
        attempts = tuple(attempt_of(task, *pair, memory, bank, number) for number, pair in enumerate(pairs))
        curated = Curated(
            lessons.distilled.drafts, marks=lessons.distilled.marks, attempts=attempts, note=lessons.distilled.note
        )
        for curator in self.curate:
            curated = curator(curated, task, bank)
        return curated

    def _prediction(
        self,
        lessons: Lessons,
        rollouts: Sequence[Trajectory],
        memory: Memory,
        ledger: Ledger,
        experience: Experience | None = None,
        stored: bool = False,
        answers: Sequence[str | None] = (),
        **more: Any,
    ) -> dspy.Prediction:
        """Return the prediction of a call, for the selected rollout; ``answers``: as they were before redaction."""
        chosen = lessons.selection.index
        return dspy.Prediction(
            answer=(answers or [rollout.answer for rollout in rollouts])[chosen],
            trajectory=rollouts[chosen],
            verdict=lessons.verdicts[chosen] if lessons.verdicts else None,
            memory=memory,
            memory_items=experience.items if experience else (),
            experience=experience,
            stored=stored,
            usage=ledger.usage(),
            **more,
        )


def attempt_of(
    task: Task, rollout: Trajectory, verdict: Verdict, memory: Memory, bank: MemoryBank, number: int = 0
) -> Attempt:
    """A rollout as a memory system sees it: shown ``memory``, then what working memory brought during it."""
    later = {item.id: item for item in bank.items(rollout.shown.ids)} if rollout.shown.ids else {}
    brought = [later[id] for id in rollout.shown.ids if id in later]
    return Attempt(task, rollout, verdict, (*memory.items, *brought), number)


def first_shown(shown: Sequence[MemoryItem], rollouts: Sequence[Trajectory]) -> list[MemoryItem]:
    """Those of ``shown`` that were shown before the first action."""
    later = {id for each in rollouts for id in each.shown.ids}
    return [item for item in shown if item.id not in later]


def noted(rollout: Trajectory, memory: Memory) -> Trajectory:
    """``rollout`` with the reason why memory showed nothing, if it failed."""
    if not memory.problem:
        return rollout
    return rollout.model_copy(update={"shown": rollout.shown.model_copy(update={"problem": memory.problem})})


def as_task(task: Task | str) -> Task:
    """Return ``task``, or a task made from a text. Its id is derived from the text: equal texts are the same task."""
    if isinstance(task, Task):
        return task
    if not isinstance(task, str):
        raise InvalidTask(f"got {type(task).__name__} for task; expected a Task, or a str with the instruction")
    return Task(id=f"text/{hashlib.sha256(task.encode('utf-8', 'replace')).hexdigest()[:16]}", instruction=task)


def check_bank(bank: MemoryBank) -> MemoryBank:
    """Return ``bank``. Raises ``InputError`` for anything else, such as a path."""
    if not isinstance(bank, MemoryBank):
        raise InputError(f"got {type(bank).__name__} for bank; expected MemoryBank.open(path, scope=...)")
    return bank


@contextmanager
def session(backbones: Backbones | None) -> Iterator[Ledger]:
    """Use ``backbones``, if any, inside the block, and count what its calls use."""
    with backbones.use() if backbones else nullcontext(), metered() as ledger:
        yield ledger
