"""Usage per role: calls, tokens and seconds, even if rollouts run in threads; what they cost, and limits to it.

Ledgers and budgets are stored in dspy's settings, which reach copied contexts and the threads that dspy starts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.clients.model_metadata import model_info, rate

from rb_dspy.errors import BudgetSpent, ConfigError
from rb_dspy.schema import RoleUsage, Usage

_LEDGERS, _BUDGETS = "rb_dspy_ledgers", "rb_dspy_budgets"


class Ledger:
    """The sum of usage for each role. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roles: Usage = {}

    def add(self, role: str, usage: RoleUsage) -> None:
        """Add ``usage`` to the sum of ``role``."""
        with self._lock:
            self._roles[role] = self._roles.get(role, RoleUsage()) + usage

    def usage(self) -> Usage:
        """Return role -> usage so far, as a copy."""
        with self._lock:
            return dict(self._roles)


@contextmanager
def metered() -> Iterator[Ledger]:
    """Count the calls that are made inside the block, in threads too. An outer ledger counts them as well."""
    ledger = Ledger()
    with dspy.context(**{_LEDGERS: (*dspy.settings.get(_LEDGERS, ()), ledger)}):
        yield ledger


def report(role: str, model: str, entries: Sequence[Mapping[str, Any]] | None, seconds: float) -> None:
    """Add one call of ``role`` to every open ledger and budget; ``entries``: see ``usage_of``."""
    usage = usage_of(entries, seconds)
    for ledger in dspy.settings.get(_LEDGERS, ()):
        ledger.add(role, usage)
    for each in budgets():
        each.add(role, usage, model)


def entries_of(tracker: Any) -> list[Mapping[str, Any]]:
    """The entries of a tracker of ``dspy.track_usage``, of all models."""
    return [entry for each in tracker.usage_data.values() for entry in each]


def usage_of(entries: Sequence[Mapping[str, Any]] | None, seconds: float) -> RoleUsage:
    """Return the usage of one call from the entries of ``dspy.track_usage``.

    dspy records one entry for each response of a server, and none for a response from its cache: a call without an
    entry is a cached one. ``entries`` is None for a call that failed before it began.
    """
    failed, entries = entries is None, entries or ()
    return RoleUsage(
        calls=max(1, len(entries)),
        prompt_tokens=sum(int(e.get("prompt_tokens") or e.get("input_tokens") or 0) for e in entries),
        completion_tokens=sum(int(e.get("completion_tokens") or e.get("output_tokens") or 0) for e in entries),
        cached_calls=0 if entries or failed else 1,
        seconds=seconds,
    )


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Return the sum for each role."""
    total: Usage = {}
    for usage in usages:
        for role, used in usage.items():
            total[role] = total.get(role, RoleUsage()) + used
    return total


def price_of(usage: Usage, models: Mapping[str, str]) -> float | None:
    """Return US dollars for ``usage``, with role -> model; None if the price of a billed role is unknown.

    Local models cost nothing. Prompt tokens from a provider's cache count like any other, so this is an upper bound.
    """
    total = 0.0
    for role, used in usage.items():
        model = models.get(role) or models.get("agent", "")
        if used.calls <= used.cached_calls or model.startswith("local/"):
            continue  # all answers are from dspy's cache, or from this machine
        provider, name = model.split("/", 1) if "/" in model else ("openai", model)
        listed = model_info(provider, name)
        sent, written = rate(listed, "input_cost_per_token"), rate(listed, "output_cost_per_token")
        if sent is None or written is None:
            return None
        total += used.prompt_tokens * sent + used.completion_tokens * written
    return total


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

    def check(self, model: str | None = None) -> None:
        """Raise ``BudgetSpent`` if a limit is reached; ``ConfigError`` if it is in dollars and ``model`` unpriced."""
        one = RoleUsage(calls=1, prompt_tokens=1)
        if model is not None and self._limits["cost"] is not None and _price("agent", one, model) is None:
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

    A call that has begun is finished, so each thread may exceed the limit by one call: k rollouts in parallel by k,
    with ``MattsConfig(at_once=1)`` by one. An agent of yours is stopped at its next call of a ``dspy.LM``; what it pays
    with another client is not seen. Answers from dspy's cache are free. Budgets may be nested.

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
    with dspy.context(**{_BUDGETS: (*budgets(), mine)}):
        yield mine


def budgets() -> tuple[Budget, ...]:
    """The budgets of this call."""
    found: tuple[Budget, ...] = dspy.settings.get(_BUDGETS, ())
    return found
