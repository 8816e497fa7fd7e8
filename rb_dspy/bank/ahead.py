"""One of several things is made while the one before it is being stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """``things``, each made once, the next when it is asked for or before."""

    def __init__(self, things: Iterator[T]) -> None:
        self._things = things
        self._next: T | None = None
        self._error: Exception | None = None

    def look(self) -> None:
        """Make the next one, unless it was made; what is raised is kept for ``next``, whose turn it is."""
        if self._next is None and self._error is None:
            try:
                self._next = next(self._things, None)
            except Exception as exc:  # noqa: BLE001 (whatever the list raises is its owner's)
                self._error = exc

    def next(self) -> T | None:
        """The next one; None at the end. Raises what making it raised; nothing comes after that."""
        if self._error is not None:
            error, self._error, self._things = self._error, None, iter(())
            raise error
        found, self._next = self._next, None
        return next(self._things, None) if found is None else found
