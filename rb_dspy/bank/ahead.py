"""The parts of the next pages are made while the page before them is being stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """``parts``, ``size`` of them a page, each made once, when its page is asked for or before."""

    def __init__(self, parts: Iterator[T], size: int, most: int) -> None:
        """``most``: so many parts are made before their page is asked for, and no more."""
        self._parts = parts
        self._size = size
        self._most = most
        self._made: list[T] = []
        self._error: Exception | None = None
        self._ended = False

    def look(self, enough: Callable[[], bool]) -> None:
        """Make the next page, and parts of those after it until it is ``enough``, which is asked after each.

        What is raised is kept for the page that it belongs to.
        """
        while not self._ended and len(self._made) < self._most and (len(self._made) < self._size or not enough()):
            try:
                self._made.append(next(self._parts))
            except StopIteration:
                self._ended = True
            except Exception as exc:  # noqa: BLE001 (whatever the list raises is its owner's)
                self._error, self._ended = exc, True

    def next(self) -> list[T]:
        """The parts of the next page; fewer at the end, then none.

        Raises what making one of them raised; nothing comes after that.
        """
        self.look(lambda: True)
        page, self._made = self._made[: self._size], self._made[self._size :]
        if self._error is not None and len(page) < self._size:
            error, self._error = self._error, None
            raise error
        return page
