"""One scope of a file at one number, as its queries need it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rb_dspy.bank.sqlite import keys

Row = tuple[Any, ...]


def live(table: str) -> str:
    """The condition that a row is part of the state that ``State`` gives the parameters of."""
    return f"{table}.key <= :upto AND ifnull({table}.ended, {keys.LAST + 1}) > :at"


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope of a file."""

    id: int
    name: str
    location: str

    @property
    def base(self) -> int:
        """The key of number 0."""
        return keys.base(self.id)


@dataclass(frozen=True, slots=True)
class State:
    """A scope as it was at a number; ``keys.LAST`` is the present."""

    scope: Scope
    at: int

    def having(self, given: Iterable[object] = (), **more: object) -> dict[str, object]:
        """Parameters of a query: ``scope``, ``base``, ``upto``, ``at``, and ``given``, for ``json_each(:given)``."""
        base = self.scope.base
        known = {"scope": self.scope.id, "base": base, "upto": base + self.at, "at": self.at}
        return {**known, "given": json.dumps(list(given)), **more}
