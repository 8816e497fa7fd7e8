"""Memory drafts in an answer are read each by itself: one that cannot be read costs no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_origin

import pydantic

from rb_dspy.signatures import MemoryDraft
from rb_dspy.signatures.draft import plain_keys


def holds_drafts(annotation: Any) -> bool:
    """Whether it is a list of memory drafts, of any kind."""
    if get_origin(annotation) is not list:
        return False
    (kind,) = get_args(annotation)
    return isinstance(kind, type) and issubclass(kind, MemoryDraft)


def read_drafts(read: Callable[[Any], Any], given: Any) -> Any:
    """``read(given)``; what cannot be read is taken for missing, where at least one draft can be read as it is.

    One draft is a list of one. A field that is missing is empty (see ``MemoryDraft``). So is each field of what is no
    object, a draft that says nothing, which no bank admits. Raises what ``read`` raises.
    """
    if isinstance(given, dict) and MemoryDraft.model_fields.keys() - {"description"} <= plain_keys(given).keys():
        given = [given]
    try:
        return read(given)
    except pydantic.ValidationError as exc:
        found = exc.errors(include_url=False, include_context=False, include_input=False)
        places: list[tuple[Any, ...]] = [error["loc"] for error in found]
        unsound = {place[0] for place in places if place}
        if not isinstance(given, list) or len(unsound) == len(given):
            raise
        mended = list(given)
        for number, *field in places:
            # Without a place in it, it is the draft itself that is no object.
            fields = plain_keys(mended[number]) if field else {}
            mended[number] = {name: value for name, value in fields.items() if name != field[0]}
        return read(mended)


def without_last(given: Any) -> list[Any]:
    """Drafts that were cut off, the last in its middle, which is given back as what cannot be read; empty where there
    is no other.
    """
    return [*given[:-1], None] if isinstance(given, list) and given[1:] else []
