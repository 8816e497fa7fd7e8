"""What a predictor answered. A module of somebody else's may stand in its place, so no field is taken on trust."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

import dspy
import pydantic
from pydantic_core import to_json

from rb_dspy.backbones.lenient import read_drafts
from rb_dspy.errors import ConfigError, UnparseableOutput
from rb_dspy.schema import MemoryDraft

T = TypeVar("T")
D = TypeVar("D", bound=MemoryDraft)

_MOST_SHOWN = 80


def words(said: object, name: str) -> str:
    """The text in a field: somebody's own signature may have it typed, which is JSON then, or lack it."""
    given = getattr(said, name, None)
    if given is None:
        return ""
    return (given if isinstance(given, str) else to_json(given, fallback=str).decode()).strip()


def check_has(said: object, name: str, who: str) -> None:
    """Raise ``ConfigError`` for what has no such field: a module of another signature, which gives none on any task."""
    if not hasattr(said, name):
        fields = ", ".join(map(str, said.keys())) if isinstance(said, dspy.Prediction) else type(said).__name__
        given = fields or "nothing"
        raise ConfigError(
            f"{who}'s module gave {given}, and no {name!r}; give its signature an output field of that name"
        )


def choice(said: object, name: str, kind: Any, expected: str) -> Any:
    """A field as ``kind``. Raises ``UnparseableOutput`` where it is none: ``expected`` says what it has to be."""
    given = getattr(said, name, None)
    try:
        return _reader(kind).validate_python(given)
    except pydantic.ValidationError:
        raise _unlike(name, given, expected) from None


def drafts(said: object, kind: type[D]) -> list[D]:
    """The field ``memory_items``, of which what cannot be read costs no other. Raises like ``choice``."""
    given = getattr(said, "memory_items", None)
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = [_fields(each, kind) for each in given]
    try:
        found: list[D] = read_drafts(_reader(list[kind]).validate_python, given)  # type: ignore[valid-type]
    except pydantic.ValidationError:
        raise _unlike("memory_items", given, "a list of lessons with title, description and content") from None
    return found


def _fields(given: Any, kind: type) -> Any:
    return given.model_dump() if isinstance(given, pydantic.BaseModel) and not isinstance(given, kind) else given


@lru_cache
def _reader(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


def _unlike(name: str, given: object, expected: str) -> UnparseableOutput:
    shown = " ".join(repr(given).split())
    return UnparseableOutput(f"{name} is {shown[:_MOST_SHOWN]}{'…' * (len(shown) > _MOST_SHOWN)}; expected {expected}")
