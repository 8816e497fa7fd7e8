"""Compiles of programs in the world of ``serial_locks``."""

from __future__ import annotations

import functools
from typing import Any

from rb_dspy import Backbones, Compiled, MaTTS, ReasoningBank, Streams, Task, TaskStream, compile_program
from rb_dspy.compile import Progress
from rb_dspy.config import ProgramConfig
from rb_dspy.testing import HashEmbedder, apprentice, scripted_lm, serial_locks, teacher, toys


def program(lm: Any = None, **config: Any) -> ReasoningBank:
    backbones = Backbones(agent=lm or scripted_lm(apprentice))
    return ReasoningBank(ProgramConfig(**config), backbones=backbones, environments=toys)


def scaled(lm: Any = None, **options: Any) -> MaTTS:
    return MaTTS(program(lm), **{"k": 2, **options})


def locks(makers: int, each: int = 4, *, first: int = 0) -> tuple[Task, ...]:
    return serial_locks(range(first, first + makers), each).tasks


def streams(each: int = 4, held_out: int = 0) -> Streams:
    """``each`` locks of every maker, of which three are to compile on, two are dev, and three held out."""
    return Streams(
        TaskStream("to-compile", locks(3, each)),
        TaskStream("to-choose", locks(2, each, first=3)),
        TaskStream("held-out", locks(3, held_out or each, first=5)),
    )


def compiled(**options: Any) -> Compiled:
    defaults = {"embedder": HashEmbedder(), "reflection": scripted_lm(teacher), "budget": 40, "orders": 1}
    options = {"program": program(), "streams": streams(), **defaults, **options}
    return compile_program(options.pop("program"), options.pop("streams"), **options)


@functools.cache
def compiled_step(step: str) -> tuple[Compiled, list[Progress]]:
    """One compile of a step for all tests that only look at its result, and what it reported."""
    reports: list[Progress] = []
    return compiled(step=step, on_progress=reports.append), reports
