"""The arms of an evaluation: what an agent is shown, what is learned from it, and who judges.

A memory system changes steps of a shallow copy of the program, so MaTTS programs work as arms too, and the caller's
program is not changed. All arms have the same step and token limits.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import dspy

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import BackboneError, InputError
from rb_dspy.jsonl import read_objects
from rb_dspy.learner import check_bank
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.memories import Base, MemorySystem, Signal, system_of
from rb_dspy.plugins import family_attribute, memory_name
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Embedder, Judge
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.stream import TaskStream

_DRAWS_APART = 1_000
"""Distance between the rollout ids of two cells: more than a task has rollouts."""


@dataclass(frozen=True)
class Arm:
    """One side of an evaluation: a program, its memory, and what it learns from.

    With the memory ``bank`` it is the program with the memory that it has; other names replace that, or go over it:
    ``rb-dspy memories`` lists them.
    """

    program: BankProgram
    memory: str = "bank"
    """The name of a memory system. One that is not installed: ``Arm(ReasoningBank(memory=...))``."""
    backbones: Backbones | None = None
    """Replace the program's own."""
    bank: MemoryBank | None = None
    """Every order starts from a copy of this bank; None: from an empty bank."""
    signal: Literal["judge", "outcome"] | None = None
    """What it learns from: the program's judge, or the true outcome. None: the judge. Some systems use neither."""

    def equipped(self, seed: int = 0) -> BankProgram:
        """A copy of the program, with the memory of the arm."""
        program: Any = copy.copy(self.program)
        distill = getattr(program.distill, "config", None)
        base = Base(program.retrieve, distill if isinstance(distill, DistillConfig) else DistillConfig(), seed)
        equipped: BankProgram = program.use_memory(system_of(self.memory, base))
        return equipped

    @cached_property
    def systems(self) -> tuple[MemorySystem, ...]:
        """The memory systems of the arm: its own, or that of the program, and over it that of the arm."""
        return self.equipped().systems

    @property
    def own(self) -> str:
        """The memory system that the program itself has, if it is in use; else empty."""
        found = self.systems[0] if len(self.systems) > 1 else None
        return "" if found is None else found.name or found.source

    @property
    def learns(self) -> bool:
        """Whether lessons pass from task to task."""
        return all(each.learns for each in self.systems)

    @property
    def needs_lessons(self) -> bool:
        """Whether it reads the right lessons, which somebody wrote."""
        return any(each.needs_lessons for each in self.systems)

    @property
    def repeats_tasks(self) -> bool:
        """Whether an agent may be shown what was learned from its own task."""
        return any(each.repeats_tasks for each in self.systems)

    @property
    def learns_from(self) -> Signal:
        """The signal that is used."""
        if not self.learns or any(each.signal == "none" for each in self.systems):
            return "none"
        return "outcome" if self.signal == "outcome" or any(each.truth for each in self.systems) else "judge"

    @property
    def distills(self) -> bool:
        """Whether memory asks the distiller's model, before a task or after it."""
        return self.learns and self.systems[0].calls != "0"

    @property
    def repeats(self) -> bool:
        """Whether all orders would be equal: nothing is learned, and the agent's temperature is 0."""
        return not self.learns and temperatures(self)["agent"] == 0


ArmLike = Arm | str | BankProgram | tuple[BankProgram, Any]
"""An arm, the name of a memory system, a program, or a program with backbones (``Backbones``, a dict, a model)."""


def as_arms(arms: Mapping[str, ArmLike] | Sequence[ArmLike], program: BankProgram | None) -> dict[str, Arm]:
    """The arms by name, in order. ``program`` is used for arms that are only the name of a memory system.

    Raises:
        InputError: Fewer than two arms, two arms with the same name, or a value that is not an arm.
    """
    if isinstance(arms, str) or not isinstance(arms, Mapping | Sequence):
        raise InputError(f"got {type(arms).__name__} for arms; expected a list such as ['none', 'bank'], or a dict")
    if isinstance(arms, Mapping):
        named = {str(name): _as_arm(each, program) for name, each in arms.items()}
    else:
        listed = [_as_arm(each, program) for each in arms]
        named = {arm.memory: arm for arm in listed}
        if len(named) < len(listed):
            raise InputError("two arms have the same memory; name the arms: {'small': Arm(...), 'large': Arm(...)}")
    if len(named) < 2 or not all(name.strip() for name in named):
        raise InputError(f"got {len(named)} arm(s); expected at least two, each with a name, such as 'none' and 'bank'")
    return named


def prepare(arm: Arm, order: int, *, seed: int, draw: int) -> tuple[BankProgram, ScoredEnvironments]:
    """The program and the environments of one cell.

    ``draw`` is the number of the cell: from 1 on, every cell samples anew, even if an LM caches its answers.
    """
    program: Any = arm.equipped(seed + order)
    environments = ScoredEnvironments(program.environments)
    if arm.backbones is not None:
        program.backbones = arm.backbones
    if arm.learns_from == "outcome":
        program.judge = _true_judge(environments)
    if draw:
        program.backbones = _drawn(arm, draw)
    return program, environments


def oracle_bank(
    lessons: Sequence[MemoryDraft] | str | Path | None, stream: TaskStream, embedder: Embedder | str | None
) -> MemoryBank:
    """A bank with the oracle lessons for ``stream``; the caller closes it."""
    bank = MemoryBank.open(None, scope="oracle", embedder=embedder)
    for lesson in oracle_lessons(lessons, stream):
        bank.add(lesson.title, lesson.content, lesson.description)
    return bank


