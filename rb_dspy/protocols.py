"""What can be replaced, and what a replacement must do. Nothing here needs a base class."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rb_dspy.schema import Outcome, Retrieved, Task, Trajectory, Verdict

Vectors = NDArray[np.float32]

Fold = Literal["train", "dev", "test"]
"""A share of a family's tasks with a world of its own."""

_log = logging.getLogger("rb_dspy")


@runtime_checkable
class Embedder(Protocol):
    """Text to unit vectors. Must be safe to call from several threads; equal text must give equal vectors."""

    @property
    def id(self) -> str:
        """Names model and revision; stored with every bank and checked when it is opened."""
        ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Shape ``(len(texts), dimension)``, float32, each row of length 1."""
        ...


@runtime_checkable
class Environment(Protocol):
    """One episode of one task. Made by a factory, used by one rollout, then closed. Not shared between threads.

    Any exception but ``RBError`` from these methods counts as a broken environment: the task becomes an
    infrastructure error. An action that makes no sense is not an error: the observation says so.
    """

    @property
    def action_rules(self) -> str:
        """What an action may look like, for the agent to read: after ``reset``."""
        ...

    def reset(self, task: Task) -> str:
        """Start the episode; the first observation. Deterministic for a given task."""
        ...

    def step(self, action: str) -> tuple[str, bool]:
        """Do ``action``: the observation, and whether the episode has ended, as a bool: anything else is refused."""
        ...

    def valid_actions(self) -> Sequence[str] | None:
        """The actions that are possible now, or None where any text is one."""
        ...

    def answer(self) -> str | None:
        """What the agent handed in as its answer so far; None where the environment takes none."""
        ...

    def outcome(self) -> Outcome | None:
        """Ground truth; None where nobody knows it, which is neither a success nor a failure and does not count: what
        failed is to say so. The scorer calls this, the program never.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Reopens(Protocol):
    """An environment whose episode can go on after its end, which not every one can: sequential scaling asks."""

    def reopen(self) -> str | None:
        """Let the episode go on from where it is: what the agent sees now, or None where it cannot go on.

        Must not tell whether what was reached is right.
        """
        ...


class Instant(Protocol):
    """An environment that says whether its calls are over at once: they compute a little and wait for nothing."""

    instant: bool
    """True: asyncio makes all calls but the first, ``reset``, on the event loop, so nothing that ``reset`` opens may be
    for one thread only. Else, and where an environment does not say, in a thread of its own, which costs some tenths of
    a millisecond each.
    """


def is_instant(environment: Environment) -> bool:
    """Whether ``environment`` says that it is ``Instant``. One that cannot say, whatever it raises, does not."""
    try:
        return getattr(environment, "instant", False) is True
    except Exception as exc:  # noqa: BLE001 (one that hands unknown names on may raise anything, and works all the same)
        _log.debug("%s has no attribute 'instant': %s", type(environment).__name__, exc)
        return False


def says_done(given: object) -> bool | None:
    """Whether a step that gave ``given`` with its observation ended the episode; None where that is no bool, also none
    of numpy's: a reward or a dict, as other libraries' environments give, says nothing of the end.
    """
    return bool(given) if isinstance(given, bool | np.bool_) else None


class EnvironmentFactory(Protocol):
    """Makes a fresh environment for one rollout of a task; every rollout gets its own."""

    def __call__(self, task: Task, rollout_id: str) -> Environment: ...


class EnvironmentFamily(Protocol):
    """A named kind of environment: its tasks, its episodes, and the baselines that show its scoring is sound.

    Where instructions do not tell tasks apart, it says so as ``SaysWhatTells``; where templates share what they are
    about, as ``SaysFolds``.
    """

    name: str

    def check(self) -> None:
        """Raise ``MissingDependency``, saying what to install, where this family cannot run here."""
        ...

    def templates(self) -> Sequence[str]:
        """The kinds of task, in a fixed order. Splits keep them apart, and folds too (``SaysFolds``)."""
        ...

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        """Tasks without end where they are generated, else until they run out; deterministic for seed and templates.

        One task of each template in turn. An unknown template raises ``InputError``.
        """
        ...

    def make(self, task: Task) -> Environment: ...

    def oracle(self, task: Task) -> Sequence[str]:
        """Actions that solve the task; for baselines and tests only."""
        ...

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        """What a player who reads nothing would do next."""
        ...


@runtime_checkable
class SaysWhatTells(Protocol):
    """A family that says whether its instructions tell its tasks apart; of one that does not, they are taken to."""

    instruction_tells_all: bool
    """False where tasks that differ have the same instruction, since the rest is to be seen in their worlds. Then
    splits take those of its tasks for near-duplicates that have the same ``env_args``, whatever their instructions."""


@runtime_checkable
class SaysFolds(Protocol):
    """A family whose tasks fall into folds: what can be known by heart of the tasks of one says nothing of another's.

    Splits then put all of a fold into one part: prompts are compiled on ``train`` and chosen on ``dev``, and ``test``
    is held out, whatever the templates.
    """

    def folds(self) -> Mapping[str, Fold]:
        """Template -> its fold. A template that is not in it is like those of families without folds."""
        ...

    def fold(self, task: Task) -> Fold | None:
        """That of one task, whose template may be another's: from what its world is made of. None: of no fold."""
        ...


class Judge(Protocol):
    """Gives a verdict on one rollout without ground truth.

    A plain function may block: under asyncio it is called in a thread. An async one, or any whose answer is awaitable,
    is awaited by ``acall``, ``alearn`` and ``aresume``; the calls that are not async refuse it with ``ConfigError``.
    """

    def __call__(self, task: Task, trajectory: Trajectory) -> Verdict | Awaitable[Verdict]: ...


class Reranker(Protocol):
    """Puts what was retrieved into a better order, and may leave some of it out. Safe to call from several threads."""

    def __call__(self, query: str, found: Sequence[Retrieved]) -> Sequence[Retrieved]:
        """Some of ``found``, best first."""
        ...


TokenCounter = Callable[[str], int]
"""Counts tokens, or estimates them."""
