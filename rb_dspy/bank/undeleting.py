"""Bring back what a delete or a rollback removed, as it was."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from rb_dspy.bank.admission import NewExperience, corrected_id, now, unpack_rollouts
from rb_dspy.bank.reading import kept_marks, latest, row_levels
from rb_dspy.bank.retiring import retired_by, returning, said_by
from rb_dspy.bank.store.base import HELD, Entry, ExperienceRow, ItemRow
from rb_dspy.bank.store.overlay import Reader, Writer
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import ExperienceDraft


def undeleted(reader: Reader, row: ExperienceRow, note: str) -> NewExperience:
    """A removed experience, to be stored again with the items that it lost, as a correction is: under the next id.

    Its items have the level and marks of its own rows: another experience may have given the same item since.
    """
    held = unpack_rollouts(row.payload, f"experience {row.id}")
    items = {item.id: item for item in reader.items(experiences={row.seq}, ended=True) if item.ended == row.ended}
    levels, uses = row_levels(reader, [row, *items.values()]), reader.uses(experiences={row.seq})
    draft = ExperienceDraft(
        **dict(held) | {"reward": row.reward},
        run_id=row.run_id,
        shown=tuple(use.subject for use in uses),
        cited=tuple(use.subject for use in uses if use.cited),
        retired={entry.subject: entry.note for entry in retired_by(reader, [row.id])},
        marks=said_by(reader, row.id),
    )
    places = [(corrected_id(row.id), row.id, row.seq), *((item.id, item.id, item.seq) for item in items.values())]
    new_row = row._replace(id=corrected_id(row.id), ended=None, level=levels[row.seq])
    return NewExperience(
        draft,
        new_row,
        tuple(item._replace(ended=None, level=levels[item.seq]) for item in items.values()),
        held=frozenset(item.id for item in items.values() if levels[item.seq] == HELD),
        marks=tuple(
            (new, name, value) for new, old, seq in places for name, value in kept_marks(reader, old, seq).items()
        ),
        stated=True,
        back=note,
    )


def bring_back(writer: Writer, experiences: Collection[str], gone: Collection[str], note: str) -> None:
    """Bring back what these experiences retired, without what is in ``gone`` and what lost its own experience."""
    for id, vector in [*returning(writer, experiences, gone)]:
        with suppress(InputError):
            undelete_item(writer, id, vector, note, "")


def undelete_item(writer: Writer, id: str, vector: Vectors, note: str, place: str) -> None:
    """Add the rows of an item again that its removal ended. Raises ``InputError`` if their experiences are removed."""
    rows = writer.items(ids=[id], ended=True)
    givers = {row.seq: row.id for row in writer.experiences(seqs={row.experience for row in rows}, ended=True)}
    if any(row.ended is None for row in rows):
        return  # others were faster
    last_end, levels = max(row.ended or 0 for row in rows), row_levels(writer, rows)
    back, since = dict[int, ItemRow](), list[int]()
    for row in rows:
        giver = latest(writer, givers[row.experience])
        if giver and giver.ended is None and row.ended == last_end:
            back[giver.seq] = row._replace(ended=None, experience=giver.seq, level=levels[row.seq])
            since.append(row.seq)
    if not back:
        giver_id = givers[max(givers)]
        raise InputError(f"{place}: item {id} was removed with its experience; undelete that, {giver_id}")
    marks = kept_marks(writer, id, min(since))
    last = writer.allocate(len(back) + len(marks))
    first = last - len(back) - len(marks)
    new = [row._replace(seq=seq) for seq, row in enumerate(back.values(), first + 1)]
    entries = [Entry(first + len(new), id, "undelete", (), note, now())]
    entries += [
        Entry(seq, id, "mark", (name,), marks[name], now()) for seq, name in enumerate(marks, first + len(new) + 1)
    ]
    writer.add(items=new, vectors=[("item", row.seq, vector) for row in new], entries=entries)
