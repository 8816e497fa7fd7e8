"""What a memory system does with other items in the write that learns: it retires them, and says whether they helped.

Both are entries of the journal. An item is retired under the number of the entry that appends the experience, so the
bank has no state with one but not the other. When the experience is removed, both are undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rb_dspy.bank.reading import HELPED, levels_of
from rb_dspy.bank.store.base import Entry, ItemRow
from rb_dspy.bank.store.overlay import Reader
from rb_dspy.protocols import Vectors
from rb_dspy.schema import LEVELS, Mark

_OWNER = LEVELS.index("owner")

_LISTED = 40
"""Most characters of an id in a note: a memory system may take it from the answer of a language model."""


def retirable(reader: Reader, ids: Collection[str], *, level: int, again: Collection[str]) -> tuple[list[ItemRow], str]:
    """The live rows of those items that an experience of ``level`` may retire, and a note about the others.

    An item stays if it is the owner's, or is trusted more than the experience, or is learned ``again`` by it. Ids that
    are not live, because others were faster, are skipped.
    """
    rows = reader.items(ids=ids)
    levels = levels_of(reader, {row.id for row in rows})
    stays = {id for id in levels if id in again or levels[id] >= _OWNER or levels[id] > level}
    why = (f"{id} ({'learned again' if id in again else LEVELS[levels[id]]})" for id in ids if id in stays)
    return [row for row in rows if row.id not in stays], f"not retired: {', '.join(why)}" if stays else ""


def of_shown(marks: Mapping[str, Mark], shown: Collection[str]) -> tuple[dict[str, Mark], str]:
    """The marks of what was shown, and a note about the others."""
    others = [id[:_LISTED] for id in marks if id not in shown]
    note = f"not marked, because it was not shown: {', '.join(others)}" if others else ""
    return {id: value for id, value in marks.items() if id in shown}, note


def retired_by(reader: Reader, experiences: Collection[str]) -> list[Entry]:
    """The entries about items that these experiences retired."""
    seqs = {entry.seq for entry in reader.journal(subjects=experiences) if entry.kind == "append"}
    return reader.journal(seqs=seqs, kinds=["retire"])


def said_by(reader: Reader, experience: str) -> dict[str, str]:
    """What was said of items in this experience, by id."""
    return {entry.subject: entry.note for entry in reader.journal(item=(HELPED, experience), kinds=["mark"])}


def returning(reader: Reader, experiences: Collection[str], gone: Collection[str]) -> Iterator[tuple[str, Vectors]]:
    """The items that these experiences retired and that come back without them, with their vectors.

    Those in ``gone`` do not, nor those that are there again, nor those that were removed since.
    """
    for entry in retired_by(reader, experiences):
        rows = reader.items(ids=[entry.subject], ended=True)
        if entry.subject not in gone and rows and all(row.ended and row.ended <= entry.seq for row in rows):
            vectors = reader.vectors("item", [row.seq for row in rows if row.ended == entry.seq])
            yield from ((entry.subject, vector) for vector in [*vectors.values()][:1])
