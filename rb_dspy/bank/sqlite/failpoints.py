"""For tests only: places where a process kills itself when ``RB_DSPY_FAILPOINT`` names them.

``before-begin``, ``after-insert``, ``before-commit``, ``after-commit``, ``after-backup``, ``mid-migration``,
``mid-reindex``, ``restore-linked``, ``restore-moved``.
"""

from __future__ import annotations

import os
import signal


def reached(name: str) -> None:
    """Die here, as by ``kill -9``, where the environment says so."""
    if os.environ.get("RB_DSPY_FAILPOINT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
