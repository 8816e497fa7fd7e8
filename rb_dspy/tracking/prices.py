"""What usage costs, by the list of prices that litellm brings; what is not in the list has no price."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rb_dspy.schema import Usage

_LIST = "model_prices_and_context_window_backup.json"


def cost(model: str, prompt_tokens: int, completion_tokens: int) -> tuple[float, float] | None:
    """US dollars for what goes in and for what comes out; None where the price of ``model`` is not known.

    Prompt tokens that the provider had in its cache count like any other, so it is the most that it can be.
    """
    if model.startswith("local/"):
        return 0.0, 0.0
    found = _found(model)
    if "input_cost_per_token" not in found or "output_cost_per_token" not in found:
        return None
    return prompt_tokens * found["input_cost_per_token"], completion_tokens * found["output_cost_per_token"]


def costs(usage: Usage, models: Mapping[str, str]) -> dict[str, float]:
    """Role -> US dollars for the tokens that were billed; a role whose model has no known price is left out."""
    found: dict[str, float] = {}
    for role, used in usage.items():
        price = cost(models.get(role, ""), used.prompt_tokens, used.completion_tokens)
        if price is not None:
            found[role] = sum(price)
    return found


def without_price(usage: Usage, models: Mapping[str, str]) -> list[str]:
    """The roles that ``costs`` leaves out although they asked a model: with any of them, a sum is not the whole cost.

    What dspy's cache answered was not billed, whatever its price.
    """
    money = costs(usage, models)
    return [role for role, used in usage.items() if role not in money and used.calls > used.cached_calls]


def _found(model: str) -> Mapping[str, Any]:
    """What the list says of ``model``. It has some models without their provider's name, and says which that is: the
    price of one is no price of its namesake at another provider, nor at a proxy that nobody knows.
    """
    prices = _prices()
    if model in prices:
        return prices[model]
    provider, _, name = model.partition("/")
    found = prices.get(name, {})
    listed = str(found.get("litellm_provider", ""))  # of one provider there may be several, as bedrock_converse
    return found if listed == provider or listed.startswith((f"{provider}_", f"{provider}-")) else {}


@cache
def _prices() -> Mapping[str, Mapping[str, Any]]:
    """The list, read from the file: importing litellm takes seconds."""
    package = find_spec("litellm")
    if package is None or package.origin is None:
        return {}
    try:
        found: dict[str, dict[str, Any]] = json.loads((Path(package.origin).parent / _LIST).read_text("utf-8"))
    except (OSError, ValueError):  # another version's, without such a list: nothing has a price
        return {}
    return found
