"""Usage per role: calls, tokens and seconds, even if rollouts run in threads; and what they cost.

Ledgers are stored in dspy's settings, which reach copied contexts and the threads that dspy starts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.clients.model_metadata import model_info, rate

from rb_dspy.schema import RoleUsage, Usage

_KEY = "rb_dspy_ledgers"


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
    with dspy.context(**{_KEY: (*dspy.settings.get(_KEY, ()), ledger)}):
        yield ledger


def report(role: str, tracker: Any, seconds: float) -> RoleUsage:
    """Add one call of ``role`` to every open ledger; returns what it used."""
    usage = usage_of(tracker, seconds)
    for ledger in dspy.settings.get(_KEY, ()):
        ledger.add(role, usage)
    return usage


def usage_of(tracker: Any, seconds: float) -> RoleUsage:
    """Return the usage of one call from a tracker of ``dspy.track_usage``.

    dspy records one entry for each response of a server, and none for a response from its cache: a call without an
    entry is a cached one. ``tracker`` is None for a call that failed before it began.
    """
    entries = [entry for each in tracker.usage_data.values() for entry in each] if tracker is not None else []
    return RoleUsage(
        calls=max(1, len(entries)),
        prompt_tokens=sum(int(e.get("prompt_tokens") or e.get("input_tokens") or 0) for e in entries),
        completion_tokens=sum(int(e.get("completion_tokens") or e.get("output_tokens") or 0) for e in entries),
        cached_calls=0 if entries or tracker is None else 1,
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
