"""Names for the code of an evaluation: its environments, judge, reranker and own steps, for the stored plan.

A name is equal in every process that runs the same code with the same state, and differs otherwise: a function counts
with its code, its defaults, what it closes over, and the user's functions and classes that it mentions; an object with
its class and its state. Code of installed packages counts by name only.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import dspy
import pydantic

from rb_dspy.jsonl import digest

UNNAMED = "unnamed: "
"""Beginning of the name of something whose state cannot be read."""

_INNER = ("__func__", "fget", "func")
"""Where a static method, a property or a cached property has its function."""
_MODULE_STATE = ("callbacks", "history", "_compiled")
"""Attributes of a ``dspy.Module`` that change when it is used."""


class _Unnamed(Exception):
    """A part has no content that another process could compare."""


def identity(value: Any) -> str:
    """The name of a function, class or object, with a digest of its code and state.

    An object with a text in its attribute ``id`` is named by its class and that. An object whose state cannot be read
    (a connection, a lock) gets a name that begins with ``UNNAMED`` and holds only for this object.
    """
    named = value if hasattr(value, "__qualname__") else type(value)
    label = f"{named.__module__}.{named.__qualname__}"
    try:
        content = json.dumps(_content(value, {}), sort_keys=True)
    except _Unnamed as exc:
        return f"{UNNAMED}{label}, with {exc}, at 0x{id(value):x}"
    return f"{label} {digest(content)}"


def stable(plan: object) -> str:
    """The ``digest`` of a plan, without what holds only in this process."""
    return digest(re.sub(rf"({UNNAMED}[^\"]*), at 0x[0-9a-f]+", r"\1", json.dumps(plan, sort_keys=True)))


def _content(value: Any, seen: dict[int, Any]) -> Any:
    """What distinguishes ``value``, as JSON. ``seen`` keeps what was visited, so that no id is used twice."""
    if value is None or value is ... or isinstance(value, str | bytes | bool | int | float | complex | PurePath):
        return repr(value)
    if id(value) in seen:
        return f"again {list(seen).index(id(value))}"
    seen[id(value)] = value
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(_content(each, seen) for each in value)]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(json.dumps(_content(each, {})) for each in value)]
    if isinstance(value, Mapping):
        return ["map", *sorted([json.dumps(_content(key, {})), _content(each, seen)] for key, each in value.items())]
    if isinstance(value, types.CodeType):
        return [value.co_code.hex(), value.co_names, value.co_varnames, _content(value.co_consts, seen)]
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, types.MethodType):
        return [_content(value.__func__, seen), _content(value.__self__, seen)]
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, type):
        return _class(value, seen)
    return _object(value, seen)


def _function(function: types.FunctionType, seen: dict[int, Any]) -> list[Any]:
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    parts = [_content(each, seen) for each in (function.__defaults__, function.__kwdefaults__, cells)]
    if _is_own(function):
        mentioned = {name: function.__globals__[name] for name in _names(function.__code__) & {*function.__globals__}}
        own = {name: each for name, each in mentioned.items() if isinstance(each, types.FunctionType | type)}
        parts += [_content(function.__code__, seen), _content({n: e for n, e in own.items() if _is_own(e)}, seen)]
    return [function.__module__, function.__qualname__, *parts]


def _class(cls: type, seen: dict[int, Any]) -> list[Any]:
    parts: list[Any] = [f"{cls.__module__}.{cls.__qualname__}"]
    for each in filter(_is_own, cls.__mro__):
        for name, value in sorted(vars(each).items()):
            code = next((getattr(value, inner) for inner in _INNER if hasattr(value, inner)), value)
            if isinstance(code, types.FunctionType) or not name.startswith(("__", "_abc_")):
                with suppress(_Unnamed):  # such as a lock: no setting
                    parts.append([name, _content(code, seen)])
    return parts


def _object(value: Any, seen: dict[int, Any]) -> list[Any]:
    kind = _content(type(value), seen)
    if isinstance(value, dspy.BaseLM):
        return [kind, str(value.model)]
    if isinstance(getattr(value, "id", None), str):
        return [kind, value.id]
    if isinstance(value, pydantic.BaseModel):
        return [kind, value.model_dump_json()]
    if isinstance(value, dspy.Predict):
        return [kind]  # the plan has its prompts
    if isinstance(value, dspy.Module):
        return [kind, _content({n: each for n, each in vars(value).items() if n not in _MODULE_STATE}, seen)]
    try:
        reduced = value.__reduce_ex__(4)  # its state as pickle sees it
    except Exception:  # noqa: BLE001 (pickle's errors are of many types)
        raise _Unnamed(f"state of type {type(value).__qualname__}") from None
    parts = (reduced,) if isinstance(reduced, str) else reduced
    return [kind, *(_content(list(each) if isinstance(each, Iterator) else each, seen) for each in parts)]


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _names(code: types.CodeType) -> set[str]:
    """The global names in ``code`` and in the functions inside it."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_own(value: Any) -> bool:
    """Whether a function or class is the user's, not of Python or an installed package."""
    root = (value.__module__ or "").partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return False
    file = getattr(sys.modules.get(value.__module__), "__file__", None) or ""
    return root not in ("rb_dspy", "dspy") and not {"site-packages", "dist-packages"} & {*PurePath(file).parts}
