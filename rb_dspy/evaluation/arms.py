"""The arms of an evaluation: what an agent is shown, what is learned from it, and who judges.

Every mode changes steps of a shallow copy of the program, so MaTTS programs work as arms too, and the caller's program
stays as it is. All modes run at the same limits of steps and tokens.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import dspy

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import RetrieveConfig
from rb_dspy.errors import BackboneError, InputError, RBError
from rb_dspy.jsonl import read_objects
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.plugins import environment_family
from rb_dspy.program import ReasoningBank, check_bank
from rb_dspy.protocols import Embedder, Environment, EnvironmentFactory
from rb_dspy.schema import MemoryDraft, Outcome, Task, Trajectory, Verdict
from rb_dspy.steps import Distilled, Memory, Retrieve
from rb_dspy.steps.memory import render
from rb_dspy.steps.transcript import transcript
from rb_dspy.stream import TaskStream

MemoryMode = Literal["none", "placebo", "shuffled", "raw", "bank", "success_only", "true_verdicts", "oracle"]
MODES: tuple[MemoryMode, ...] = get_args(MemoryMode)

CASE_CHARACTERS = 2000
"""Longest case that the mode ``raw`` stores: the limit of a lesson's content."""

_NEUTRAL = (
    "This is a neutral passage that stands in for a note and says nothing about the task at hand. The weather of a day"
    " has a morning and an afternoon, and both pass in their order. A river has two banks, and the water goes between"
    " them. "
)
_ORDERS_APART = 1_000
"""Rollout ids of one order and of the next, if the LM's cache is on: more than a task has rollouts."""


@dataclass(frozen=True)
class Arm:
    """One of the sides that an evaluation compares.

    ============== ===========================================================================================
    memory         what the agent is shown, and what is learned
    ============== ===========================================================================================
    none           nothing, and nothing is learned
    placebo        as ``bank``, with neutral text of the same length in the place of each lesson
    shuffled       as ``bank``, with as many other lessons of the bank in the place of those that were retrieved
    raw            whole earlier cases (steps and verdict, cut to 2,000 characters) in the place of lessons
    bank           the program as it is
    success_only   as ``bank``, but only lessons from rollouts that were judged successes
    true_verdicts  as ``bank``, with the ground truth in the place of the judge
    oracle         right lessons that were written by hand; nothing is learned
    ============== ===========================================================================================
    """

    program: BankProgram
    memory: MemoryMode = "bank"
    backbones: Backbones | None = None
    """Instead of the program's own."""
    bank: MemoryBank | None = None
    """Every order starts from a copy of it; None: from an empty bank."""

    @property
    def learns(self) -> bool:
        """Whether lessons pass from task to task."""
        return self.memory not in ("none", "oracle")

    @property
    def repeats(self) -> bool:
        """Whether every order would be the same: nothing is learned, and the agent takes the likeliest answer."""
        return not self.learns and temperatures(self)["agent"] == 0


ArmLike = Arm | MemoryMode | BankProgram | tuple[BankProgram, Any]
"""An arm, the name of a mode, a program, or a program with backbones (``Backbones``, a dict, or a model's name)."""


def as_arms(arms: Mapping[str, ArmLike] | Sequence[ArmLike], program: BankProgram | None) -> dict[str, Arm]:
    """The arms by name, in order. ``program`` is that of arms which are only the name of a mode.

    Raises:
        InputError: Fewer than two arms, two arms of one name, or something that is no arm.
    """
    if isinstance(arms, str) or not isinstance(arms, Mapping | Sequence):
        raise InputError(f"got {type(arms).__name__} for arms; expected a list such as ['none', 'bank'], or a dict")
    if isinstance(arms, Mapping):
        named = {str(name): _as_arm(each, program) for name, each in arms.items()}
    else:
        listed = [_as_arm(each, program) for each in arms]
        named = {arm.memory: arm for arm in listed}
        if len(named) < len(listed):
            raise InputError(
                "two arms have the same memory mode; name the arms: {'small': Arm(...), 'large': Arm(...)}"
            )
    if len(named) < 2 or not all(name.strip() for name in named):
        raise InputError(f"got {len(named)} arm(s); expected at least two, each with a name, such as 'none' and 'bank'")
    return named


def prepare(
    arm: Arm, order: int, *, seed: int, environments: EnvironmentFactory | None = None
) -> tuple[BankProgram, EnvironmentFactory]:
    """The program and the environments of one cell. Other orders are other samples, also if an LM's cache is on."""
    program: Any = copy.copy(arm.program)
    environments = environments or program.environments
    if arm.backbones is not None:
        program.backbones = arm.backbones
    config: RetrieveConfig = program.retrieve.config
    if arm.memory == "none":
        program.retrieve = Retrieve(config.model_copy(update={"k": 0}))
    elif arm.memory == "placebo":
        program.retrieve = _Placebo(program.retrieve)
    elif arm.memory == "shuffled":
        program.retrieve = _Shuffled(program.retrieve, seed + order)
    elif arm.memory == "raw":
        nearest = config.model_copy(update={"unit": "experience"})
        program.retrieve = Retrieve(nearest, program.retrieve.reranker)
        program.distill = _Case()
        if isinstance(program, MaTTS):
            program.contrast = _Cases()
    elif arm.memory == "success_only":
        successes = config.model_copy(update={"polarity": "success"})
        program.retrieve = Retrieve(successes, program.retrieve.reranker)
    elif arm.memory == "true_verdicts":
        truth = _Truth(environments)
        program.judge, environments = truth.judge, truth.environments
    if order:
        program.backbones = _drawn(program.backbones, temperatures(arm), order)
    return program, environments


