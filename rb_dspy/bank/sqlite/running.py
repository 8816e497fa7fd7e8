"""Which runs are at work on a file: each holds a file beside it locked, which the system lets go of when it dies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from rb_dspy.bank.sqlite.lock import FileLock

_BEGIN_SECONDS = 0.25
"""How long a run that begins waits for who has its file locked: that may be somebody who only looks."""
_LOOK_SECONDS = 0.05
"""How long who looks waits, since others may be looking as well."""


class Runs:
    """The runs on the bank in the file ``real``, where links lead to.

    A file for each, and not a place in one for all: locks on a part of a file are a process's, so that threads would
    share theirs, and are lost when any other descriptor of the file is closed.
    """

    def __init__(self, real: Path) -> None:
        self._real = real

    def claim(self, scope: str, run_id: str) -> Callable[[], None] | None:
        """See ``BankStore.claim``."""
        for each in self._all(scope):
            self._held(each, 0)  # which takes away what those who died left
        path = self._path(scope, run_id)
        lock, process = FileLock(path, self._real), os.getpid()
        if lock.take(_BEGIN_SECONDS):
            return lambda: lock.remove() if os.getpid() == process else None  # a forked child's copy is its parent's
        lock.forget()
        return None if os.path.lexists(path) else lambda: None  # no such file can be made here

    def at_work(self, scope: str, run_id: str | None = None) -> bool:
        """See ``BankStore.at_work``."""
        paths = self._all(scope) if run_id is None else [self._path(scope, run_id)]
        held = [path for path in paths if self._held(path)]  # all are looked at: files that nobody holds are taken away
        return bool(held)

    def _held(self, path: Path, seconds: float = _LOOK_SECONDS) -> bool:
        if not os.path.lexists(path):  # which takes a name that is too long for none
            return False
        lock = FileLock(path, self._real)
        if lock.take(seconds):
            lock.remove()
            return False
        lock.forget()
        return os.path.lexists(path)

    def _all(self, scope: str) -> list[Path]:
        begins = self._begins(scope)
        try:
            names = os.listdir(self._real.parent)
        except OSError:  # a folder that may be entered, and not read
            return []
        return [self._real.with_name(name) for name in names if name.startswith(begins) and name.endswith(".lock")]

    def _path(self, scope: str, run_id: str) -> Path:
        return self._real.with_name(f"{self._begins(scope)}{_digest(run_id)}.lock")

    def _begins(self, scope: str) -> str:
        return f"{self._real.name}.run-{_digest(scope)}-"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
