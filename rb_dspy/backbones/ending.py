"""The end of a process whose native threads still compute: at once, with its exit code, and without a crash.

Only glibc needs, and has, what is done here. Both are for a Python that is ending, and are final.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from threading import Thread


def leave_native_threads() -> bool:
    """Let the process end right after Python does; False where that cannot be had.

    What it would tear down last is what threads that still compute would fall over.
    """
    libc = _glibc()
    if libc is None:
        return False
    libc.on_exit(libc._exit, None)  # the first to be called, and with the exit code
    return True


def hang(thread: Thread) -> None:
    """Let ``thread``, which is in native code that may call Python, do nothing any more.

    Before 3.14, Python ends a thread that comes back to it too late, which C++ between the two answers with an abort
    ("FATAL: exception not rethrown"); later ones let it hang, as is done here. Elsewhere than with glibc the end of a
    thread is no exception to C++. A thread in Python must not hang: it may hold what everybody waits for.
    """
    libc = _glibc()
    if libc is not None and thread.ident is not None:
        libc.signal(signal.SIGRTMAX, libc.pause)  # a handler of Python's own would not run in that thread
        signal.pthread_kill(thread.ident, signal.SIGRTMAX)


def _glibc() -> ctypes.PyDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock, so that the thread does not hang with it
    return libc if hasattr(libc, "on_exit") else None
