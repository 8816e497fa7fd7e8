"""The arms of an evaluation: what an agent is shown, what is learned from it, and who judges.

Every mode changes steps of a shallow copy of the program, so MaTTS programs work as arms too, and the caller's program
is not changed. All modes have the same step and token limits.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import dspy

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import MemoryMode as MemoryMode, RetrieveConfig
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import BackboneError, InputError
from rb_dspy.evaluation.modes import case, cases, placebo, shuffled, true_judge
from rb_dspy.jsonl import read_objects
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.plugins import family_attribute
from rb_dspy.program import ReasoningBank, check_bank
from rb_dspy.protocols import Embedder
from rb_dspy.schema import MemoryDraft
from rb_dspy.steps import Retrieve
from rb_dspy.stream import TaskStream

MODES: tuple[MemoryMode, ...] = get_args(MemoryMode)

_DRAWS_APART = 1_000
"""Distance between the rollout ids of two cells: more than a task has rollouts."""


@dataclass(frozen=True)
class Arm:
    """One side of an evaluation.

    ============== ===========================================================================================
    memory         what the agent is shown, and what is learned
    ============== ===========================================================================================
    none           nothing, and nothing is learned
    placebo        as ``bank``, with neutral text of the same length instead of each lesson
    shuffled       as ``bank``, with as many other lessons of the bank instead of the retrieved ones
    raw            whole earlier cases (steps and verdict, cut to 2,000 characters) instead of lessons
    bank           the unchanged program
    success_only   as ``bank``, but only lessons from rollouts that were judged successes
    true_verdicts  as ``bank``, with the ground truth instead of the judge
    oracle         correct lessons, written by hand, the nearest whatever their score; nothing is learned
    ============== ===========================================================================================
    """

    program: BankProgram
    memory: MemoryMode = "bank"
    backbones: Backbones | None = None
    """Replace the program's own."""
    bank: MemoryBank | None = None
    """Every order starts from a copy of this bank; None: from an empty bank."""

    @property
    def learns(self) -> bool:
        """Whether lessons pass from task to task."""
        return self.memory not in ("none", "oracle")

    @property
    def repeats(self) -> bool:
        """Whether all orders would be equal: nothing is learned, and the agent's temperature is 0."""
        return not self.learns and temperatures(self)["agent"] == 0


ArmLike = Arm | MemoryMode | BankProgram | tuple[BankProgram, Any]
"""An arm, the name of a mode, a program, or a program with backbones (``Backbones``, a dict, or a model's name)."""


def as_arms(arms: Mapping[str, ArmLike] | Sequence[ArmLike], program: BankProgram | None) -> dict[str, Arm]:
    """The arms by name, in order. ``program`` is used for arms that are only the name of a mode.

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
            raise InputError(
                "two arms have the same memory mode; name the arms: {'small': Arm(...), 'large': Arm(...)}"
            )
    if len(named) < 2 or not all(name.strip() for name in named):
        raise InputError(f"got {len(named)} arm(s); expected at least two, each with a name, such as 'none' and 'bank'")
    return named


def prepare(arm: Arm, order: int, *, seed: int, draw: int) -> tuple[BankProgram, ScoredEnvironments]:
    """The program and the environments of one cell.

    ``draw`` is the number of the cell: from 1 on, every cell samples anew, even if an LM caches its answers.
    """
    program: Any = copy.copy(arm.program)
    environments = ScoredEnvironments(program.environments)
    if arm.backbones is not None:
        program.backbones = arm.backbones
    retrieve = program.retrieve
    config: Any = getattr(retrieve, "config", None)
    if config is None and arm.memory in ("success_only", "raw"):
        raise InputError(
            f"the arm {arm.memory!r} needs the step Retrieve, and this program has a {type(retrieve).__qualname__};"
            " leave the arm out"
        )
    if arm.memory == "none":
        program.retrieve = Retrieve(RetrieveConfig().model_copy(update={"k": 0}))
    elif arm.memory == "oracle" and config and config.mode == "dense":  # no floor: it is about lessons, not search
        program.retrieve = Retrieve(config.model_copy(update={"min_score": -1.0}), retrieve.reranker)
    elif arm.memory == "placebo":
        program.retrieve = placebo(retrieve)
    elif arm.memory == "shuffled":
        program.retrieve = shuffled(retrieve, seed + order)
    elif arm.memory == "success_only":
        program.retrieve = Retrieve(config.model_copy(update={"polarity": "success"}), retrieve.reranker)
    elif arm.memory == "raw":
        program.retrieve = Retrieve(config.model_copy(update={"unit": "experience"}), retrieve.reranker)
        program.distill = case
        if isinstance(program, MaTTS):
            program.contrast = cases
    elif arm.memory == "true_verdicts":
        program.judge = true_judge(environments)
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
    program, lms = arm.program, models(arm)
    steps: dict[str, Any] = {"agent": program.act, "judge": program.judge, "distiller": program.distill}
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
        raise InputError(f"{place}: expected a lesson with the strings title and content, and optionally description")
    return MemoryDraft(**texts)