def oracle_bank(
    lessons: Sequence[MemoryDraft] | str | Path | None, stream: TaskStream, embedder: Embedder | str | None
) -> MemoryBank:
    """A bank with the right lessons for ``stream``; the caller closes it."""
    bank = MemoryBank.open(None, scope="oracle", embedder=embedder)
    for lesson in oracle_lessons(lessons, stream):
        bank.add(lesson.title, lesson.content, lesson.description, origin="oracle")
    return bank


def oracle_lessons(lessons: Sequence[MemoryDraft] | str | Path | None, stream: TaskStream) -> list[MemoryDraft]:
    """The lessons, from a JSON Lines file if it is a path, else from the families of the stream's environments.

    Raises:
        InputError: There are none, or a line is no lesson.
    """
    if isinstance(lessons, str | Path):
        rows = read_objects(Path(lessons), "a JSON object with 'title' and 'content'")
        lessons = [_draft(f"{lessons}:{number}", row) for number, row in rows]
    if lessons is None:
        lessons = [lesson for env in sorted({task.env for task in stream}) for lesson in _of_family(env, stream)]
    if not lessons:
        families = ", ".join(sorted({task.env for task in stream}))
        raise InputError(
            f"no lessons for the arm 'oracle' ({families} brings none); pass lessons=, a list of MemoryDraft or a JSON"
            " Lines file of objects with title and content"
        )
    for lesson in lessons:
        if not isinstance(lesson, MemoryDraft):
            raise InputError(f"got {type(lesson).__name__} for a lesson; expected a MemoryDraft")
    return list(lessons)


def temperatures(arm: Arm) -> dict[str, float | None]:
    """Role -> temperature at which it samples; None if that is unknown."""
    program, backbones = arm.program, arm.backbones or arm.program.backbones or Backbones()
    several = isinstance(program, MaTTS) and program.config.k > 1
    refine = several and program.config.mode == "sequential"
    usual = 0.0 if not several or refine else 0.7
    act = program.act.config.temperature
    steps: list[tuple[str, Any, float | None]] = [
        ("agent", program.act.predict, usual if act is None else act),
        *((role, step, getattr(getattr(step, "config", None), "temperature", None)) for role, step in _steps(program)),
    ]
    if refine and program.config.refine.temperature:
        steps[0] = ("agent", program.act.predict, program.config.refine.temperature)
    found: dict[str, float | None] = {}
    for role, step, temperature in steps:
        try:
            lm = getattr(step, "lm", None) or backbones.lm(role)
        except BackboneError:
            lm = None
        own = {**getattr(lm, "kwargs", {}), **getattr(step, "config", {})} if role == "agent" else lm_settings(lm)
        fixed = own.get("temperature")
        found[role] = None if getattr(lm, "omit_temperature", False) else temperature if fixed is None else fixed
    return found


def lm_settings(lm: Any) -> dict[str, Any]:
    """The settings of a language model; empty if there is none."""
    return dict(getattr(lm, "kwargs", {}))


def _steps(program: BankProgram) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = [("judge", program.judge), ("distiller", program.distill)]
    if isinstance(program, MaTTS):
        steps += [("contraster", program.contrast), ("selector", program.select)]
    return steps


def _drawn(backbones: Backbones | None, temperature: Mapping[str, float | None], order: int) -> Backbones | None:
    """``backbones`` with a rollout id of this order, for LMs that sample and that answer from dspy's cache."""
    try:
        lms = (backbones or Backbones()).lms()
    except BackboneError:  # the predictors have language models of their own
        return backbones
    cached = {role: lm for role, lm in lms.items() if temperature.get(role) and getattr(lm, "cache", False)}
    if not cached:
        return backbones
    return Backbones(**{**lms, **{role: lm.copy(rollout_id=_ORDERS_APART * order) for role, lm in cached.items()}})


def _as_arm(arm: Any, program: BankProgram | None) -> Arm:
    if isinstance(arm, str):
        if arm not in MODES:
            raise InputError(f"unknown arm {arm!r}; expected {', '.join(MODES)}")
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
            f"got {type(arm).__name__} for an arm; expected an Arm, a program, or one of {', '.join(MODES)}"
        )
    _checked(arm.program)
    if arm.memory not in MODES:
        raise InputError(f"unknown memory mode {arm.memory!r}; expected {', '.join(MODES)}")
    if arm.bank is not None:
        check_bank(arm.bank)
        if arm.memory in ("none", "oracle"):
            raise InputError(f"an arm with the memory mode {arm.memory!r} reads no bank; leave bank out")
    return replace(arm, backbones=Backbones.of(arm.backbones))


