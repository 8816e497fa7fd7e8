"""Look up embedders, environments, memory systems and curators by name, through entry points of installed packages.

Groups: ``rb_dspy.embedders`` (a callable without arguments that returns an ``Embedder``), ``rb_dspy.environments``
(a callable without arguments that returns an ``EnvironmentFamily``), ``rb_dspy.memories`` (a ``MemoryFactory``) and
``rb_dspy.curators`` (a callable without arguments that returns a ``Curator``).
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, MissingDependency, RBError, describe_error
from rb_dspy.protocols import Embedder, EnvironmentFamily

EMBEDDER = ("id", "dimension", "embed")
_FAMILY = ("check", "templates", "tasks", "make")  # the others are for baselines only
_ANY_MODEL = "sentence-transformers"
"""The entry point that takes the name of any model."""


def environment_names() -> list[str]:
    """The installed environment families."""
    return sorted(_points("rb_dspy.environments").names)


@functools.cache
def environment_family(name: str) -> EnvironmentFamily:
    """Import the family ``name``. Its dependencies are checked only when it is used.

    Raises:
        InputError: No installed family has this name.
        MissingDependency: The family cannot be imported or created.
    """
    if name not in environment_names():
        raise InputError(
            f"unknown environment {name!r}; installed: {', '.join(environment_names())}; add your own with an entry"
            " point in rb_dspy.environments (see CONTRIBUTING.md), or pass ReasoningBank(environments=...)"
        )
    family: EnvironmentFamily = _load("environment", name, _FAMILY)
    return family


@functools.cache
def family_attribute(env: str, name: str, default: Any) -> Any:
    """Return an optional attribute of a family, or ``default`` if the family is not installed."""
    try:
        return getattr(environment_family(env), name, default)
    except RBError:
        return default


@functools.cache
def embedder(name: str) -> Embedder:
    """Return the embedder ``name``, created once per process; any other name is a sentence-transformers model.

    Raises:
        InputError: The name is neither an embedder, a folder nor OWNER/MODEL, and resembles an embedder's.
        MissingDependency: The embedder cannot be imported or created.
    """
    installed = _points("rb_dspy.embedders").names
    loaded: Embedder
    if name in installed:
        loaded = _load("embedder", name, EMBEDDER)
        return loaded
    near = difflib.get_close_matches(name.casefold(), sorted(installed - {_ANY_MODEL}), n=1)
    if near and "/" not in name and not Path(name).is_dir():
        raise InputError(
            f"unknown embedder {name!r}; did you mean {near[0]!r}? Otherwise give a folder, or OWNER/MODEL of the"
            " Hugging Face hub"
        )
    loaded = _load("embedder", _ANY_MODEL, EMBEDDER, name)
    return loaded


def memory_names() -> list[str]:
    """The installed memory systems."""
    return sorted(_points("rb_dspy.memories").names)


def memory_name(name: str) -> str:
    """The name of an installed memory system, perhaps with curators (``bank+supersede``); ``-`` and ``_`` are the same.

    Raises:
        InputError: No installed memory system, or curator, has this name.
    """
    first, *curators = name.split("+")
    parts = [_installed("memory", first, memory_names())]
    return "+".join([*parts, *(_installed("curator", each, curator_names()) for each in curators)])


def memory(name: str, base: object) -> Any:
    """Make the memory system ``name`` for a program; ``base`` is a ``rb_dspy.memories.Base``.

    Raises:
        InputError: No installed memory system has this name.
        MissingDependency: It cannot be imported or made.
    """
    name = _installed("memory", name, memory_names())
    return _load("memory", name, ("retrieve", "teach", "curate", "signal"), base)


def curator_names() -> list[str]:
    """The installed curators, which go with any memory system."""
    return sorted(_points("rb_dspy.curators").names)


def curator(name: str) -> Any:
    """Make the curator ``name``. Errors are those of ``memory``."""
    return _load("curator", _installed("curator", name, curator_names()), ("__call__",))


def _installed(kind: str, name: str, installed: Sequence[str]) -> str:
    same = [each for each in installed if each.replace("-", "_") == name.strip().replace("-", "_")]
    if not same:
        raise InputError(f"unknown {kind} {name!r:.60}; installed: {', '.join(installed)}")
    return name if name in same else same[0]


def lacks(value: object, names: Sequence[str]) -> list[str]:
    """Return the attributes that ``value`` lacks. Properties are not read, because that may load a model."""
    return [name for name in names if not hasattr(type(value), name) and not hasattr(value, name)]


def _load(kind: str, name: str, attributes: Sequence[str], *arguments: object) -> Any:
    group = {"memory": "memories"}.get(kind, f"{kind}s")
    entry = _points(f"rb_dspy.{group}")[name]
    package = entry.value if entry.dist is None else entry.dist.name
    try:
        made = entry.load()(*arguments)
        missing = lacks(made, attributes)
    except RBError:
        raise
    except Exception as exc:  # another package's code may raise anything
        raise MissingDependency(
            f"the {kind} {name!r} of {package} cannot be used: {describe_error(exc, 200)}; install what it needs, or"
            " choose another"
        ) from exc
    if missing:
        raise MissingDependency(
            f"the {kind} {name!r} of {package} cannot be used: {type(made).__name__} has no {', '.join(missing)}"
        )
    return made


def _points(group: str) -> EntryPoints:
    """The entry points of a group. The search takes longer than many a task, so it is done once for each path."""
    return _found(group, tuple(sys.path))


@functools.cache
def _found(group: str, path: tuple[str, ...]) -> EntryPoints:  # noqa: ARG001 (a part of the key)
    return entry_points(group=group)
