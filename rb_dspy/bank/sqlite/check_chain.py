"""The journal's hash chain, computed again from what is stored: what was changed behind the store's back shows."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Collection, Iterator
from typing import Any

from rb_dspy.bank import journal
from rb_dspy.bank.parts import Finding
from rb_dspy.bank.sqlite import keys
from rb_dspy.bank.sqlite.compression import decompressed
from rb_dspy.bank.sqlite.scoped import Scope

_REMEDY = "compare it with a copy of the file; delete it if you do not trust it"


def chain(connection: sqlite3.Connection, scope: Scope, *, unreadable: Collection[str]) -> Iterator[Finding]:
    """One finding for each entry that what is stored does not bear out; ``unreadable`` ones were told of already.

    Each entry is checked against the hash that is stored before it, so that one change shows in one place.
    """
    return _Chain(connection, scope).findings(unreadable)


class _Chain:
    def __init__(self, connection: sqlite3.Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._ended: dict[str, dict[int, list[int]]] = {"experiences": {}, "items": {}}
        """Numbers of rows by the number that ended them."""
        self._endless: list[str] = []
        """Rows that ended at what is no number."""
        for table, of in self._ended.items():
            for key, ended in self._ask(
                f"SELECT key, ended FROM {table} WHERE key > ? AND key <= ? AND ended IS NOT NULL ORDER BY key",
                *self._all(),
            ):
                if isinstance(ended, int):
                    of.setdefault(ended, []).append(keys.number(key))
                else:
                    self._endless.append(f"{table} {keys.number(key)}")

    def findings(self, unreadable: Collection[str]) -> Iterator[Finding]:
        listed = self._ask(
            "SELECT key, kind, subject, note, created_at, hash FROM journal WHERE key > ? AND key <= ? ORDER BY key",
            *self._all(),
        )
        last = self._scope.base + keys.LAST
        head = b""
        for place, (key, kind, subject, note, created_at, hash) in enumerate(listed):
            until = listed[place + 1][0] if place + 1 < len(listed) else last
            try:
                where, expected = self._entry(head, key, until, kind, subject, note, created_at)
            except (TypeError, ValueError, AttributeError) as exc:  # a cell of another type
                what = f"it, or what is stored of it, cannot be read: {type(exc).__name__}"
                yield self._finding(self._where(f"entry {keys.number(key)} of the journal"), what)
                head = hash if isinstance(hash, bytes) else b""
                continue
            if expected is None and where not in unreadable:
                yield self._finding(where, f"entry {keys.number(key)} of the journal tells of what is not there")
            elif expected is not None and expected != hash:
                what = f"entry {keys.number(key)} of the journal does not bear out what is stored of it, or before it"
                yield self._finding(where, what)
            head = hash if isinstance(hash, bytes) else b""
        kept = self._ask("SELECT chain FROM scopes WHERE id = ?", self._scope.id)[0][0]
        if kept != head:
            yield self._finding(self._where("its journal"), "the last entry is not the one that was written last")
        yield from self._strangers({keys.number(row[0]): row[1] for row in listed})

    def _entry(
        self, head: bytes, key: int, until: int, kind: str, subject: str | None, note: str, created_at: str
    ) -> tuple[str, bytes | None]:
        """What an entry is about, and its hash as it should be; None where that cannot be read."""
        seq = keys.number(key)
        content: bytes | None
        if kind == "append":
            found = self._ask(
                "SELECT id, run_id, distiller, origin, label, polarity, task_id, instruction, payload, note, created_at"
                " FROM experiences WHERE key = ?",
                key,
            )
            if not found:
                return self._where(f"number {seq}"), None
            *said, task_id, instruction, payload, note, created_at = found[0]
            subject = str(said[0])
            try:
                told = decompressed(payload, task_id, instruction)
            except (zlib.error, TypeError):
                return self._where(f"experience {subject}"), None
            where = f"experience {subject}"
            content = self._append(key, until, said, told)
        elif kind == "edit":
            where = f"item {subject}"
            content = self._edit(key, until, subject or "")
        else:
            where = f"{kind} of {subject}"
            content = journal.content_of_removal(self._at("experiences", seq), self._at("items", seq))
        expected = None
        if content is not None:
            expected = journal.entry_hash(head, seq, kind, subject or "", note, created_at, content)  # type: ignore[arg-type]
        return self._where(where), expected

    def _append(self, key: int, until: int, said: list[Any], told: bytes) -> bytes:
        items = self._ask("SELECT id, digest FROM items WHERE key > ? AND key < ? ORDER BY key", key, until)
        shown = self._ask("SELECT item_id FROM exposures WHERE experience = ? ORDER BY position", key)
        id, run_id, distiller, origin, label, polarity = said
        return journal.append_content(
            *(id, run_id, distiller, origin, label, polarity),
            [item_id for (item_id,) in shown],
            items,
            told,
        )

    def _edit(self, key: int, until: int, id: str) -> bytes | None:
        ended = self._at("items", keys.number(key))
        born = self._ask("SELECT id, digest FROM items WHERE key > ? AND key < ? ORDER BY key", key, until)
        if not born or {row[0] for row in born} != {id} or len(born) != len(ended):
            return None
        return journal.content_of_edit(id, born[0][1], ended)

    def _strangers(self, entries: dict[int, str]) -> Iterator[Finding]:
        """Rows that the journal knows nothing of."""
        for (id,) in self._ask(
            "SELECT e.id FROM experiences AS e LEFT JOIN journal AS j ON j.key = e.key AND j.kind = 'append'"
            " WHERE e.key > ? AND e.key <= ? AND j.key IS NULL ORDER BY e.key",
            *self._all(),
        ):
            yield self._finding(self._where(f"experience {id}"), "the journal has no entry of it")
        for what in self._endless:
            yield self._finding(self._where(what), "ended at what is no number")
        for table, of in self._ended.items():
            for seq in sorted(set(of) - {seq for seq, kind in entries.items() if kind != "append"}):
                numbers = ", ".join(map(str, of[seq][:5]))
                yield self._finding(
                    self._where(f"{table} {numbers}"), f"ended at {seq}, where the journal has no entry of it"
                )

    def _at(self, table: str, seq: int) -> list[int]:
        return self._ended[table].get(seq, [])

    def _all(self) -> tuple[int, int]:
        return self._scope.base, self._scope.base + keys.LAST

    def _ask(self, query: str, *given: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, given).fetchall()

    def _where(self, what: str) -> str:
        return f"scope {self._scope.name!r}: {what}"

    @staticmethod
    def _finding(where: str, what: str) -> Finding:
        return Finding(severity="error", kind="chain", where=where, what=what, remedy=_REMEDY)
