"""An embedder that shows how far it got, and what to say if it is another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rb_dspy.cli.common import err
from rb_dspy.errors import EmbedderMismatch
from rb_dspy.protocols import Embedder, Vectors

_HOW = (
    "bank.embedder in rb.toml names the embedder: a model, or one of your own by its entry point in"
    " rb_dspy.embedders (see CONTRIBUTING.md)"
)


@contextmanager
def named() -> Iterator[None]:
    """Where the bank belongs to another embedder, the error also says how one is named."""
    try:
        yield
    except EmbedderMismatch as exc:
        raise EmbedderMismatch(f"{exc}; {_HOW}") from None


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
