"""What was stored of experiences, put together when it is looked at: few who append many look at all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from rb_dspy.bank.parts import NewExperience, Placed
from rb_dspy.bank.records import whole
from rb_dspy.schema import Experience, MemoryItem, Provenance


class Stored(Sequence[Experience]):
    """Experiences as a store now reads them. It equals any sequence of the same experiences."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._those: list[Experience | tuple[NewExperience, Placed]] = []

    def add(self, batch: Iterable[NewExperience], placed: Iterable[Placed | Experience]) -> None:
        """Of each: where it was placed, or what is stored. Vectors of ``batch`` stay in memory as long as this does."""
        for new, where in zip(batch, placed, strict=True):
            self._those.append((new, where) if isinstance(where, Placed) else where)

    @overload
    def __getitem__(self, place: int) -> Experience: ...

    @overload
    def __getitem__(self, place: slice) -> list[Experience]: ...

    def __getitem__(self, place: int | slice) -> Experience | list[Experience]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        found = self._those[place]
        if isinstance(found, tuple):
            found = self._those[place] = stored(found[0], self._scope, found[1])
        return found

    def __len__(self) -> int:
        return len(self._those)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} stored experiences>"


def stored(new: NewExperience, scope: str, where: Placed | Experience) -> Experience:
    """``new`` as the store would now read it, without reading it again: what was placed shares no item with others."""
    if not isinstance(where, Placed):
        return where
    source = whole(
        Provenance,
        {
            "experience_id": new.id,
            "task_id": new.task.id,
            "run_id": new.run_id,
            "distiller": new.distiller,
            "origin": new.origin,
        },
    )
    given = (source,)
    items = [
        whole(
            MemoryItem,
            {
                "id": id,
                "scope": scope,
                "seq": number,
                "title": new_item.title,
                "description": new_item.description,
                "content": new_item.content,
                "polarity": new.polarity,
                "provenances": given,
            },
        )
        for number, (id, new_item) in enumerate(zip(where.item_ids, new.items, strict=True), where.seq + 1)
    ]
    return whole(
        Experience,
        {
            "id": new.id,
            "scope": scope,
            "seq": where.seq,
            "task": new.task,
            "trajectories": new.trajectories,
            "verdicts": new.verdicts,
            "items": tuple(items),
            "run_id": new.run_id,
            "note": new.note,
            "origin": new.origin,
            "shown": new.shown,
            "created_at": new.created_at,
        },
    )
