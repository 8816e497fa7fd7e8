"""Embedders as the bank commands need them: one that shows how far it got, and one that need not be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rb_dspy.bank import MemoryBank
from rb_dspy.cli.common import err
from rb_dspy.errors import EmbedderMismatch
from rb_dspy.protocols import Embedder, Vectors


def of_any_embedder(url: str, scope: str, embedder: Embedder) -> MemoryBank:
    """The bank, whichever embedder it belongs to."""
    try:
        return MemoryBank.open(url, scope=scope, embedder=embedder, create=False)
    except EmbedderMismatch:
        from rb_dspy.bank.sqlite.store import SqliteStore  # here, so that looking at --help imports no database

        store = SqliteStore(Path(url).expanduser(), create=False)
        try:
            found = store.stats(scope)
        finally:
            store.close()
        return MemoryBank.open(url, scope=scope, embedder=_Absent(found.embedder, found.dimension), create=False)


class _Absent:
    """The name of an embedder that nothing is embedded with: it may not be installed any more."""

    def __init__(self, id: str, dimension: int) -> None:
        self.id = id
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        raise EmbedderMismatch(f"the bank's embedder {self.id} is not loaded here; open the bank with it")


class _Watched:
    """An embedder that tells how many texts it has embedded."""

    def __init__(self, embedder: Embedder, tell: Callable[[int], object]) -> None:
        self._embedder = embedder
        self._tell = tell

    @property
    def id(self) -> str:
        return self._embedder.id

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        made = self._embedder.embed(texts)
        self._tell(len(texts))
        return made


@contextmanager
def watched(embedder: Embedder, what: str) -> Iterator[Embedder]:
    """``embedder``, and in a terminal how far it got: nobody knows how many texts will come."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,} texts"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(what, total=None)
        yield _Watched(embedder, lambda number: progress.advance(bar, number))
