"""What the index needs of a scope in memory: vectors, endings, texts, and what to show of a row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from rb_dspy.bank import vectors
from rb_dspy.bank.memory.rows import numbered, place_after
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.bank.parts import Changes, Match, Unit, VectorBatch, item_text, task_key


def changes(of: Timeline, unit: Unit, dimension: int, *, after: int, limit: int) -> Changes:
    """See ``BankStore``, of what happened here."""
    indexed: Iterable[tuple[int, str, str, bytes | None]]
    if unit == "item":
        rows = of.rows[place_after(of.rows, after) :]
        indexed = ((row.seq, row.provenance.task_id, row.polarity, row.vector) for row in rows)
    else:
        born = of.born[place_after(of.born, after) :]
        indexed = ((row.seq, row.new.task.id, row.new.polarity, row.vector) for row in born)
    vectored = ((seq, task_id, how, vector) for seq, task_id, how, vector in indexed if vector is not None)
    found = list(islice(vectored, limit))
    mark = found[-1][0] if found and len(found) == limit else of.mark
    dimension = len(found[0][3]) // 2 if found else dimension
    data, sound = vectors.unpacked(b"".join(vector for *_, vector in found), dimension)
    batch = VectorBatch(
        np.array([seq for seq, *_ in found], dtype=np.int64)[sound],
        np.array([task_key(task_id) for _, task_id, *_ in found], dtype=np.int64)[sound],
        np.array([how == "success" for _, _, how, _ in found], dtype=np.bool_)[sound],
        data[sound],
    )
    endings = of.endings[unit]
    first, last = (bisect_right(endings, number, key=lambda ending: ending[0]) for number in (after, mark))
    ended = [(seq, number) for number, seq in endings[first:last]]
    more = bool(found) and len(found) == limit
    return Changes(mark, batch, np.array(ended, dtype=np.int64).reshape(-1, 2), more)


def replace_vector(of: Timeline, unit: Unit, seq: int, vector: bytes) -> None:
    """Give a row from here another packed vector."""
    row = numbered(of.rows, seq) if unit == "item" else numbered(of.born, seq)
    if row is not None:
        row.vector = vector


def texts(of: Timeline, unit: Unit, *, after: int, limit: int) -> list[tuple[int, str]]:
    """See ``BankStore``."""
    found = of.under.texts(unit, after=after, limit=limit)
    own: Iterable[tuple[int, str]]
    if unit == "item":
        own = ((row.seq, item_text(row.new)) for row in of.rows[place_after(of.rows, after) :])
    else:
        born = of.born[place_after(of.born, after) :]
        own = ((row.seq, row.new.task.instruction) for row in born if row.vector is not None)
    return [*found, *islice(own, limit - len(found))]


def matches(of: Timeline, unit: Unit, seqs: Sequence[int], at: int | None = None) -> dict[int, Match]:
    """See ``BankStore``."""
    at = of.reached(at)
    below = of.under.matches(unit, [seq for seq in seqs if seq <= of.under.at], at)
    patched = {seq: _from_below(of, unit, seq, match, at) for seq, match in below.items()}
    own = {seq: _own(of, unit, seq, at) for seq in seqs if seq > of.under.at}
    return {seq: match for seq, match in (patched | own).items() if match is not None}


def _own(of: Timeline, unit: Unit, seq: int, at: int) -> Match | None:
    if unit == "item":
        row = numbered(of.rows, seq)
        item = of.own_item(row.new.id, at) if row is not None and row.lives(at) else None
        if row is None or item is None:
            return None
        return Match(row.provenance.experience_id, row.provenance.task_id, row.instruction, (item,))
    born = numbered(of.born, seq)
    if born is None or born.vector is None or not born.seq <= at < born.unindexed:
        return None
    task = born.new.task
    return Match(born.new.id, task.id, task.instruction, of.own_items(born, at))


def _from_below(of: Timeline, unit: Unit, seq: int, match: Match, at: int) -> Match | None:
    if at <= of.under.at:
        return match
    if unit == "experience":
        if of.unindexed.get(seq, at + 1) <= at:
            return None
        items = of.patched(match.items, seq, at)
    else:
        rows = of.known.get(match.items[0].id)
        if rows is None:
            return match
        row = numbered(rows, seq)
        if row is None or not row.lives(at):
            return None
        items = tuple(filter(None, [of.own_item(match.items[0].id, at)]))
    return Match(match.experience_id, match.task_id, match.instruction, items)
