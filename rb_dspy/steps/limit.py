"""A limit of lessons below the usual one, told to who writes them: else the first are kept, and not the best."""

from __future__ import annotations

import re
from typing import Any

import dspy

from rb_dspy.steps.player import asks, takes_more

_FIELD = "memory_items"
_WORDS = ("one", "two", "three", "four", "five")
_USUAL = re.compile(r"\bone to (?:three|five)(\s+memory) items\b")


def limited(predict: Any, most: int, usual: int) -> dict[str, Any]:
    """What a call of ``predict`` takes besides its inputs, so that it asks for ``most`` lessons: nothing for the usual.

    Nor for a module of somebody else's, whose prompts are its own.
    """
    if most >= usual or not takes_more(predict):
        return {}
    signature = asks(predict).signature
    return {"signature": _limited(signature, most)} if _FIELD in signature.output_fields else {}


def _limited(signature: Any, most: int) -> Any:
    """``signature`` as it is compiled, and with the limit where it tells of lessons, and in its field's type."""
    several = f"one to {_WORDS[most - 1]}"
    if most == 1:
        wanted, described = r"one\1 item", "just one, the most useful"
        told = "Only one memory item is kept here: write no other, and choose the most useful."
    else:
        wanted, described = rf"{several}\1 items", f"{several}, without overlap, the most useful first"
        told = f"Only {_WORDS[most - 1]} memory items are kept here: write no more, the most useful first."
    kind = signature.output_fields[_FIELD].annotation
    place = list(signature.output_fields).index(_FIELD)
    field = dspy.OutputField(desc=described, min_length=1, max_length=most)
    made = signature.delete(_FIELD).insert(place, _FIELD, field, kind)
    return made.with_instructions(f"{_USUAL.sub(wanted, signature.instructions)}\n\n{told}")