def _checked(program: Any) -> BankProgram:
    if not isinstance(program, ReasoningBank | MaTTS):
        raise InputError(f"got {type(program).__name__} for a program; expected a ReasoningBank, or a MaTTS")
    return program


def _draft(place: str, row: Mapping[str, Any]) -> MemoryDraft:
    texts = {name: row.get(name) or "" for name in ("title", "content", "description")}
    if not all(isinstance(text, str) for text in texts.values()) or not (texts["title"] and texts["content"]):
        raise InputError(f"{place}: expected a lesson with the texts title, content and perhaps description")
    return MemoryDraft(**texts)


def _of_family(env: str, stream: Iterable[Task]) -> Sequence[MemoryDraft]:
    try:
        lessons = getattr(environment_family(env), "lessons", None)
    except RBError:  # an environment of the caller's own factory
        return []
    return [] if lessons is None else list(lessons([task for task in stream if task.env == env]))


class _Placebo(dspy.Module):
    """Shows neutral text, as long as what was retrieved."""

    def __init__(self, retrieve: Any) -> None:
        super().__init__()
        self.retrieve = retrieve
        self.config = retrieve.config

    def forward(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        memory: Memory = self.retrieve(task, bank, own_lessons)
        neutral = [
            item.model_copy(update={"title": _filler(len(item.title)), "content": _filler(len(item.content))})
            for item in memory.items
        ]
        return Memory(memory.retrieved, memory.items, render(neutral).block)


class _Shuffled(dspy.Module):
    """Shows other lessons of the bank, as many as were retrieved."""

    def __init__(self, retrieve: Any, seed: int) -> None:
        super().__init__()
        self.retrieve = retrieve
        self.config = retrieve.config
        self._seed = seed

    def forward(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        memory: Memory = self.retrieve(task, bank, own_lessons)
        shown = {item.id for item in memory.items}
        others = [item for item in bank.items() if item.id not in shown and item.provenance.task_id != task.id]
        rng = random.Random(f"{self._seed}\n{task.id}")
        return render(rng.sample(others, min(len(shown), len(others))), max_tokens=self.config.max_tokens)


class _Case(dspy.Module):
    """Instead of lessons the case itself (ExpRAG): the steps and the verdict, without a call of a language model."""

    def forward(
        self, task: Task, trajectory: Trajectory, verdict: Verdict | None = None, rollout: int = 0
    ) -> Distilled:
        judged = f"Judged: {verdict.label if verdict else 'not judged'}"
        steps = transcript(trajectory, CASE_CHARACTERS // 4)[: CASE_CHARACTERS - len(judged) - 1]
        draft = MemoryDraft(
            title=f"Earlier case: {task.instruction}"[:200], description="", content=f"{steps}\n{judged}"
        )
        return Distilled((draft,))


class _Cases(dspy.Module):
    """The cases of several rollouts."""

    def forward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Distilled:
        case = _Case()
        labels = verdicts or (None,) * len(trajectories)
        drafts = [case(task, each, label).drafts for each, label in zip(trajectories, labels, strict=True)]
        return Distilled(tuple(dict.fromkeys(draft for one in drafts for draft in one)))


class _Truth:
    """A judge that knows the ground truth, read when the environment is closed."""

    def __init__(self, environments: EnvironmentFactory) -> None:
        self._environments = environments
        self._outcomes: dict[tuple[str, str], Outcome | None] = {}

    def environments(self, task: Task, rollout_id: str) -> Environment:
        """An ``EnvironmentFactory``."""

        def note(outcome: Outcome | None) -> None:
            self._outcomes[task.id, rollout_id] = outcome

        noting: Any = _Noting(self._environments(task, rollout_id), note)
        return noting  # type: ignore[no-any-return]

    def judge(self, task: Task, trajectory: Trajectory) -> Verdict:
        """A ``Judge``."""
        outcome = self._outcomes.get((task.id, trajectory.rollout_id))
        if outcome is None:
            return Verdict(label="unknown", reasons="no ground truth")
        return Verdict(label="success" if outcome.success else "failure", reasons="by ground truth")


class _Noting:
    """An environment whose outcome is noted when the scorer reads it, which is before the judge is asked."""

    def __init__(self, inner: Environment, note: Any) -> None:
        self._inner = inner
        self._note = note

    def outcome(self) -> Outcome | None:
        outcome = self._inner.outcome()
        self._note(outcome)
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _filler(length: int) -> str:
    """Neutral text of so many characters, none of them a space at the end."""
    text = (_NEUTRAL * (length // len(_NEUTRAL) + 1))[:length]
    return f"{text[:-1]}." if text.endswith(" ") else text