def oracle_lessons(lessons: Sequence[MemoryDraft] | str | Path | None, stream: TaskStream) -> list[MemoryDraft]:
    """The lessons: a list, a JSON Lines file, or None for those of the stream's environment families.

    Raises:
        InputError: There are no lessons, or a line is not a lesson.
    """
    if isinstance(lessons, str | Path):
        rows = read_objects(Path(lessons), "a JSON object with 'title' and 'content'")
        lessons = [_draft(f"{lessons}:{number}", row) for number, row in rows]
    if lessons is None:
        lessons = []
        for env in sorted({task.env for task in stream}):
            of_family = family_attribute(env, "lessons", None)
            lessons += of_family([task for task in stream if task.env == env]) if of_family else []
    if not lessons:
        raise InputError(
            "evaluate: the arm 'oracle' needs lessons, but the environment has none; pass lessons (--lessons FILE):"
            " JSON Lines of objects with title and content, or in Python a list of MemoryDraft"
        )
    for lesson in lessons:
        if not isinstance(lesson, MemoryDraft):
            raise InputError(f"got {type(lesson).__name__} for a lesson; expected a MemoryDraft")
    return list(lessons)


def temperatures(arm: Arm) -> dict[str, float | None]:
    """Role -> its sampling temperature; None if unknown."""
    program, lms = arm.equipped(), models(arm)
    distiller = program.distill if program.teach is None else program.teach
    steps: dict[str, Any] = {"agent": program.act, "judge": program.judge, "distiller": distiller}
    if isinstance(program, MaTTS):
        steps |= {"contraster": program.contrast, "selector": program.select}
    sampling: dict[str, float | None] = {}
    for role, step in steps.items():
        predict = getattr(step, "predict", None)
        lm = getattr(predict, "lm", None) or lms.get(role)
        own = {**getattr(lm, "kwargs", {}), **(getattr(predict, "config", None) or {})}.get("temperature")
        usual = getattr(getattr(step, "config", None), "temperature", None)
        usual = _of_agent(program, usual) if role == "agent" and hasattr(step, "config") else usual
        sampling[role] = None if getattr(lm, "omit_temperature", False) else usual if own is None else own
    return sampling


def _of_agent(program: BankProgram, configured: float | None) -> float:
    """The agent's temperature if its language model does not set one."""
    if not isinstance(program, MaTTS) or program.config.k == 1:
        return configured or 0.0
    if program.config.mode == "sequential":
        return max(configured or 0.0, program.config.refine.temperature)
    return 0.7 if configured is None else configured


def models(arm: Arm) -> dict[str, Any]:
    """Role -> language model; empty if none is configured, for example if predictors have their own."""
    try:
        return (arm.backbones or arm.program.backbones or Backbones()).lms()
    except BackboneError:
        return {}


def _drawn(arm: Arm, draw: int) -> Backbones | None:
    """The backbones of an arm, with a new rollout id for LMs that sample and use dspy's cache."""
    lms, temperature = models(arm), temperatures(arm)
    cached = [role for role, lm in lms.items() if temperature.get(role) and getattr(lm, "cache", False)]
    if not cached:
        return arm.backbones or arm.program.backbones
    return Backbones(**{**lms, **{role: lms[role].copy(rollout_id=_DRAWS_APART * draw) for role in cached}})


def _as_arm(arm: Any, program: BankProgram | None) -> Arm:
    if isinstance(arm, str):
        arm = memory_name(arm)
        if program is None:
            raise InputError(f"the arm {arm!r} needs a program; pass program=ReasoningBank(...)")
        arm = Arm(_checked(program), memory=arm)
    elif isinstance(arm, tuple) and len(arm) == 2:
        backbones = Backbones(agent=arm[1]) if isinstance(arm[1], str | dspy.BaseLM) else Backbones.of(arm[1])
        arm = Arm(arm[0], backbones=backbones)
    elif isinstance(arm, BankProgram):
        arm = Arm(arm)
    if not isinstance(arm, Arm):
        raise InputError(
            f"got {type(arm).__name__} for an arm; expected an Arm, a program, or the name of a memory such as 'bank'"
        )
    _checked(arm.program)
    if not isinstance(arm.memory, str):
        raise InputError(
            f"got {type(arm.memory).__name__} for an arm's memory; expected a name; a system of your own:"
            " Arm(ReasoningBank(memory=...))"
        )
    if arm.signal not in (None, "judge", "outcome"):
        raise InputError(f"an arm's signal is {arm.signal!r:.40}; expected 'judge' or 'outcome'")
    made = Arm(arm.program, memory_name(arm.memory), Backbones.of(arm.backbones), arm.bank, arm.signal)
    if made.bank is not None:
        check_bank(made.bank)
        if not made.learns:
            raise InputError(f"an arm with the memory {made.memory!r} reads no bank; leave bank out")
    return made


def _checked(program: Any) -> BankProgram:
    if not isinstance(program, ReasoningBank | MaTTS):
        raise InputError(f"got {type(program).__name__} for a program; expected a ReasoningBank, or a MaTTS")
    return program


def _draft(place: str, row: Mapping[str, Any]) -> MemoryDraft:
    texts = {name: row.get(name) or "" for name in ("title", "content", "description")}
    if not all(isinstance(text, str) for text in texts.values()) or not (texts["title"] and texts["content"]):
        raise InputError(f"{place}: expected a lesson with the strings title and content, and optionally description")
    return MemoryDraft(**texts)


def _true_judge(environments: ScoredEnvironments) -> Judge:
    """A judge that knows the ground truth of the rollouts in ``environments``."""

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        outcome = environments.outcome(task.id, environments.rollout_of(task.id, trajectory))
        if outcome is None:
            return Verdict(label="unknown", reasons="no ground truth")
        return Verdict(label="success" if outcome.success else "failure", reasons="by ground truth")

    return judge
