"""What an id, or the name of a run or an origin, means in a scope."""

from __future__ import annotations

from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import Source
from rb_dspy.errors import InputError
from rb_dspy.text import visible


def source_of_id(store: BankStore, scope: str, id: str) -> Source:
    """The item or experience with this id. Raises ``InputError`` where the scope has none."""
    if store.item(scope, id) is not None:
        return Source("item", id)
    if store.experience(scope, id) is not None:
        return Source("experience", id)
    raise unknown(store, scope, id, "item or experience")


def source_of(store: BankStore, scope: str, text: str) -> Source:
    """What is meant by an id, ``run:NAME`` or ``origin:NAME``.

    Raises ``InputError`` for an id that nothing has, for an empty name, and for that of a run or an origin of which
    nothing is here: no experience, and no rollouts that wait.
    """
    kind, sign, name = text.partition(":")
    if not (sign and kind in ("run", "origin")):
        return source_of_id(store, scope, visible(text))
    if not name.strip():
        raise InputError(f"source {text!r}: expected the name of a {kind} after the colon")
    source = Source("run" if kind == "run" else "origin", visible(name))
    # With nothing but what is of it: what it would take along is another question. Taking nothing away, it only reads.
    own = store.remove(scope, kind="rollback", source=source, descendants=False, note="", dry_run=True)
    if not (own.experiences or own.ingestions):
        raise InputError(f"{store.location}: scope {scope!r} has nothing of {kind} {source.name[:200]!r}")
    return source


def unknown(store: BankStore, scope: str, id: str, what: str) -> InputError:
    """What is raised for an id that nothing has."""
    return InputError(f"{store.location}: scope {scope!r} has no {what} {id[:40]!r}")
