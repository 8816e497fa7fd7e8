"""A long list in pages, of which the next can be read while one is being stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Pages(Generic[T]):
    """``things``, so many at a time; each is read once."""

    def __init__(self, things: Iterable[T], size: int) -> None:
        self._things: Iterator[T] = iter(things)
        self._size = size
        self._ended = False
        self._ahead: list[T] | None = None
        self._error: Exception | None = None

    def look_ahead(self) -> None:
        """Read the next page, unless it was read; what is raised is kept for ``next``, whose turn it is."""
        if self._ahead is None and self._error is None:
            try:
                self._ahead = self._read()
            except Exception as exc:  # noqa: BLE001 (whatever the list raises is its owner's)
                self._error = exc

    def next(self) -> list[T]:
        """The next page; empty at the end. Raises what the list raises."""
        if self._error is not None:
            error, self._error, self._ended = self._error, None, True
            raise error
        page, self._ahead = self._ahead, None
        return self._read() if page is None else page

    def _read(self) -> list[T]:
        page = [] if self._ended else list(islice(self._things, self._size))
        self._ended = len(page) < self._size
        return page
