"""What tells a part of the caller's own from another across processes: a judge, a reranker, what makes environments.

What a module holds under a name is told by that name, whatever stands in it. Anything else, a lambda, a function or a
class that was made inside another, is told by its bytecode and by the values that it holds; an object by its class and
its attributes. Only names and digests come out of here, and no attribute that holds a key counts.
"""

from __future__ import annotations

import datetime
import enum
import functools
import hashlib
import inspect
import logging
import re
import struct
import sys
import threading
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePath
from typing import Any

import dspy
import numpy as np

from rb_dspy.compile.identity import left_out, sampling
from rb_dspy.compile.state import digest, prompts_of, signature_hash
from rb_dspy.protocols import Embedder

MOST = 100_000
"""Values that are looked at in one part before lists and objects in it are left out; it may hold a whole data set."""
DEEPEST = 60
"""How far values may be inside values."""

_SECRET = re.compile(r"(?:^|_)(?:api_?key|token|secret|password|credentials?|headers?|authorization)(?:_|$)")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Decimal, PurePath, uuid.UUID,
          datetime.date, datetime.time, datetime.timedelta, type(...), range)  # fmt: skip
_WITHOUT_STATE = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event,
                  threading.Semaphore, threading.local)  # fmt: skip
_OF_MODULES = ("callbacks", "history", "_compiled")
"""What dspy keeps on a module and decides nothing."""
_OF_CLASSES = ("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__",
               "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__",
               "__annotations_cache__", "_abc_impl")  # fmt: skip


@dataclass(frozen=True)
class OwnPart:
    """What there is to say of a part."""

    name: str
    """Equal for equal parts, in any process; what cannot be told apart has one name."""
    untold: str = ""
    """What of it nobody can tell from another, in words; empty where all of it is told."""


def part(thing: Any) -> OwnPart:
    """``thing`` by where it is defined, and by what else tells it."""
    look = _Look()
    name, told = look.at(thing), _name(thing)
    if name != told:
        name = f"{told} {digest(name)}"
    return OwnPart(name, look.untold)


class _Look:
    """One look at a thing and at all that it holds. What it gives is made of JSON values."""

    def __init__(self) -> None:
        self.untold = ""
        self._inside_of: list[int] = []
        self._looked_at = 0

    def at(self, thing: Any) -> Any:
        self._looked_at += 1
        if isinstance(thing, _PLAIN):
            return [type(thing).__qualname__, _text(thing)]
        if isinstance(thing, types.ModuleType):
            return thing.__name__
        if _is_defined(thing) and _stands_in_its_module(thing):
            return _name(thing)
        if id(thing) in self._inside_of:
            return ["again", self._inside_of.index(id(thing))]
        if self._looked_at > MOST or len(self._inside_of) > DEEPEST:
            return self._not_told(thing, "holds too much to look at")
        self._inside_of.append(id(thing))
        try:
            return self._inside(thing)
        except Exception:  # noqa: BLE001 (somebody else's attributes may raise anything, and it works all the same)
            return self._not_told(thing, "does not show what it holds")
        finally:
            self._inside_of.pop()

    def _inside(self, thing: Any) -> Any:
        kind = type(thing)
        if isinstance(thing, types.FunctionType):
            return [_name(thing), self._function(thing)]
        if isinstance(thing, types.MethodType):
            return [_name(thing), self.at(thing.__func__), self.at(thing.__self__)]
        if isinstance(thing, functools.partial):
            return ["partial", self.at(thing.func), self._each(thing.args), self._named(thing.keywords)]
        if isinstance(thing, type) and issubclass(thing, dspy.Signature):
            predict = dspy.Predict(thing)
            return [_name(thing), predict.signature.instructions, signature_hash(predict)]
        if isinstance(thing, type):
            return [_name(thing), self._each(thing.__bases__), self._class(thing)]
        if isinstance(thing, enum.Enum):
            return [self.at(kind), thing.name]
        if isinstance(thing, np.ndarray | np.generic) and not thing.dtype.hasobject:
            return [str(thing.dtype), list(thing.shape), hashlib.sha256(thing.tobytes()).hexdigest()]
        if isinstance(thing, dspy.BaseLM):
            settings = self._named(sampling(thing.kwargs) | left_out(thing))
            return [self.at(kind), str(thing.model), str(getattr(thing, "model_type", "")), settings]
        if isinstance(thing, dspy.Module):
            return self._module(thing)
        if kind in (list, tuple):
            return [kind.__name__, self._each(thing)]
        if kind in (set, frozenset):
            return ["set", sorted(digest(self.at(each)) for each in thing)]
        if kind in (dict, types.MappingProxyType):
            return ["dict", [[self.at(key), self.at(value)] for key, value in thing.items() if not _is_secret(key)]]
        if isinstance(thing, re.Pattern):
            return ["pattern", self.at(thing.pattern), thing.flags]
        if isinstance(thing, logging.Logger):
            return ["logger", thing.name]
        if isinstance(thing, _WITHOUT_STATE):
            return kind.__qualname__
        if isinstance(thing, Embedder):
            return [self.at(kind), str(thing.id)]
        return self._object(thing)

    def _module(self, thing: Any) -> Any:
        made_of = [prompts_of(thing), signature_hash(thing)]
        if isinstance(thing, dspy.Predict):  # the rest of it is what optimizers leave there
            return [self.at(type(thing)), made_of, self.at(thing.lm), self._named(thing.config)]
        kept = {name: value for name, value in vars(thing).items() if name not in _OF_MODULES}
        return [self.at(type(thing)), made_of, self._named(kept)]

    def _object(self, thing: Any) -> Any:
        """By class and attributes, or where it keeps things that are none, by what a copy of it is made from."""
        kind = type(thing)
        if _keeps_more(kind):
            return self._reduced(thing)
        slots = {name: getattr(thing, name) for name in _slots(kind) if hasattr(thing, name)}
        held = self._named({**slots, **getattr(thing, "__dict__", {})})
        if isinstance(thing, dict):
            return [self.at(kind), held, [[self.at(key), self.at(value)] for key, value in thing.items()]]
        return [self.at(kind), held, self._each(thing) if isinstance(thing, list | tuple) else []]

    def _reduced(self, thing: Any) -> Any:
        try:
            made_of = thing.__reduce_ex__(2)
        except Exception:  # noqa: BLE001 (it cannot be copied, for whatever reason it gives)
            return self._not_told(thing, "does not show what it holds")
        if isinstance(made_of, str):  # a name under which it is not to be found
            inner = getattr(thing, "__wrapped__", None)
            return self._not_told(thing, "does not show what it holds") if inner is None else self.at(inner)
        return [self.at(list(each) if isinstance(each, Iterator) else each) for each in made_of]

    def _function(self, thing: types.FunctionType) -> Any:
        cells = [self._cell(cell) for cell in thing.__closure__ or ()]
        defaults = [self._each(thing.__defaults__ or ()), self._named(thing.__kwdefaults__ or {})]
        return [self._code(thing.__code__), cells, defaults]

    def _cell(self, cell: Any) -> Any:
        try:
            value = cell.cell_contents
        except ValueError:
            return "empty"  # of a name that is not given yet
        return self.at(value)

    def _code(self, code: types.CodeType) -> Any:
        """All that decides what it does; where it stands in its file does not."""
        consts = [self._code(each) if isinstance(each, types.CodeType) else self.at(each) for each in code.co_consts]
        names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
        counts = [code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount]
        return [code.co_code.hex(), code.co_exceptiontable.hex(), consts, names, counts]

    def _class(self, kind: type) -> Any:
        held: dict[str, Any] = {}
        for name, value in vars(kind).items():
            if isinstance(value, classmethod | staticmethod):
                held[name] = value.__func__
            elif isinstance(value, property):
                held[name] = [value.fget, value.fset, value.fdel]
            elif name not in _OF_CLASSES and not inspect.isdatadescriptor(value):
                held[name] = value
        return self._named(held)

    def _each(self, values: Iterable[Any]) -> list[Any]:
        return [self.at(each) for each in values]

    def _named(self, values: Mapping[str, Any]) -> list[Any]:
        return [[str(name), self.at(values[name])] for name in sorted(values, key=str) if not _is_secret(name)]

    def _not_told(self, thing: Any, why: str) -> str:
        self.untold = self.untold or f"a {type(thing).__qualname__} {why}"
        return _name(type(thing))


