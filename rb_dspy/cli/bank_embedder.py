"""Embedders as the bank commands need them: one that shows how far it got, and one that need not be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rb_dspy import plugins
from rb_dspy.bank import MemoryBank
from rb_dspy.bank.interface import BankStore
from rb_dspy.cli.common import err
from rb_dspy.errors import EmbedderMismatch, UnknownScope
from rb_dspy.protocols import Embedder, Vectors

_HOW = (
    "bank.embedder in rb.toml names the embedder: a model, or one of your own by its entry point in"
    " rb_dspy.embedders (see CONTRIBUTING.md)"
)


def of_any_embedder(url: str, scope: str, at: str | None = None, *, named: str | None = None) -> MemoryBank:
    """The bank, whichever embedder it belongs to: none is loaded before something is to be embedded.

    Then it is the one that is ``named``, if that is the bank's; without a name nothing can be embedded.
    """
    try:
        return MemoryBank.open(url, scope=scope, embedder=_Absent("none", 1, named=named), create=False, at=at)
    except EmbedderMismatch:  # a scope that is there has an embedder, another one
        with a_store(url) as store:
            its = _Absent(*store.bind("none", 1, keep=False), named=named)
    return MemoryBank.open(url, scope=scope, embedder=its, create=False, at=at)


def of_all_scopes(url: str, scope: str, *, named: str | None = None) -> MemoryBank:
    """``of_any_embedder`` for what is done to all scopes: where ``scope`` is not there, opened at another one."""
    try:
        return of_any_embedder(url, scope, named=named)
    except UnknownScope:
        with a_store(url) as store:
            scopes = store.scopes()
        if not scopes:
            raise
    return of_any_embedder(url, scopes[0], named=named)


@contextmanager
def named() -> Iterator[None]:
    """Where the bank belongs to another embedder, the error also says how one is named."""
    try:
        yield
    except EmbedderMismatch as exc:
        raise EmbedderMismatch(f"{exc}; {_HOW}") from None


@contextmanager
def a_store(url: str) -> Iterator[BankStore]:
    """What holds all scopes of a bank that is there, whatever is wrong with it."""
    from rb_dspy.bank.sqlite.store import SqliteStore  # here: a command may end before it opens a database

    with closing(SqliteStore(Path(url).expanduser(), create=False)) as store:
        yield store


class _Absent:
    """An embedder that is not loaded before it is used: it may not be installed any more, or not load.

    ``named``: the name that it may be had by; None for one that is never used.
    """

    def __init__(self, id: str, dimension: int, named: str | None = None) -> None:
        self.id = id
        self.dimension = dimension
        self._named = named

    @property
    def min_score(self) -> float | None:
        return None if self._named is None else getattr(plugins.embedder(self._named), "min_score", None)

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self._named is None:
            raise EmbedderMismatch(f"the bank's embedder {self.id} is not loaded here; {_HOW}")
        found = plugins.embedder(self._named)
        if (found.id, found.dimension) != (self.id, self.dimension):
            raise EmbedderMismatch(
                f"the bank was filled with the embedder {self.id} ({self.dimension} dimensions), and {self._named} is"
                f" {found.id} ({found.dimension}); {_HOW}"
            )
        return found.embed(texts)


class _Watched:
    """An embedder that tells how many texts it has embedded."""

    def __init__(self, embedder: Embedder, tell: Callable[[int], object]) -> None:
        self._embedder = embedder
        self._tell = tell
        self.min_score: float | None = getattr(embedder, "min_score", None)

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
