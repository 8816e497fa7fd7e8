"""How far a compile is, for progress bars and logs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rb_dspy.backbones import Ledger
from rb_dspy.schema import Usage


@dataclass(frozen=True)
class Progress:
    """Told after every metric call, at the beginning of each phase, in scoring after every task or example, and in
    harvesting after every task."""

    metric_calls: int
    """Of the budget: runs of candidates that were rated."""
    budget: int
    best: float | None
    """Mean on dev of the best candidate so far; None as long as none has been rated on all of it."""
    usage: Usage = field(default_factory=dict)
    """What all roles used so far; ``reflection`` is who proposes prompts."""
    seconds: float = 0.0
    note: str = ""
    """The phase, in a few words."""
    scored: int = 0
    """In a phase that scores: how many tasks, in all orders, or examples are done; those that broke among them."""
    to_score: int = 0
    """How many there are; 0 in other phases, and where what was scored before is scored again."""
    harvested: int = 0
    """In a phase that harvests: how many rollouts have come to their end."""
    to_harvest: int = 0
    """How many there will be at most; 0 in other phases."""


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Tell nobody."""


class Clock(Protocol):
    """Knows how long a compile has taken."""

    @property
    def seconds(self) -> float:
        """Wall seconds, earlier sittings included."""
        ...


@dataclass
class Teller:
    """Tells ``on_progress`` what is known at the time."""

    on_progress: OnProgress
    budget: int
    ledger: Ledger
    clock: Clock
    note: str = ""
    metric_calls: int = 0
    best: float | None = None
    scored: int = 0
    to_score: int = 0
    harvested: int = 0
    to_harvest: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def phase(self, note: str, to_score: int = 0, *, to_harvest: int = 0) -> None:
        """Say what comes now."""
        with self._lock:
            self.note, self.scored, self.to_score = note, 0, to_score
            self.harvested, self.to_harvest = 0, to_harvest
            self.tell()

    def score(self) -> None:
        """Say that one more is scored. From any thread; numbers are told in their order."""
        with self._lock:
            self.scored += 1
            self.tell()

    def harvest(self, rollouts: int, to_come: int) -> None:
        """Say that ``rollouts`` more are harvested, and at most ``to_come`` are still to be."""
        with self._lock:
            self.harvested += rollouts
            self.to_harvest = self.harvested + to_come
            self.tell()

    def tell(self) -> None:
        """Say how far it is."""
        self.on_progress(
            Progress(
                self.metric_calls,
                self.budget,
                self.best,
                self.ledger.usage(),
                self.clock.seconds,
                self.note,
                self.scored,
                self.to_score,
                self.harvested,
                self.to_harvest,
            )
        )
