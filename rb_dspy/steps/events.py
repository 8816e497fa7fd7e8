"""What happens inside the loop, as it happens: for progress displays and logs, never for the program itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from rb_dspy.schema import Check, Experience, Step, Task, Trajectory, Verdict
from rb_dspy.steps.drafts import Unfit
from rb_dspy.steps.memory import Memory


@dataclass(frozen=True)
class MemoryRetrieved:
    """The agent is about to start with these lessons."""

    task: Task
    memory: Memory


@dataclass(frozen=True)
class EpisodeStarted:
    """The environment showed its first observation. ``rollout``: of which rollout."""

    task: Task
    observation: str
    rollout: str = "0"


@dataclass(frozen=True)
class StepTaken:
    """One turn is over."""

    task: Task
    number: int
    step: Step
    rollout: str = "0"


@dataclass(frozen=True)
class Checked:
    """The agent looked back at its own work."""

    task: Task
    check: Check
    rollout: str = "0"


@dataclass(frozen=True)
class RolloutLost:
    """One of several rollouts broke; the others go on."""

    task: Task
    rollout: str
    error: str


@dataclass(frozen=True)
class Judged:
    """The judge gave its verdict."""

    task: Task
    trajectory: Trajectory
    verdict: Verdict


@dataclass(frozen=True)
class Drafted:
    """Lessons were drawn from rollouts: how many are fit for a bank, and for each other one why it is not."""

    task: Task
    kept: int
    dropped: tuple[Unfit, ...]


@dataclass(frozen=True)
class Withheld:
    """Of drafts that were fit for a bank, some are not for this one: why, for each."""

    task: Task
    dropped: tuple[Unfit, ...]


@dataclass(frozen=True)
class Selected:
    """One of several rollouts was chosen to be handed in."""

    task: Task
    rollout: str
    analysis: str


@dataclass(frozen=True)
class Appended:
    """The bank holds the experience, durably."""

    task: Task
    experience: Experience


Event = (
    MemoryRetrieved
    | EpisodeStarted
    | StepTaken
    | Checked
    | RolloutLost
    | Judged
    | Drafted
    | Withheld
    | Selected
    | Appended
)
Listener = Callable[[Event], None]

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("rb_dspy_listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the events of this context, and of contexts copied from it, to ``listener``, which must not raise.

    Whoever listens outside the block goes on hearing them.
    """
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def emit(event: Event) -> None:
    """Tell everybody who listens."""
    for listener in _listeners.get():
        listener(event)
