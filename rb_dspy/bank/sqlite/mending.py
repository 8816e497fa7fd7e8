"""What can be made again of what is there: indexes, what rows are found by, vectors of texts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from rb_dspy.bank import vectors
from rb_dspy.bank.parts import UNITS, Unit
from rb_dspy.bank.sqlite import found_by, indexes, keys, renewals, vector_rows
from rb_dspy.bank.sqlite.connections import Readers
from rb_dspy.bank.sqlite.embedders import checked_embedder
from rb_dspy.bank.sqlite.vector_rows import Made
from rb_dspy.bank.sqlite.writes import Body
from rb_dspy.protocols import Vectors

_PAGE = 500
"""Texts that are embedded at once."""

_ALL = 1 << 62
"""Above any key."""


class Mending:
    """One mending of all scopes; see ``BankStore.mend``."""

    def __init__(
        self,
        location: str,
        readers: Readers,
        write: Callable[[Body], object],
        embedder: tuple[str, int],
        embed: Callable[[Sequence[str]], Vectors],
    ) -> None:
        self._location = location
        self._read = readers.read
        self._write = write
        self._embedder = embedder
        self._embed = embed

    def run(self) -> int:
        """The number of vectors that were made."""
        if self._read(indexes.lacking):
            self._write(indexes.make)
        if self._read(found_by.is_wrong):
            self._write(found_by.make_anew)
        if unmarked := self._read(found_by.unmarked):
            self._write(partial(found_by.mark, these=unmarked))
        self._read(partial(checked_embedder, bound=self._embedder, location=self._location))
        return sum(self._vectors(unit) for unit in UNITS)

    def _vectors(self, unit: Unit) -> int:
        faulty = self._read(partial(_faulty, unit=unit, size=self._embedder[1]))
        number = 0
        for start in range(0, len(faulty), _PAGE):
            page = self._read(partial(vector_rows.texts, unit=unit, keys=faulty[start : start + _PAGE]))
            if page:
                found = [vectors.packed(vector) for vector in self._embed([row.text for row in page])]
                vectors.check_lengths(set(map(len, found)), self._embedder, self._location)
                made = list(zip(page, found, strict=True))
                self._write(partial(self._put, unit=unit, made=made))
                number += len(made)
        return number

    def _put(self, connection: sqlite3.Connection, *, unit: Unit, made: Sequence[tuple[Made, bytes]]) -> None:
        checked_embedder(connection, self._embedder, self._location)
        vector_rows.put(connection, unit, made)
        renewals.count(connection)


def _faulty(connection: sqlite3.Connection, *, unit: Unit, size: int) -> list[int]:
    return [fault.key for fault in vector_rows.faults(connection, unit, size, after=keys.base(0), last=_ALL)]
