"""What small models write in another form than the one asked for, read where nothing is lost.

One value in the place of a list, a number in a text, ``Success.`` for ``success``; of a list what can be read. Only an
answer that cannot be read as it should be is read so.
"""

from __future__ import annotations

import functools
import json
import re
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args, get_origin

import pydantic

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MARK = re.compile(r"\s*(?:[-*•]|\(?\d+[.):])\s+")
"""Before a line of a list."""
_NOTHING = frozenset(["", "none", "nothing", "empty", "n/a", "null"])


@functools.lru_cache(maxsize=256)
def lenient(signature: Any) -> Any:
    """``signature`` with outputs that take more than their types do, except for texts."""
    loose = signature.with_updated_fields(next(iter(signature.output_fields)))  # a copy
    for field in loose.output_fields.values():
        if field.annotation is not str:
            read = pydantic.BeforeValidator(functools.partial(_read, field.annotation))
            field.annotation = Annotated[field.annotation, read]
    return loose


def _read(kind: Any, given: Any) -> Any:
    """``given`` in a form that ``kind`` takes, if there is one."""
    if kind is str:
        return _text(given)
    if get_origin(kind) is list:
        return _items(get_args(kind)[0], given)
    if _is_model(kind) and isinstance(given, dict):
        fields = {str(name).strip().lower(): each for name, each in given.items() if each is not None}
        types = {name: field.annotation for name, field in kind.model_fields.items()}
        return {name: _read(types.get(name), each) for name, each in fields.items()}
    if isinstance(given, str):
        numbers, words = _NUMBER.findall(given), re.findall(r"\w+", given)
        if kind in (int, float) and len(numbers) == 1:
            return numbers[0]
        if kind is bool and words:
            return words[0]
        if get_origin(kind) is Literal:
            return {str(each).casefold(): each for each in get_args(kind)}.get(" ".join(words).casefold(), given)
    return given


def _items(kind: Any, given: Any) -> Any:
    """A list of what ``kind`` can be read from in ``given``; ``given`` if that is nothing."""
    if isinstance(given, str) and kind in (str, int):
        given = _NUMBER.findall(given) or [given] if kind is int else given.splitlines()
        given = [_MARK.sub("", line, count=1).strip() for line in given]
    if given is None or (isinstance(given, str) and _is_model(kind)):
        return given
    each = given if isinstance(given, list) else [given]
    told = [one for one in each if not (isinstance(one, str) and one.strip(" .()").casefold() in _NOTHING)]
    read, adapter = list[Any](), pydantic.TypeAdapter(kind)
    for one in told:
        with suppress(pydantic.ValidationError):
            read.append(adapter.validate_python(_read(kind, one)))
    return read if read or not told else given


def _text(given: Any) -> str:
    if isinstance(given, dict):
        return ": ".join(map(_text, given.values()))
    if isinstance(given, list):
        return "\n".join(map(_text, given))
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
