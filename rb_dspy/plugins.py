"""Embedders and environment families by name, through entry points: others add theirs by installing a package.

Groups: ``rb_dspy.embedders`` (a callable without arguments, or taking the model's name) and ``rb_dspy.environments``
(a callable without arguments that returns an ``EnvironmentFamily``).
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, MissingDependency, RBError
from rb_dspy.protocols import Embedder, EnvironmentFamily, SaysFolds, SaysWhatTells
from rb_dspy.wording import one_line

EMBEDDER = ("id", "dimension", "embed")
_OF_ANY_NAME = "sentence-transformers"
"""Is given the name of a model."""
_FAMILY = ("check", "templates", "tasks", "make")  # the others are for baselines only
_TELLS = ("instruction_tells_all",)
_FOLDS = ("folds", "fold")


def environment_names() -> list[str]:
    """The installed environment families."""
    return sorted(entry_points(group="rb_dspy.environments").names)


@functools.cache
def environment_family(name: str) -> EnvironmentFamily:
    """The family called ``name``; it is imported now, but what it needs is checked only when it is used.

    Raises ``MissingDependency`` for an installed one that cannot be imported or made, whatever it says.
    """
    found = entry_points(group="rb_dspy.environments", name=name)
    if not found:
        raise InputError(
            f"unknown environment {name!r}; installed: {', '.join(environment_names())}; one of your own comes with a"
            " package (entry point in rb_dspy.environments, see CONTRIBUTING.md), or in Python as"
            " ReasoningBank(environments=...)"
        )
    family: EnvironmentFamily = _made(found, "environment", _FAMILY)
    return family


@functools.cache
def instruction_tells_all(name: str) -> bool:
    """Whether instructions tell the tasks of the environment ``name`` apart; True where no family says otherwise.

    That is the safe side: tasks that look alike then count as such, and no split puts them on two sides. A name that is
    not installed may be one of the caller's own factory.
    """
    if name not in environment_names():
        return True
    family: Any = environment_family(name)
    if lacks(family, _TELLS):
        return True
    says: SaysWhatTells = family
    return says.instruction_tells_all


@functools.cache
def says_folds(name: str) -> SaysFolds | None:
    """The family ``name`` where it says which folds its tasks fall into; None of others, and of one not installed."""
    if name not in environment_names():
        return None
    family: Any = environment_family(name)
    return None if lacks(family, _FOLDS) else family


@functools.cache
def embedder(name: str) -> Embedder:
    """The embedder called ``name``, loaded once a process; any other name is taken as a sentence-transformers model.

    Raises ``MissingDependency`` for an installed one that cannot be imported or made, whatever it says, ``InputError``
    for what is nearly the name of one, and neither a folder nor OWNER/MODEL as on the Hugging Face hub.
    """
    found = entry_points(group="rb_dspy.embedders", name=name)
    if found:
        made: Embedder = _made(found, "embedder", EMBEDDER)
        return made
    known = sorted(entry_points(group="rb_dspy.embedders").names - {_OF_ANY_NAME})
    near = difflib.get_close_matches(name.casefold(), known, n=1)
    if near and "/" not in name and not Path(name).is_dir():
        raise InputError(
            f"unknown embedder {name!r}; did you mean {near[0]!r}? installed: {', '.join(known)}; of the Hugging Face"
            " hub OWNER/MODEL, else a folder"
        )
    of_any_name = entry_points(group="rb_dspy.embedders", name=_OF_ANY_NAME)
    other: Embedder = _made(of_any_name, "embedder", EMBEDDER, name)
    return other


def lacks(given: object, parts: Sequence[str]) -> list[str]:
    """Which ``parts`` it has not. They are asked for one by one, since from Python 3.12 on ``isinstance`` sees nothing
    of what a wrapper hands on.
    """
    return [part for part in parts if not hasattr(given, part)]


def _made(found: EntryPoints, what: str, parts: Sequence[str], *given: str) -> Any:
    first = next(iter(found))
    package = first.dist.name if first.dist is not None else first.value
    done = "imported"
    try:
        factory = first.load()
        done = "made"
        made = factory(*given)
        done = "used"
        missing = lacks(made, parts)
    except RBError:
        raise
    except Exception as exc:  # the code is another package's, which may raise anything
        said = one_line(exc, 200, kind=not isinstance(exc, ImportError))
        raise MissingDependency(
            f"the {what} {first.name!r} of {package} cannot be {done}: {said}; install what it needs, or choose another"
        ) from exc
    if missing:
        raise MissingDependency(
            f"the {what} {first.name!r} of {package} cannot be used: {type(made).__name__} has no {', '.join(missing)};"
            " tell its maker, or choose another"
        )
    return made
