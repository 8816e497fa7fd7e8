"""Records made of values that were checked before."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import pydantic

Record = TypeVar("Record", bound=pydantic.BaseModel)

_set = object.__setattr__


def whole(kind: type[Record], values: dict[str, object]) -> Record:
    """A frozen record with all of its fields, by name, as they are: a third of the time that checking them takes."""
    made = kind.__new__(kind)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", _fields(kind))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


@cache
def _fields(kind: type[pydantic.BaseModel]) -> set[str]:
    """One set for all: a frozen record never changes it, and a copy of a record copies it."""
    return set(kind.model_fields)
