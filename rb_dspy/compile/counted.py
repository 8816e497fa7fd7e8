"""Hears of every task that a program has done, also in the middle of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from rb_dspy.compile.budget import CompileOver


@contextmanager
def counting(program: dspy.Module, on_done: Callable[[Any], None]) -> Iterator[None]:
    """Inside the block ``on_done`` is called after every call of ``program``, by the thread that made it, with what the
    program gave; None where it broke.

    What ``on_done`` raises ends the block, and is raised.
    """
    callbacks = [*dspy.settings.get("callbacks", []), _Done(program, on_done)]
    try:
        with dspy.context(callbacks=callbacks):
            yield
    except CompileOver as stop:
        if stop.cause is None:
            raise
        raise stop.cause from None


class _Done(BaseCallback):
    def __init__(self, program: dspy.Module, on_done: Callable[[Any], None]) -> None:
        self._program = program
        self._on_done = on_done
        self._calls: set[str] = set()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        if instance is self._program:
            self._calls.add(call_id)

    def on_module_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        if call_id in self._calls:
            self._calls.remove(call_id)
            try:
                self._on_done(outputs if exception is None else None)
            except Exception as exc:  # dspy swallows what a callback raises, unless it is no Exception
                raise CompileOver(exc) from exc
