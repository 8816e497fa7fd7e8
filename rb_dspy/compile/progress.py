"""Progress of a compile, for progress bars and logs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

from rb_dspy.pace import in_notebook
from rb_dspy.schema import Usage


@dataclass(frozen=True)
class Progress:
    """Reported at the beginning of each phase, and after every metric call, task or example."""

    metric_calls: int
    """Metric calls used, out of the budget."""
    budget: int
    best: float | None
    """Mean score of the best candidate on dev; None before one has been scored on all of it."""
    usage: Usage = field(default_factory=dict)
    """Usage of each role so far; ``reflection`` is added when the optimizer ends."""
    seconds: float = 0.0
    phase: str = ""
    done: int = 0
    """Done in this phase, out of ``total``: metric calls, tasks or examples."""
    total: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all roles so far."""
        return sum(used.prompt_tokens + used.completion_tokens for used in self.usage.values())

    @property
    def about(self) -> str:
        """The phase and the best score, in a few words."""
        return self.phase if self.best is None else f"{self.phase}, best {self.best:.2f}"


OnProgress = Callable[[Progress], object]


class Reporter:
    """Calls ``on_progress``, one thread at a time."""

    def __init__(self, on_progress: OnProgress | None, budget: int, usage: Callable[[], Usage]) -> None:
        self.best: float | None = None
        self._on_progress = on_progress or in_notebook()
        self._usage = usage
        self._progress = Progress(0, budget, None)
        self._started = time.monotonic()
        self._stdout = sys.stdout  # while optimizers run, stdout is redirected
        self._lock = threading.RLock()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def phase(self, name: str, total: int) -> None:
        self._report(phase=name, done=0, total=total)

    def step(self, done: int | None = None) -> None:
        """Report that ``done`` tasks or examples of the phase are done, or one more."""
        with self._lock:
            self._report(done=self._progress.done + 1 if done is None else done)

    def count(self, metric_calls: int) -> None:
        """Report how many metric calls there were."""
        with self._lock:
            calls = max(self._progress.metric_calls, metric_calls)
            self._report(metric_calls=calls, done=calls)

    def _report(self, **changes: Any) -> None:
        with self._lock:
            changes |= {"best": self.best, "usage": self._usage(), "seconds": self.seconds}
            self._progress = replace(self._progress, **changes)
            if self._on_progress is not None:
                with redirect_stdout(self._stdout):
                    self._on_progress(self._progress)
