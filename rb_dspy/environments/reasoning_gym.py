"""The reasoning-gym package: generated questions of some 80 kinds, each with its own verifier."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal

import pydantic

from rb_dspy.environments.answers import unquoted
from rb_dspy.environments.generated import TaskArgs, distinct, in_turn, mixed_seed, read_data, require, select_templates
from rb_dspy.environments.single_turn import Score, SingleTurn
from rb_dspy.errors import InputError
from rb_dspy.protocols import Environment
from rb_dspy.schema import Outcome, Task

_DATA = read_data("reasoning_gym.json")

TEMPLATES: tuple[str, ...] = tuple(_DATA["templates"])
"""The sound families, in the order in which they take turns; why the others are not here is in their test.

The screen, over several seeds and 300 entries a family: the family's own answer scores 1; the same seed gives the same
question in another process; no fixed answer wins everywhere; no answer runs as code or takes seconds to check; nothing
is printed; the question has a sensible length.
"""

SMALL_MODEL_TEMPLATES: tuple[str, ...] = tuple(_DATA["small_model"])
"""Families that the embedded 1.5b model solved in 1 to 3 of 4 tries: neither out of reach nor trivial."""

SUCCESS = 0.99
"""Minimum reward of a right answer. Verifiers give 1.0 up to float error, and partial credit below."""

MAX_QUESTION = 4_000
"""Maximum length of a question, in characters."""

MAX_OWN_ANSWER = 1_000
"""Maximum length of a question's own answer, in characters; a longer one does not fit the output of one turn."""

_CHUNK = 500
"""Entries per dataset; the package's own default."""

_ALPHABETS: dict[str, re.Pattern[str]] = {
    "binary_matrix": re.compile(r"[\d\s,\[\]]*", re.ASCII),
    "countdown": re.compile(r"(?:[\d\s+\-/().]|\*(?!\*))*", re.ASCII),
    "n_queens": re.compile(r"""[Q_\s,\[\]"']*""", re.ASCII),
    "spiral_matrix": re.compile(r"[\d\s,\[\]]*", re.ASCII),
    "string_insertion": re.compile(r"""[A-E\s,\[\]"']*""", re.ASCII),
}
"""Families whose verifier passes the answer to ``eval`` -> the answers that are passed to it.

An agent's answer is untrusted text. These alphabets allow every right answer, but no call, attribute or power.
"""


class _Args(TaskArgs):
    """The arguments to generate the entry again, without its answer."""

    family: Literal[TEMPLATES]  # type: ignore[valid-type]
    seed: int
    index: int = pydantic.Field(ge=0)
    size: int = pydantic.Field(ge=1)


class ReasoningGym:
    """Single-turn questions; a template is a family of the package, with the package's own mixture of difficulty.

    The action is the answer. It is scored stripped of white space, and again without outer quotes; the better score
    counts. A reward of ``SUCCESS`` or more is right. Deterministic: the same seed gives the same tasks in every
    process. No question repeats within one stream. The package's own answer scores 1. Source: reasoning-gym 0.1.25.
    """

    name = "reasoning-gym"

    def check(self) -> None:
        require("reasoning_gym", "pycosat")  # the package always imports its SAT solver

    def templates(self) -> Sequence[str]:
        return TEMPLATES

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        self.check()
        chosen = select_templates(self.name, self.templates(), templates)
        return in_turn(distinct(_draws(template, seed)) for template in chosen)

    def make(self, task: Task) -> Environment:
        self.check()
        _Args.of(task)  # refuse a task of another family before an agent works on it
        return SingleTurn(_scorer)

    def oracle(self, task: Task) -> Sequence[str]:
        return (_entry(task)[1]["answer"],)

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        """The right answer to another question of the family: a blind guess in the right form."""
        dataset = _dataset(_Args.of(task).family, rng.getrandbits(31))
        entries = (_generate(dataset, index) for index in range(_CHUNK))
        return next((str(entry["answer"]) for entry in entries if entry is not None), "")


