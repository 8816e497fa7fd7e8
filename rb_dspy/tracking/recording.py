"""A trace as it is recorded: plain values, without MLflow, so that a call of a language model waits for nothing."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Literal

from rb_dspy.stream import TaskResult

SpanKind = Literal["TASK", "RETRIEVER", "AGENT", "EVALUATOR", "MEMORY", "CHAT_MODEL"]


@dataclass
class Recorded:
    """A span. Times are in nanoseconds since 1970; ``ended`` is 0 as long as it is open."""

    name: str
    kind: SpanKind
    parent: int | None
    inputs: Any = None
    outputs: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    model: str = ""
    tokens: tuple[int, int] | None = None
    """What went in and what came out, of a call of a language model."""
    id: int = field(default_factory=lambda: secrets.randbits(63) or 1)
    began: int = field(default_factory=time.time_ns)
    ended: int = 0
    trace: RecordedTrace | None = field(default=None, repr=False, compare=False)
    """The trace that it is part of."""


@dataclass(eq=False)
class RecordedTrace:
    """What was done for one task. ``spans`` are in the order in which they began; the first is the root."""

    spans: list[Recorded]
    task: str = ""
    """The task's id; empty where nobody said."""
    result: TaskResult | None = None
    """What came of it; None where nobody said."""
    given: Any = None
    """What the program gave; None where it did not come to its end."""
    broke: str = ""
    """What the program raised."""
    over: int = 0
    """When its call ended, in nanoseconds since 1970; 0 where that was not seen."""
    id: int = field(default_factory=lambda: secrets.randbits(127) or 1)

    @property
    def root(self) -> Recorded:
        """The task's own span."""
        return self.spans[0]


_open: ContextVar[Recorded | None] = ContextVar("rb_dspy_span", default=None)


def current() -> Recorded | None:
    """The span that is open in this context, or in the one that this was copied from."""
    return _open.get()


def enter(span: Recorded) -> Token[Recorded | None]:
    """Make ``span`` the open one."""
    return _open.set(span)


def leave(span: Recorded, token: Token[Recorded | None]) -> None:
    """``span`` is over, and the one before it is the open one again."""
    span.ended = time.time_ns()
    with suppress(ValueError):  # begun in another context, such as an asyncio task that is over: here it is not open
        _open.reset(token)
