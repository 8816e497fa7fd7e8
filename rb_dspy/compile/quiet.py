"""Keeps dspy's optimizers off the terminal, and from doing slow work twice.

They print, draw bars and log to the terminal with no way to ask them not to; and ``Evaluate`` starts any example that
takes longer than two minutes a second time, with no parameter for it.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

_PRINTING = (
    "dspy.teleprompt.bootstrap",
    "dspy.teleprompt.random_search",
    "dspy.teleprompt.utils",
    "dspy.propose.grounded_proposer",
    "dspy.propose.utils",
)
_DRAWING = {
    "dspy.teleprompt.bootstrap": "module",
    "dspy.evaluate.evaluate": "module",
    "dspy.utils.parallelizer": "module",
    "gepa.core.engine": "class",
}
"""Module -> what it calls ``tqdm``."""
_LOGGING = (
    "dspy.teleprompt",
    "dspy.evaluate",
    "dspy.utils.parallelizer",
    "dspy.propose",
    "dspy.predict.predict",
    "optuna",
)

_lock = threading.Lock()
_inside = 0
_undo = ExitStack()


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing of the optimizers' reaches the terminal inside the block, and no straggler is started again.

    For all threads of the process, as these are names in modules of dspy's and gepa's; blocks may overlap.
    """
    global _inside, _undo
    with _lock:
        _inside += 1
        if _inside == 1:
            _undo = ExitStack()
            _hush(_undo)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _undo.close()


_Bar: Any = importlib.import_module("tqdm").tqdm  # ships no type information


class _NoBar(_Bar):
    """A progress bar that nobody sees."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def _hush(undo: ExitStack) -> None:
    for name in _PRINTING:
        undo.enter_context(patch.object(importlib.import_module(name), "print", _nothing, create=True))
    for name, kind in _DRAWING.items():
        bar = SimpleNamespace(tqdm=_NoBar) if kind == "module" else _NoBar
        undo.enter_context(patch.object(importlib.import_module(name), "tqdm", bar))
    for name in _LOGGING:
        logger = logging.getLogger(name)
        undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
    executor = importlib.import_module("dspy.utils.parallelizer").ParallelExecutor
    undo.enter_context(patch.object(executor, "__init__", _without_timeout(executor.__init__)))


def _without_timeout(init: Any) -> Any:
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.timeout = 0  # its sign for never

    return made


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In place of ``print``."""
