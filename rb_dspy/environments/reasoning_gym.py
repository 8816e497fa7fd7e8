"""The reasoning-gym package: generated questions in some 80 kinds, each with its own verifier."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pydantic

from rb_dspy.environments.generate import chosen_templates, distinct, in_turn, mixed_seed
from rb_dspy.environments.reasoning_gym_scoring import SUCCESS, judged
from rb_dspy.environments.reasoning_gym_screen import SMALL_MODEL_TEMPLATES, TEMPLATES
from rb_dspy.environments.single_turn import Score, SingleTurn
from rb_dspy.errors import InputError, MissingDependency
from rb_dspy.protocols import Environment
from rb_dspy.schema import Outcome, Task

__all__ = ["SMALL_MODEL_TEMPLATES", "SUCCESS", "ReasoningGym"]

MAX_QUESTION = 4_000
"""Longest question that is asked, in characters: about 1,000 tokens, or an 8k window's quarter for number grids."""

MAX_OWN_ANSWER = 1_000
"""Questions whose own answer is longer, in characters, are not asked: they do not fit one turn's output."""

_CHUNK = 500
"""Entries a dataset seed; the package's own default."""

_NEED_SAT_SOLVER = frozenset({"zebra_puzzles"})

_GENERATOR_FAILED = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)
"""What the package's generators raise when a draw does not come out; ``maze`` does so about once in 300."""


class _Entry(pydantic.BaseModel):
    """``env_args``: everything that is needed to make the entry again, and nothing of its answer."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    family: str
    seed: int
    index: int = pydantic.Field(ge=0)
    size: int = pydantic.Field(ge=1)


class ReasoningGym:
    """Single-turn questions; a template is a family of the package, with the package's own mixture of difficulty.

    The agent's action is its answer. It is scored as it stands, stripped of surrounding white space, and again without
    surrounding quotes, backticks, code fence or ``<answer>`` tags; the better score counts. An answer is right from a
    reward of ``SUCCESS``. Deterministic: the same seed gives the same tasks in every process. No question repeats
    within one stream; streams of other seeds repeat a few under other ids (11 of 2,000 of all templates, seeds 0 and
    1), most of them short puzzles. The package's own answer to each scores 1. Source: reasoning-gym 0.1.25.
    """

    name = "reasoning-gym"

    def check(self) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingDependency("reasoning-gym is not installed; pip install 'rb-dspy[text]'")

    def templates(self) -> Sequence[str]:
        return TEMPLATES if _has_sat_solver() else tuple(name for name in TEMPLATES if name not in _NEED_SAT_SOLVER)

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        self.check()
        chosen = chosen_templates(self.name, self.templates(), templates)
        return in_turn([distinct(_draws(template, seed)) for template in chosen])

    def make(self, task: Task) -> Environment:
        self.check()
        _args(task)
        return SingleTurn(_scorer)

    def oracle(self, task: Task) -> Sequence[str]:
        return (_entry(task)[1]["answer"],)

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        """The right answer to another question of the family: the best guess of a player who has not read this one."""
        other = _args(task).model_copy(update={"seed": rng.getrandbits(31), "size": _CHUNK})
        dataset = _dataset(other)
        entries = (_made(dataset, index) for index in range(other.size))
        return next((str(entry["answer"]) for entry in entries if entry is not None), "")


def _draws(family: str, seed: int) -> Iterator[tuple[Hashable, Task] | None]:
    """Question and task, entry by entry, without end; None for an entry that cannot be asked."""
    number = 0
    while True:
        dataset_seed = mixed_seed("reasoning-gym", family, seed, number // _CHUNK)
        dataset = _dataset(_Entry(family=family, seed=dataset_seed, index=0, size=_CHUNK))
        for index in range(_CHUNK):
            entry = _made(dataset, index)
            yield _draw(family, f"{seed}-{number}", dataset_seed, index, dataset, entry) if entry else None
            number += 1


def _draw(
    family: str, suffix: str, dataset_seed: int, index: int, dataset: Any, entry: dict[str, Any]
) -> tuple[Hashable, Task] | None:
    question, own = entry["question"], entry["answer"]
    if len(question) > MAX_QUESTION or len(own) > MAX_OWN_ANSWER:
        return None
    if not judged(family, dataset, entry, own).success:
        return None  # the package cannot solve it itself: base_conversion, for one, writes 0 as an empty text
    task = Task(
        id=f"reasoning-gym/{family}/{suffix}",
        instruction=question,
        env="reasoning-gym",
        env_args=_Entry(family=family, seed=dataset_seed, index=index, size=_CHUNK).model_dump(),
        domain=dataset.category,
        template=family,
    )
    return question, task


def _dataset(args: _Entry) -> Any:
    """A fresh dataset: some keep state while they make an entry, so none is shared between threads."""
    if not _has_sat_solver():
        # The package imports its SAT solver on its first line, whatever is asked of it. The solver is a C extension
        # that comes as source only; where it could not be built, an empty module lets the other families work.
        sys.modules.setdefault("pycosat", types.ModuleType("pycosat"))
    import reasoning_gym

    return reasoning_gym.create_dataset(args.family, seed=args.seed, size=args.size)


def _has_sat_solver() -> bool:
    built = sys.modules.get("pycosat")
    return hasattr(built, "solve") if built is not None else importlib.util.find_spec("pycosat") is not None


def _made(dataset: Any, index: int) -> dict[str, Any] | None:
    """One entry (``question``, ``answer``, ``metadata``), or None where the generator gave up on it."""
    try:
        entry: dict[str, Any] = dataset[index]
    except _GENERATOR_FAILED:
        return None
    return entry


def _args(task: Task) -> _Entry:
    try:
        args = _Entry.model_validate(task.env_args)
    except pydantic.ValidationError:
        raise InputError(
            f"task {task.id!r}: env_args do not describe a reasoning-gym entry; expected family, seed, index and size"
        ) from None
    if args.family not in TEMPLATES:
        raise InputError(f"task {task.id!r}: unknown or excluded reasoning-gym family {args.family!r}")
    return args


def _entry(task: Task) -> tuple[Any, dict[str, Any]]:
    """The dataset and the entry that ``task`` was made from; ``InputError`` where it does not come out the same."""
    args = _args(task)
    dataset = _dataset(args)
    entry = _made(dataset, args.index)
    if entry is None or entry["question"] != task.instruction:
        raise InputError(
            f"task {task.id!r}: the installed reasoning-gym makes another question of it; draw the stream anew"
        )
    return dataset, entry


def _scorer(task: Task) -> Score:
    dataset, entry = _entry(task)
    family = _args(task).family

    def score(answer: str) -> Outcome:
        return judged(family, dataset, entry, answer)

    return score
