"""A part of somebody else's in the place of a step: with the role's language model, and counted as the role."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import dspy

from rb_dspy.backbones import Meter, lm_for_others, metered, report
from rb_dspy.schema import RoleUsage


@contextmanager
def played(role: str) -> Iterator[None]:
    """Inside the block the language model of the context is ``lm_for_others``; what is asked of it, or of any other by
    dspy, is counted as the role's. Not answers from dspy's cache: it tells of none.
    """
    meter = Meter(outer=dspy.settings.usage_tracker)
    started = time.perf_counter()
    with metered() as inside, dspy.context(lm=lm_for_others(role), usage_tracker=meter):
        try:
            yield
        finally:
            told = sum(inside.usage().values(), RoleUsage())  # by steps of ours within, each for its own role
            calls = meter.billed_calls - (told.calls - told.cached_calls)
            if calls > 0:
                used = RoleUsage(
                    calls=calls,
                    prompt_tokens=max(0, meter.prompt_tokens - told.prompt_tokens),
                    completion_tokens=max(0, meter.completion_tokens - told.completion_tokens),
                    seconds=max(0.0, time.perf_counter() - started - told.seconds),
                )
                report(role, used)
