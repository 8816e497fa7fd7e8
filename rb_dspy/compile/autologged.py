"""Ends the run that MLflow's autologging opens around an optimizer.

``mlflow.dspy.autolog(log_compiles=True)`` opens one around every ``compile`` of dspy's optimizers, and ends it where
that returns or raises an ``Exception``. Ours end by a ``CompileOver``, which is none: the run would stay open, and all
that the process tracked after it would go there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("rb_dspy")

_OPENED_BY = "mlflow.autologging"
"""The tag of runs that autologging opened."""


@contextmanager
def runs_ended() -> Iterator[None]:
    """A run that autologging opened inside the block is over after it: finished, or failed where the block raises."""
    before = _active()
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    finally:
        run = _active()
        if before is None and run is not None and _OPENED_BY in run.data.tags:
            _end(status)


def _active() -> Any:
    mlflow = sys.modules.get("mlflow")  # who has not imported it logs nothing by it
    return None if mlflow is None else mlflow.active_run()


def _end(status: str) -> None:
    mlflow = sys.modules["mlflow"]
    try:
        mlflow.end_run(status)
    except mlflow.MlflowException as exc:  # it is active no more, and a compile must not be lost with its store
        log.warning("the run that MLflow's autologging opened cannot be ended: %s", exc)
