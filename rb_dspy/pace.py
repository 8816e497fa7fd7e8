"""How far long work is, and how long the rest will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from rb_dspy.text import printable, short_number


class Step(Protocol):
    """What ``run_stream``, ``evaluate`` and ``compile_program`` report."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def about(self) -> str:
        """What is being done, in a few words."""
        ...


class Pace:
    """The last report; called with each. As text it is one line."""

    def __init__(self, about: str) -> None:
        self.done = self.total = self.tokens = self._first = 0
        self.about, self._started = about, time.monotonic()

    def __call__(self, step: Step) -> None:
        if step.total != self.total or step.done < self.done:  # a new phase
            self._first, self._started = step.done, time.monotonic()
        self.done, self.total, self.tokens, self.about = step.done, step.total, step.tokens, step.about

    @property
    def seconds_left(self) -> float | None:
        """As fast as since the first report; None before a second one."""
        new = self.done - self._first
        return (time.monotonic() - self._started) / new * (self.total - self.done) if new else None

    def row(self) -> dict[str, Any]:
        """The progress as JSON."""
        return {name: getattr(self, name) for name in ("done", "total", "seconds_left", "tokens", "about")}

    def __str__(self) -> str:
        left = self.seconds_left
        parts = [f"{self.done:,} of {self.total:,}" if self.total else "", self.about]
        parts += [f"{short_number(self.tokens)} tokens" if self.tokens else ""]
        parts += ["" if left is None else f"{left:.0f} s left" if left < 100 else f"{left / 60:.0f} min left"]
        return printable(" · ".join(filter(None, parts)))


def silent(step: Step) -> None:
    """Shows nothing, also in a notebook: for what is a part of other work."""


def in_notebook() -> Callable[[Step], None] | None:
    """Shows progress as a line of the notebook's cell that runs, which is overwritten; None outside of one."""
    if "ipykernel" not in sys.modules:
        return None
    pace = Pace("")

    def show(step: Step) -> None:
        pace(step)
        print(f"\r{pace!s:<79}", end="\n" if step.done == step.total else "", flush=True)

    return show
