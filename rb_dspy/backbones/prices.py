"""Prices of language-model calls, from litellm's price list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rb_dspy.backbones.roles import fallbacks
from rb_dspy.schema import Usage

_LIST = "model_prices_and_context_window_backup.json"


def price(model: str, prompt_tokens: int, completion_tokens: int) -> float | None:
    """Return US dollars; None if the price of ``model`` is unknown. Local models cost nothing.

    Prompt tokens from a provider's cache count like any other, so this is an upper bound.
    """
    if model.startswith("local/"):
        return 0.0
    listed = _listed(model)
    if "input_cost_per_token" not in listed or "output_cost_per_token" not in listed:
        return None
    cost = prompt_tokens * listed["input_cost_per_token"] + completion_tokens * listed["output_cost_per_token"]
    return float(cost)


def price_of(usage: Usage, models: Mapping[str, str]) -> float | None:
    """Return US dollars for ``usage``, with role -> model; None if the price of a billed role is unknown."""
    total = 0.0
    for role, used in usage.items():
        if used.calls <= used.cached_calls:
            continue  # answered from dspy's cache
        model = next((models[name] for name in fallbacks(role) if name in models), "")
        cost = price(model, used.prompt_tokens, used.completion_tokens)
        if cost is None:
            return None
        total += cost
    return total


def _listed(model: str) -> Mapping[str, Any]:
    """Return the entry of ``model``. A name listed without its provider must have that provider as a field, because
    prices differ between providers.
    """
    prices = _prices()
    if model in prices:
        return prices[model]
    provider, _, name = model.partition("/")
    entry = prices.get(name, {})
    listed = str(entry.get("litellm_provider", ""))  # a provider may have several names, such as bedrock_converse
    return entry if listed == provider or listed.startswith((f"{provider}_", f"{provider}-")) else {}


@cache
def _prices() -> Mapping[str, Mapping[str, Any]]:
    """Read the list from its file, because importing litellm takes seconds."""
    package = find_spec("litellm")
    if package is None or package.origin is None:
        return {}
    try:
        prices: dict[str, dict[str, Any]] = json.loads((Path(package.origin).parent / _LIST).read_text("utf-8"))
    except (OSError, ValueError):  # a version without this list: every price is unknown
        return {}
    return prices
