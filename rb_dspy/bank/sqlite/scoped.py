"""One scope of a file at one number, as its queries need it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from rb_dspy.bank.sqlite import ids, keys

Row = tuple[Any, ...]
Value = TypeVar("Value")

_log = logging.getLogger("rb_dspy.bank")


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
        scope, base = self.scope.id, self.scope.base
        asked = self._sound(given, (str, int))
        return {"scope": scope, "base": base, "upto": base + self.at, "at": self.at, "given": json.dumps(asked), **more}

    def named(self, id: str) -> dict[str, object]:
        """Those of ``having``, and of a query by one id; what a damaged row has for one finds nothing."""
        return self.having(id=id, id_key=ids.of_id(self.scope.id, id) if isinstance(id, str) else None)

    def listed(self, given: Iterable[object], **more: object) -> dict[str, object]:
        """Those of ``having``, and of a query by ids."""
        asked = self._sound(given, (str,))
        id_keys = sorted({ids.of_id(self.scope.id, id) for id in asked})
        return {**self.having(), "ids": json.dumps(asked), "id_keys": json.dumps(id_keys), **more}

    def _sound(self, given: Iterable[object], kinds: tuple[type[Value], ...]) -> list[Value]:
        every = list(given)
        asked = [value for value in every if isinstance(value, kinds)]
        if len(asked) < len(every):  # by another type nothing is found, and bytes are no JSON
            where = f"{self.scope.location}: scope {self.scope.name!r}"
            _log.warning("%s: an id that was read of a row is damaged; what has it is left out", where)
        return asked
