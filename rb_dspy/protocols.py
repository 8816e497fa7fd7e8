"""Protocols of the parts that can be replaced. A replacement needs no base class; one gets its defaults from it.

Optional attributes are read with ``getattr``; a protocol's docstring lists them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Iterator, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rb_dspy.schema import Outcome, Retrieved, Task, Trajectory, Verdict

Vectors = NDArray[np.float32]

Fold = Literal["train", "dev", "test"]
"""A part of a family's tasks. Folds share no worlds."""


@runtime_checkable
class Embedder(Protocol):
    """Text to unit vectors. Safe to call from several threads; equal texts give equal vectors.

    Optional: ``min_score: float``, the cosine below which two texts of this embedder are unrelated. It is the floor of
    retrieval if ``RetrieveConfig.min_score`` is None.
    """

    @property
    def id(self) -> str:
        """Model and revision; stored with every bank and checked when it is opened."""
        ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Shape ``(len(texts), dimension)``, float32, each row of length 1."""
        ...


@runtime_checkable
class Environment(Protocol):
    """One episode of one task: made by a factory, used by one rollout at a time, then closed. Its calls may block.

    An exception other than ``RBError`` counts as a broken environment: the task becomes an infrastructure error. An
    action that makes no sense is not an error: the observation says so.

    Optional:
        ``action_pattern: str``, a regular expression that every action matches, such as ``^(SELECT .*|ANSWER: .*)$``;
        local models are constrained to it.
        ``reopen() -> str | None``: continue the episode after its end (for sequential scaling). Returns what the agent
        sees now, or None if it cannot continue. Must not reveal whether the result is right.
    """

    @property
    def action_rules(self) -> str:
        """The format of an action, which the agent reads; called after ``reset``."""
        ...

    def reset(self, task: Task) -> str:
        """Start the episode and return the first observation. Deterministic for a given task."""
        ...

    def step(self, action: str) -> tuple[str, bool]:
        """Do ``action``. Returns the observation, and whether the episode has ended (a bool)."""
        ...

    def valid_actions(self) -> Sequence[str] | None:
        """The actions that are possible now, or None if any text is one."""
        return None

    def answer(self) -> str | None:
        """The answer that the agent has submitted so far; None if the environment takes none."""
        return None

    def outcome(self) -> Outcome | None:
        """The ground truth, or None if it is unknown; a failed episode returns ``success=False``.

        Called by the scorer, never by the program.
        """
        ...

    def close(self) -> None:
        """Release what the episode holds."""
        return


class EnvironmentFactory(Protocol):
    """Makes a fresh environment for one rollout of a task."""

    def __call__(self, task: Task, rollout_id: str) -> Environment: ...


class EnvironmentFamily(Protocol):
    """A named kind of environment: its tasks, its episodes, and baselines that show its scoring is sound.

    Optional:
        ``instruction_is_unique: bool`` (default True). False if different tasks share an instruction; splits then
        compare ``env_args`` to find duplicates.
        ``fold_of(template: str) -> Fold | None``: the fold of a template. Splits keep folds together: ``train`` is for
        compiling, ``dev`` for choosing, ``test`` is held out.
        ``lessons(tasks) -> Sequence[MemoryDraft]``: the right lessons for these tasks, for baselines only.
        ``keeps_fact(task, lesson: str) -> bool``: whether a lesson keeps the fact that the task teaches.
    """

    name: str

    def check(self) -> None:
        """Raise ``MissingDependency``, saying what to install, if this family cannot run here."""
        return

    def templates(self) -> Sequence[str]:
        """The kinds of task, in a fixed order. Splits keep them apart."""
        ...

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        """Yield one task of each template in turn, endlessly if generated; deterministic for seed and templates.

        Raises:
            InputError: An unknown template.
        """
        ...

    def make(self, task: Task) -> Environment: ...

    def oracle(self, task: Task) -> Sequence[str]:
        """Actions that solve the task; for baselines and tests only."""
        ...

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        """The next action of a player that ignores observations; for baselines and tests only."""
        ...


class Judge(Protocol):
    """Gives a verdict on one rollout without ground truth. May block, or be async."""

    def __call__(self, task: Task, trajectory: Trajectory) -> Verdict | Awaitable[Verdict]: ...


class Redactor(Protocol):
    """Takes secrets, or personal data, out of a text. Safe to call from several threads.

    It is called again with texts that it returned, which must not change them. An error counts as one of the program.
    """

    def __call__(self, text: str, /) -> str: ...


class Reranker(Protocol):
    """Reorders retrieved experiences, and may drop some. Safe to call from several threads."""

    def __call__(self, query: str, found: Sequence[Retrieved]) -> Sequence[Retrieved]:
        """Some of ``found``, best first."""
        ...
