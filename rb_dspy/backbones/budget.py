"""A limit to what calls of language models may use together: tokens, US dollars or minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dspy

from rb_dspy.backbones.usage import price_of
from rb_dspy.errors import BudgetSpent, ConfigError
from rb_dspy.schema import RoleUsage

_KEY = "rb_dspy_budgets"


class Budget:
    """What the calls inside a ``budget`` have used. Thread-safe."""

    def __init__(self, max_tokens: int | None, max_cost: float | None, max_minutes: float | None) -> None:
        self._limits = {"tokens": max_tokens, "cost": max_cost, "minutes": max_minutes}
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self.tokens = 0
        self.cost = 0.0

    @property
    def minutes(self) -> float:
        """Minutes since the block was entered."""
        return (time.monotonic() - self._started) / 60

    def check(self, model: str) -> None:
        """Raise ``BudgetSpent`` if a limit is reached; ``ConfigError`` if it is in dollars, and no price is known."""
        if self._limits["cost"] is not None and _price("agent", RoleUsage(calls=1, prompt_tokens=1), model) is None:
            raise ConfigError(f"max_cost: the price of {model} is not known; use max_tokens")
        for name, unit in (("tokens", "{:,} tokens"), ("cost", "${:.2f}"), ("minutes", "{:.1f} minutes")):
            limit, used = self._limits[name], getattr(self, name)
            if limit is not None and used >= limit:
                raise BudgetSpent(
                    f"the budget of {unit.format(limit)} is spent ({unit.format(used)} used), so no model is called any"
                    " more; what is done is kept: start the same again to continue"
                )

    def add(self, role: str, usage: RoleUsage, model: str) -> None:
        price = _price(role, usage, model) or 0.0
        with self._lock:
            self.tokens += usage.prompt_tokens + usage.completion_tokens
            self.cost += price


def _price(role: str, usage: RoleUsage, model: str) -> float | None:
    return price_of({role: usage}, {role: model})


@contextmanager
def budget(
    *, max_tokens: int | None = None, max_cost: float | None = None, max_minutes: float | None = None
) -> Iterator[Budget]:
    """Limit what the calls inside the block use together, in threads too: runs, evaluations and compiles stop cleanly.

    A call that has begun is finished, so the last one of each thread may exceed the limit. Answers from dspy's cache
    are free. Budgets may be nested.

    Args:
        max_tokens: Prompt and completion tokens.
        max_cost: US dollars, by the list prices that dspy knows; local models cost nothing.
        max_minutes: Minutes since the block was entered.

    Raises:
        BudgetSpent: At the first call after a limit is reached.
        ConfigError: A limit is not above 0; or the price of a model is not known, and there is a ``max_cost``.
    """
    for name, value in (("max_tokens", max_tokens), ("max_cost", max_cost), ("max_minutes", max_minutes)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name}={value!r}: expected a number above 0, or None")
    mine = Budget(max_tokens, max_cost, max_minutes)
    with dspy.context(**{_KEY: (*budgets(), mine)}):
        yield mine


def budgets() -> tuple[Budget, ...]:
    """The budgets of this call."""
    found: tuple[Budget, ...] = dspy.settings.get(_KEY, ())
    return found
