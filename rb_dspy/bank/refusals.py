"""What every store of a bank refuses, each said here and nowhere else, so that all of them say it in the same words.

``vectors.check_lengths`` and ``passes.outrun`` are other such places. What only one kind of
store can meet, such as a disk that is full, is said there.
"""

from __future__ import annotations

from rb_dspy.bank.parts import NewExperience
from rb_dspy.errors import EmbedderMismatch, InputError, StorageError, UnknownScope
from rb_dspy.schema import Snapshot


def no_scope(location: str, scope: str) -> UnknownScope:
    """For any call that names a scope that is not there."""
    return UnknownScope(f"{location}: no scope {scope!r}")


def another_embedder(location: str, now: tuple[str, int], opened: tuple[str, int]) -> EmbedderMismatch:
    """For what needs the bank's embedder, ``now``, of a caller who has the one of ``opened``.

    That may be since the bank was re-indexed, or since it had none and somebody else was first to write.
    """
    return EmbedderMismatch(
        f"{location}: belongs to the embedder {now[0]} ({now[1]} dimensions) by now, and was opened with {opened[0]}"
        f" ({opened[1]}); open it again with {now[0]}"
    )


def uneven(new: NewExperience) -> InputError:
    """For an experience whose vectors and items are not aligned."""
    return InputError(f"experience {new.id}: {len(new.items)} items and {len(new.item_vectors)} vectors for them")


def removed_since(location: str, task_id: str, id: str) -> InputError:
    """For ``record``, and ``place`` with ``refuse_removed``, of what was learned from as ``id``."""
    return InputError(
        f"{location}: this attempt at {task_id[:40]!r} was learned from as {id} and removed since; name another run_id"
    )


def nothing_to_edit(location: str, scope: str, id: str) -> InputError:
    """For ``edit`` where no live item has the id."""
    return InputError(
        f"{location}: scope {scope!r} has no item {id[:40]!r} to edit; give the id of one that items() lists"
    )


def twins(location: str, id: str, twin: str) -> InputError:
    """For ``edit`` where another live item, ``twin``, has the new text."""
    return InputError(f"{location}: item {id}: item {twin} says exactly this; delete one of the two instead")


def name_taken(location: str, named: Snapshot, now: int) -> InputError:
    """For ``snapshot`` where the name is that of another state than the present one, at ``now``."""
    return InputError(
        f"{location}: scope {named.scope!r}: the name {named.name!r} is that of the state at {named.seq}, now it is"
        f" {now}; choose another name"
    )


def closed(location: str) -> StorageError:
    """For everything after ``close``."""
    return StorageError(f"{location}: this bank is closed; open it again")


def left_behind(location: str) -> StorageError:
    """For everything in a process that was forked after the bank was opened."""
    return StorageError(f"{location}: opened before a fork; open it again in this process")
