"""Indexes that keep up with their store: what any thread or process has committed is in the next answer."""

from __future__ import annotations

import logging
import threading
import weakref

from rb_dspy.bank.index.layered import LayeredIndex
from rb_dspy.bank.index.layered_lexical import LayeredLexicalIndex
from rb_dspy.bank.index.lexical import LexicalIndex
from rb_dspy.bank.index.sidecar import Sidecar
from rb_dspy.bank.index.vector import VectorIndex
from rb_dspy.bank.index.view import View
from rb_dspy.bank.index.word_view import WordView
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import Unit
from rb_dspy.errors import BankError

_ROWS = 20_000
"""Rows of one read: an index is filled in pages, so that no read transaction stays open for long."""

_log = logging.getLogger("rb_dspy.bank")


class Follower:
    """The vector index of one unit in one scope. Safe to use from threads; only who finds news first waits for it.

    Once the index has some thousand rows, a part that is searched faster is built in a thread of its own. That of a
    large index is approximate, and saved for the next process.
    """

    def __init__(
        self,
        store: BankStore,
        scope: str,
        unit: Unit,
        index: VectorIndex | LayeredIndex,
        sidecar: Sidecar | None = None,
    ) -> None:
        self._store = store
        self._scope = scope
        self._unit = unit
        self._index = index
        self._sidecar = sidecar
        self._version: int | None = None
        self._renewals: int | None = None
        """The store's, when it was read first."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._why: BankError | None = None
        self._builder: threading.Thread | None = None

    def view(self) -> View:
        """Everything that was committed before this call. After ``retire`` it raises the error given there."""
        if self._why is not None:
            raise self._why
        version = self._store.version()
        if version != self._version:
            with self._lock:
                # Asked for before the changes are: what is committed while they are read makes it another version.
                version = self._store.version()
                if version != self._version:
                    self._catch_up()
                    self._version = version
        return self._index.view

    def build(self) -> None:
        """Make the index as fast as it gets, and save it, now; where it is small there is nothing to do."""
        self.view()
        self._wait()
        self._build()

    def retire(self, why: BankError) -> None:
        """Give no more views; wait for what is being built to notice."""
        self._why = self._why or why
        self._stop.set()
        self._wait()

    def _wait(self) -> None:
        """Until what is being built is done. What begins later sees ``_stop`` first, where that is set."""
        with self._lock:
            builder = self._builder
        if builder is not None and builder is not threading.current_thread():
            builder.join()

    def _catch_up(self) -> None:
        if self._renewals is None:
            self._renewals = self._store.renewals()  # before anything is read: what was mended later may be missing
            if self._sidecar is not None:
                self._index = self._sidecar.load(self._digest) or self._index
        more = True
        while more:
            if self._why is not None:
                raise self._why
            changes = self._store.changes(self._scope, self._unit, after=self._index.view.mark, limit=_ROWS)
            self._index.apply(changes)
            more = changes.more
        free = not self._stop.is_set() and (self._builder is None or not self._builder.is_alive())
        if free and isinstance(self._index, VectorIndex) and self._index.wants_base:
            builder = threading.Thread(target=self._build_aside, name="rb_dspy index", daemon=True)
            # A process that ends without closing its banks must not end in the middle of FAISS.
            weakref.finalize(self, _end, self._stop, builder)
            builder.start()
            self._builder = builder  # only now: nobody can wait for a thread that could not be started

    def _build_aside(self) -> None:
        try:
            self._build()
        except BankError as exc:  # nobody waits for this thread, and searches go on without what it makes
            if not self._stop.is_set():
                _log.warning("%s: the index of scope %r stays slow: %s", self._store.location, self._scope, exc)

    def _build(self) -> None:
        index = self._index
        while isinstance(index, VectorIndex) and index.wants_base:
            prepared = index.prepare(self._stop.is_set)
            if prepared is None:
                return
            with self._lock:
                index.install(prepared)
        if self._sidecar is not None and isinstance(index, VectorIndex) and not index.view.exact:
            self._sidecar.save(index.view, self._digest)

    def _digest(self, mark: int) -> str:
        """Of what the index was read from: the history tells of no vectors that were made again."""
        return f"{self._store.digest(self._scope, mark)}{f'/{self._renewals}' if self._renewals else ''}"


def _end(stop: threading.Event, builder: threading.Thread) -> None:
    stop.set()
    if builder.is_alive() and builder is not threading.current_thread():
        builder.join()


class LexicalFollower:
    """The word index of one unit in one scope; nothing is read before the first search. Safe to use from threads."""

    def __init__(
        self, store: BankStore, scope: str, unit: Unit, index: LexicalIndex | LayeredLexicalIndex, after: int = 0
    ) -> None:
        """``after``: the number that ``index`` goes on from."""
        self._store = store
        self._scope = scope
        self._unit = unit
        self._index = index
        self._mark = after
        self._lock = threading.Lock()

    def view(self, mark: int) -> WordView:
        """All rows born up to ``mark``, which the scope has reached; none beyond is read for it."""
        with self._lock:
            while self._mark < mark:
                page = self._store.texts(self._scope, self._unit, after=self._mark, limit=_ROWS)
                self._index.add([(seq, text) for seq, text in page if seq <= mark])
                self._mark = min(mark, page[-1][0]) if len(page) == _ROWS else mark
        return self._index.view.at(mark)
