"""What a rollout used."""

from __future__ import annotations

import pydantic

from rb_dspy.schema.frozen import Frozen


class RoleUsage(Frozen):
    """What one role used: LM calls, tokens, and wall seconds inside the role's calls. Finite, and none below zero."""

    calls: int = pydantic.Field(default=0, ge=0)
    prompt_tokens: int = pydantic.Field(default=0, ge=0)
    completion_tokens: int = pydantic.Field(default=0, ge=0)
    cached_calls: int = pydantic.Field(default=0, ge=0)
    """Calls answered from dspy's response cache; their tokens are not billed and not counted."""
    seconds: float = pydantic.Field(default=0.0, ge=0, allow_inf_nan=False)

    def __add__(self, other: RoleUsage) -> RoleUsage:
        return RoleUsage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_calls=self.cached_calls + other.cached_calls,
            seconds=self.seconds + other.seconds,
        )


Usage = dict[str, RoleUsage]
"""Role name -> what it used."""