def _name(thing: Any) -> str:
    """Where ``thing`` is defined: ``module.qualified name``, of an object that of its class."""
    if isinstance(thing, functools.partial):
        return _name(thing.func)
    kind = thing if _is_defined(thing) else type(thing)
    if isinstance(thing, types.MethodType) and isinstance(thing.__self__, type):  # a class may have it of another
        return f"{thing.__self__.__module__}.{thing.__self__.__qualname__}.{thing.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_defined(thing: Any) -> bool:
    """Whether it says where it is defined, as functions and classes do."""
    try:
        return all(isinstance(getattr(thing, name, None), str) for name in ("__module__", "__qualname__"))
    except Exception:  # noqa: BLE001 (one that hands unknown names on may raise anything)
        return False


def _stands_in_its_module(thing: Any) -> bool:
    """Whether it is found where it says that it is defined, so that its name tells it."""
    if isinstance(thing, types.MethodType):
        return isinstance(thing.__self__, type) and _stands_in_its_module(thing.__self__)
    found: Any = sys.modules.get(thing.__module__)
    try:
        for name in thing.__qualname__.split("."):
            found = getattr(found, name, None)
    except Exception:  # noqa: BLE001 (a module that loads things when they are asked for may raise anything)
        return False
    return found is thing


def _keeps_more(kind: type) -> bool:
    """Whether its objects have room for what is no attribute, as those have that are made in C."""
    base = next((each for each in (dict, list, tuple) if issubclass(kind, each)), object)
    room = len(_slots(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__basicsize__ > base.__basicsize__ + room * _POINTER or kind.__itemsize__ != base.__itemsize__


_POINTER = struct.calcsize("P")


def _slots(kind: type) -> list[str]:
    """The attributes that its objects have a place for."""
    found = []
    for each in kind.__mro__:
        given = vars(each).get("__slots__", ())
        for name in (given,) if isinstance(given, str) else given:
            hidden = name.startswith("__") and not name.endswith("__")
            found.append(f"_{each.__name__.lstrip('_')}{name}" if hidden else name)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _is_secret(name: Any) -> bool:
    return isinstance(name, str) and bool(_SECRET.search(name.lower()))


def _text(value: Any) -> str:
    return str(value) if isinstance(value, PurePath) else repr(value)
