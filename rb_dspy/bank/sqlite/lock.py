"""One writer at a time across processes, in turn: a lock file beside the bank.

SQLite's own lock is taken by whoever looks at the right moment, so that of several busy writers some wait for ever; and
up to its version 3.51.2 a checkpoint that meets a writer of another process can damage the file. Whoever holds this
lock from before its transaction until after its checkpoint meets nobody.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from rb_dspy.bank.sqlite.lock_elsewhere import FileLock, in_use
else:
    from rb_dspy.bank.sqlite.lock_posix import FileLock, in_use

__all__ = ["FileLock", "in_use"]
