"""What an id, or the name of a run or an origin, means in a scope."""

from __future__ import annotations

from rb_dspy.bank.commands import bank_options
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import Source
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience, Task
from rb_dspy.text import normalise

_GONE = {"delete": "deleted", "rollback": "taken away by a rollback"}


def source_of_id(store: BankStore, scope: str, id: str) -> Source:
    """The item or experience with this id, which may be damaged. Raises ``InputError`` where the scope has none."""
    if any(row.lives for row in store.rows(scope, id)):
        return Source("item", id)
    experience = Source("experience", id)
    if any(member.lives for member in store.members(scope, experience)):
        return experience
    raise unknown(store, scope, id, "item or experience")


def source_of(store: BankStore, scope: str, text: str, *, descendants: bool) -> Source:
    """What is meant by an id, ``run:NAME`` or ``origin:NAME``, of which there is something to take away.

    That may be no more than what descends from it, where it was itself removed before. Raises ``InputError`` for an id
    that nothing has, for an empty name, and for a run or an origin of which nothing is here: no experience, no rollouts
    that wait, and with ``descendants`` nothing that was learned under its influence.
    """
    kind, sign, name = text.partition(":")
    if not (sign and kind in ("run", "origin")):
        return _of_id(store, scope, normalise(text), descendants=descendants)
    if not name.strip():
        raise InputError(f"source {text!r}: expected the name of a {kind} after the colon")
    source = Source("run" if kind == "run" else "origin", normalise(name))
    if not (_takes(store, scope, source, descendants=False) or _takes(store, scope, source, descendants=descendants)):
        raise InputError(f"{store.location}: scope {scope!r} has nothing of {kind} {source.name[:200]!r}")
    return source


def _of_id(store: BankStore, scope: str, id: str, *, descendants: bool) -> Source:
    """The item or experience with this id, or one that there was, where something descends from it."""
    try:
        return source_of_id(store, scope, id)
    except InputError:
        source = Source("experience" if store.have(scope, [id]) else "item", id)
        if not (descendants and _takes(store, scope, source, descendants=True)):
            raise
        return source


def _takes(store: BankStore, scope: str, source: Source, *, descendants: bool) -> bool:
    """Whether anything would go. Taking nothing away, it only reads."""
    planned = store.remove(scope, kind="rollback", source=source, descendants=descendants, note="", dry_run=True)
    return bool(planned.experiences or planned.items or planned.pending)


def no_item(store: BankStore, scope: str, id: str) -> InputError:
    """What is raised for an id that no item has where only an item will do."""
    if store.experience(scope, id) is not None:
        return InputError(f"{id} is an experience; only a lesson can be edited, by its own id")
    return unknown(store, scope, id, "experience" if store.have(scope, [id]) else "item")


def unknown(store: BankStore, scope: str, id: str, what: str) -> InputError:
    """What is raised for an id that nothing has; it says so where something had it."""
    told = f"{store.location}: scope {scope!r} has no {what} {id[:40]!r}"
    last = next(reversed(store.history(scope, id)), None)
    if last is None or last.kind not in _GONE:
        return InputError(told)
    when = f"{_GONE[last.kind]} at {last.created_at}" if last.created_at else _GONE[last.kind]
    look = f"rb-dspy bank history {id[:40]}{bank_options(store.location, scope)}"
    return InputError(f"{told} any more: it was {when}; {look} tells of it")


def of_task(known: Experience, task: Task, location: str) -> Experience:
    """``known``, which has the id of an attempt at ``task``; ``location``: of the bank that it is in.

    Raises ``InputError`` where it is of another task.

    Ids are hashes of scope, run, task and rollouts, but an import keeps those that its file says.
    """
    if known.task.id == task.id:
        return known
    raise InputError(
        f"task {task.id}: the id of this attempt, {known.id}, is that of an imported experience of another task"
        f" ({known.task.id[:40]!r}); to learn from this one, name another run_id; to see where that one came from:"
        f" rb-dspy bank show {known.id}{bank_options(location, known.scope)}"
    )
