"""Checks of what callers pass: anything unusable is one line, and nothing is stored."""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar, get_args

import numpy as np
import pydantic

from rb_dspy import plugins
from rb_dspy.bank.retrieval import Mode
from rb_dspy.bank.store.base import UNITS
from rb_dspy.errors import InputError
from rb_dspy.protocols import Embedder
from rb_dspy.schema import ExperienceDraft, MemoryDraft, MemoryItem, Task, Trajectory, Verdict
from rb_dspy.text import first_error, normalise

_log = logging.getLogger("rb_dspy.bank")

T = TypeVar("T")


def experience_draft(
    scope: str,
    task: Task,
    trajectory: Trajectory | Sequence[Trajectory],
    verdict: Verdict | Sequence[Verdict],
    drafts: Sequence[MemoryDraft],
    shown: Sequence[MemoryItem],
    **more: Any,
) -> ExperienceDraft:
    """The arguments of ``MemoryBank.append`` as one draft."""
    try:
        return ExperienceDraft(
            task=task,
            trajectories=(trajectory,) if isinstance(trajectory, Trajectory) else listed("trajectories", trajectory),
            verdicts=(verdict,) if isinstance(verdict, Verdict) else listed("verdicts", verdict),
            drafts=listed("drafts", drafts),
            shown=item_ids(scope, shown),
            **more,
        )
    except pydantic.ValidationError as exc:
        raise refused(exc) from None


def refused(exc: pydantic.ValidationError) -> InputError:
    """The first error, in one line."""
    place, problem = first_error(exc)
    return InputError(f"{place}: got {type(exc.errors()[0]['input']).__name__}; {problem}")


def item_ids(scope: str, shown: Sequence[MemoryItem]) -> tuple[str, ...]:
    """Ids of the items that an agent was shown. Items of other scopes are left out, with a warning in the log."""
    items = each("shown", shown, MemoryItem)
    own = tuple(item.id for item in items if item.scope == scope)
    if len(own) < len(items):
        _log.warning("scope %r: %d shown lessons of other scopes are not noted", scope, len(items) - len(own))
    return own


def one(what: str, value: object, kind: type[T]) -> T:
    """``value``, which must be a ``kind``."""
    if not isinstance(value, kind):
        raise _unexpected(what, value, kind.__name__)
    return value


def each(what: str, values: Iterable[T], kind: type[T]) -> tuple[T, ...]:
    """All of ``values``, which must be of this type."""
    found = listed(what, values)
    for value in found:
        if not isinstance(value, kind):
            raise _unexpected(what, value, f"a list of {kind.__name__}")
    return found


def listed(what: str, values: Iterable[T]) -> tuple[T, ...]:
    """``values`` as a tuple."""
    return tuple(iterable(what, values))


def iterable(what: str, values: Iterable[T]) -> Iterable[T]:
    """``values``, if one can go through them; text and records are no lists."""
    if isinstance(values, str | pydantic.BaseModel) or not isinstance(values, Iterable):
        raise _unexpected(what, values, "a list")
    return values


def text(what: str, value: object) -> str:
    """Text as it is stored."""
    if not isinstance(value, str):
        raise _unexpected(what, value, "text")
    return normalise(value)


def whole_number(value: object) -> int | None:
    """A whole number, numpy's too; None for anything else."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, SupportsIndex):
        return None
    return operator.index(value)


def state(at: object) -> None:
    """The argument ``at`` of ``MemoryBank.open``."""
    if at is not None and not isinstance(at, str) and whole_number(at) is None:
        raise InputError(f"at {_short(at)}: expected the name of a snapshot, or a sequence number")


def file(value: object) -> Path:
    """The path of a file."""
    if not isinstance(value, str | os.PathLike):
        raise _unexpected("path", value, "the name of a file")
    return Path(value)


def is_postgres(url: str) -> bool:
    """Whether this is the URL of a PostgreSQL database."""
    return re.match(r"postgres(ql)?(\+psycopg)?://", url) is not None


def bank_path(url: object) -> Path | None:
    """The file of a bank; None for one in memory."""
    if isinstance(url, str) and is_postgres(url):
        raise InputError(
            "a bank in PostgreSQL is not a file; copy and restore it with pg_dump and pg_restore (--schema=rb_dspy)"
        )
    if url is None or url == ":memory:":
        return None
    if not isinstance(url, str | os.PathLike):
        raise InputError(f"bank {str(url)[:80]!r}: expected a path, or :memory:; got {type(url).__name__}")
    name = os.fspath(url)
    scheme = isinstance(url, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", url)
    if scheme:  # what follows may hold a password
        raise InputError(f"bank {scheme[0]}…: expected a path, :memory:, or postgresql://user@host/database")
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InputError(f"bank {str(url)[:80]!r}: expected a path, or :memory:")
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user, or one without a home
        raise InputError(f"bank {name[:80]!r}: the home folder is unknown; give the whole path") from None


def embedder(value: Embedder | str) -> Embedder:
    """An embedder, or the one of this name. Raises ``InputError`` or ``MissingDependency``."""
    if isinstance(value, str):
        return plugins.embedder(value)
    if not isinstance(value, type) and not plugins.lacks(value, plugins.EMBEDDER):
        return value
    name = getattr(value, "__name__", repr(value)[:40])
    hint = f": give {name}()" if isinstance(value, type) else ""
    raise InputError(
        f"embedder {name}: expected an object with id, dimension and embed, or the name of an embedder{hint}"
    )


def search(
    query: object, k: object, unit: object, min_score: object, exclude_tasks: object, polarity: object, mode: object
) -> None:
    """The arguments of ``MemoryBank.retrieve``."""
    if unit not in UNITS:
        raise InputError(f"unit {_short(unit)}: expected 'experience' or 'item'")
    if mode not in get_args(Mode):
        raise InputError(f"mode {_short(mode)}: expected 'dense', 'lexical' or 'hybrid'")
    if polarity not in (None, "success", "failure"):
        raise InputError(f"polarity {_short(polarity)}: expected 'success', 'failure' or None")
    if not isinstance(query, str | Task):
        raise InputError(f"query of type {type(query).__name__}: expected text, or a Task")
    number = whole_number(k)
    if number is None or number < 0:
        raise InputError(f"k {_short(k)}: expected a whole number, 0 or more")
    tasks = isinstance(exclude_tasks, Collection) and not isinstance(exclude_tasks, str)
    if not tasks or not all(isinstance(task, str) for task in exclude_tasks):  # type: ignore[attr-defined]
        raise InputError(f"exclude_tasks {_short(exclude_tasks)}: expected a list, or a set, of task ids")
    if min_score is None:
        return
    is_number = isinstance(min_score, int | float | np.floating) and not isinstance(min_score, bool)
    if not is_number or not -1 <= min_score <= 1:  # type: ignore[operator]
        raise InputError(f"min_score {_short(min_score)}: expected a cosine, -1 to 1, or None")
    if mode != "dense":
        raise InputError(f"min_score is a cosine, and mode {mode!r} ranks by something else; leave it out")


def _unexpected(what: str, value: object, expected: str) -> InputError:
    return InputError(f"{what}: got {type(value).__name__}; expected {expected}")


def _short(value: object) -> str:
    """``value`` in few characters: numbers of thousands of digits cannot even be written."""
    try:
        return repr(value)[:40]
    except ValueError:
        return f"of type {type(value).__name__}"
