"""Names for the code of an evaluation: its environments, judge, reranker and own steps, for the stored plan.

A name is equal in every process that runs the same code with the same state, and differs otherwise. The code is the
whole file of a function or class, so an edit elsewhere in that file gives another name too; where there is no file, as
in a notebook, it is the code with the functions that it calls. rb_dspy's own code counts by its version.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from rb_dspy.jsonl import digest

UNNAMED = "unnamed: "
"""Beginning of the name of something whose state cannot be read."""

_MODULE_STATE = ("callbacks", "history", "_compiled")
"""Attributes of a ``dspy.Module`` that change when it is used."""


def identity(value: Any) -> str:
    """The name of a function, class or object, with a digest of its code and state.

    An object with a text in its attribute ``id`` is named by its class and that. An object whose state cannot be read
    (a connection, a lock) gets a name that begins with ``UNNAMED`` and holds only for this object.
    """
    label = _label(value if hasattr(value, "__qualname__") else type(value))
    try:
        return f"{label} {digest(_content(value))}"
    except (TypeError, ValueError, RecursionError, OSError) as exc:
        return f"{UNNAMED}{label}, with {exc}, at 0x{id(value):x}"


def stable(plan: object) -> str:
    """The ``digest`` of a plan, without what holds only in this process."""
    return digest(re.sub(rf"({UNNAMED}[^\"]*), at 0x[0-9a-f]+", r"\1", json.dumps(plan, sort_keys=True)))


def _content(value: Any, above: tuple[int, ...] = ()) -> Any:
    """What distinguishes ``value``, as JSON. ``above`` are the ids of what it is a part of."""
    if value is None or value is ... or isinstance(value, str | bytes | int | float | complex):
        return repr(value)
    if id(value) in above:
        return "itself"
    inner = partial(_content, above=(*above, id(value)))
    if isinstance(value, list | tuple):
        return [inner(each) for each in value]
    if isinstance(value, set | frozenset | dict):
        return sorted(json.dumps(inner(each)) for each in (value.items() if isinstance(value, dict) else value))
    if isinstance(value, types.CodeType):
        return [value.co_code.hex(), value.co_names, inner(value.co_consts)]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [_label(value), *_code(value, inner), inner([value.__defaults__, value.__kwdefaults__, cells])]
    if isinstance(value, type):
        return [[_label(each), *_code(each, inner)] for each in value.__mro__]
    if isinstance(value, dspy.BaseLM):
        state: Any = str(value.model)
    elif isinstance(getattr(value, "id", None), str):
        state = value.id
    elif isinstance(value, dspy.Predict):
        state = None  # the plan has its prompts
    elif isinstance(value, dspy.Module):
        state = {name: each for name, each in vars(value).items() if name not in _MODULE_STATE}
    else:
        try:
            reduced = value.__reduce_ex__(4)  # as pickle sees it; the items of a list or dict are iterators
        except Exception:  # noqa: BLE001 (pickle's errors are of many types)
            raise TypeError(f"state of type {type(value).__qualname__}") from None
        parts = (reduced,) if isinstance(reduced, str) else reduced
        state = [list(each) if isinstance(each, Iterator) else each for each in parts]
    return [inner(type(value)), inner(state)]


def _code(value: Any, inner: Any) -> list[Any]:
    """The file of a function or class; also the code of a function, because one line can have two lambdas."""
    root = str(value.__module__).partition(".")[0]
    if root == "rb_dspy":
        return []
    file = getattr(sys.modules.get(value.__module__), "__file__", None)
    source = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else ""
    if isinstance(value, types.FunctionType):
        used = [] if source else [value.__globals__.get(name) for name in value.__code__.co_names]
        return [source, inner(value.__code__), inner([each for each in used if isinstance(each, types.FunctionType)])]
    members = {} if source or root == "builtins" else vars(value)
    functions = {name: getattr(each, "__func__", getattr(each, "fget", each)) for name, each in members.items()}
    plain = {name: each for name, each in functions.items() if isinstance(each, types.FunctionType | str | int | float)}
    return [source, inner(plain)]


def _label(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