def _draws(family: str, seed: int) -> Iterator[tuple[Hashable, Task] | None]:
    """Yield question and task of each entry, without end; None for an entry that cannot be used."""
    for number in itertools.count():
        chunk, index = divmod(number, _CHUNK)
        if index == 0:
            dataset_seed = mixed_seed("reasoning-gym", family, seed, chunk)
            dataset = _dataset(family, dataset_seed)
        entry = _generate(dataset, index)
        if entry is None or not _is_sound(family, dataset, entry):
            yield None
            continue
        task = Task(
            id=f"reasoning-gym/{family}/{seed}-{number}",
            instruction=entry["question"],
            env="reasoning-gym",
            env_args=_Args(family=family, seed=dataset_seed, index=index, size=_CHUNK).model_dump(),
            domain=dataset.category,
            template=family,
        )
        yield task.instruction, task


def _is_sound(family: str, dataset: Any, entry: dict[str, Any]) -> bool:
    """Whether the entry is of a sensible length, and its own answer is right: some write 0 as an empty text."""
    if len(entry["question"]) > MAX_QUESTION or len(entry["answer"]) > MAX_OWN_ANSWER:
        return False
    return _score(family, dataset, entry, entry["answer"]).success


def _dataset(family: str, seed: int, size: int = _CHUNK) -> Any:
    """A fresh dataset. Some keep state while they generate an entry, so threads must not share one."""
    import reasoning_gym

    return reasoning_gym.create_dataset(family, seed=seed, size=size)


def _generate(dataset: Any, index: int) -> dict[str, Any] | None:
    """One entry (``question``, ``answer``, ``metadata``); None if the generator failed, as ``maze`` sometimes does."""
    try:
        entry: dict[str, Any] = dataset[index]
    except Exception:  # noqa: BLE001 (the package's generators raise anything)
        return None
    return entry


def _entry(task: Task) -> tuple[Any, dict[str, Any]]:
    """Return dataset and entry of ``task``. Raises ``InputError`` if the installed package has another question."""
    args = _Args.of(task)
    dataset = _dataset(args.family, args.seed, args.size)
    entry = _generate(dataset, args.index)
    if entry is None or entry["question"] != task.instruction:
        raise InputError(
            f"task {task.id!r}: the installed reasoning-gym generates another question for it; draw the stream again"
        )
    return dataset, entry


def _scorer(task: Task) -> Score:
    dataset, entry = _entry(task)
    return lambda answer: _score(_Args.of(task).family, dataset, entry, answer)


def _score(family: str, dataset: Any, entry: dict[str, Any], answer: str) -> Outcome:
    """The better outcome of the answer with and without outer quotes: some right answers are quoted themselves."""
    outcome = _verify(family, dataset, entry, answer.strip())
    if outcome.success or (bare := unquoted(answer)) == answer.strip():
        return outcome
    return max(outcome, _verify(family, dataset, entry, bare), key=lambda each: each.reward)


def _verify(family: str, dataset: Any, entry: dict[str, Any], answer: str) -> Outcome:
    """Score with the package's verifier. An answer that it cannot read is wrong; ``info["error"]`` says why."""
    if not answer:
        return Outcome(reward=0.0, success=False, info={"error": "the answer is empty"})
    if family in _ALPHABETS and not _ALPHABETS[family].fullmatch(answer):
        return Outcome(reward=0.0, success=False, info={"error": "characters that no answer of this family has"})
    try:
        score = float(dataset.score_answer(answer, entry))
    except Exception as exc:  # noqa: BLE001 (verifiers raise anything on answers that they cannot read)
        return Outcome(reward=0.0, success=False, info={"error": f"the verifier raised {type(exc).__name__}"})
    reward = min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0
    return Outcome(reward=reward, success=reward >= SUCCESS)
