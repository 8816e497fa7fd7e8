"""Prices of language-model calls, from DSPy's list."""

from __future__ import annotations

from collections.abc import Mapping

from dspy.clients.model_metadata import model_info, rate

from rb_dspy.backbones.roles import fallbacks
from rb_dspy.schema import Usage


def price_of(usage: Usage, models: Mapping[str, str]) -> float | None:
    """Return US dollars for ``usage``, with role -> model; None if the price of a billed role is unknown.

    Local models cost nothing. Prompt tokens from a provider's cache count like any other, so this is an upper bound.
    """
    total = 0.0
    for role, used in usage.items():
        model = next((models[name] for name in fallbacks(role) if name in models), "")
        if used.calls <= used.cached_calls or model.startswith("local/"):
            continue  # all answers are from dspy's cache, or from this machine
        provider, name = model.split("/", 1) if "/" in model else ("openai", model)
        listed = model_info(provider, name)
        sent, written = rate(listed, "input_cost_per_token"), rate(listed, "output_cost_per_token")
        if sent is None or written is None:
            return None
        total += used.prompt_tokens * sent + used.completion_tokens * written
    return total
