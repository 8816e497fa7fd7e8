"""What calls of language models cost, by the price list that litellm brings."""

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
    """US dollars; None if the price of ``model`` is unknown. Local models cost nothing.

    Prompt tokens from a provider's cache count like any other, so this is the most that it can be.
    """
    if model.startswith("local/"):
        return 0.0
    listed = _listed(model)
    if "input_cost_per_token" not in listed or "output_cost_per_token" not in listed:
        return None
    cost = prompt_tokens * listed["input_cost_per_token"] + completion_tokens * listed["output_cost_per_token"]
    return float(cost)


def price_of(usage: Usage, models: Mapping[str, str]) -> float | None:
    """US dollars for ``usage``, with role -> model; None if a role that was billed has no known price."""
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
    """The entry of ``model``. Some are listed without their provider, which is a field of the entry then: the price at
    one provider is no price at another.
    """
    prices = _prices()
    if model in prices:
        return prices[model]
    provider, _, name = model.partition("/")
    entry = prices.get(name, {})
    listed = str(entry.get("litellm_provider", ""))  # a provider may have several, such as bedrock_converse
    return entry if listed == provider or listed.startswith((f"{provider}_", f"{provider}-")) else {}


@cache
def _prices() -> Mapping[str, Mapping[str, Any]]:
    """The list, read from its file: importing litellm takes seconds."""
    package = find_spec("litellm")
    if package is None or package.origin is None:
        return {}
    try:
        prices: dict[str, dict[str, Any]] = json.loads((Path(package.origin).parent / _LIST).read_text("utf-8"))
    except (OSError, ValueError):  # a version without such a list: nothing has a price
        return {}
    return prices
