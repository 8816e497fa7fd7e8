"""How a rollout went: in the eyes of a judge, and in truth."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import JsonValue

from rb_dspy.schema.frozen import Frozen, Text

Label = Literal["success", "failure", "unknown"]


class Verdict(Frozen):
    """A judge's word on a rollout; never ground truth.

    ``unknown``: the judge abstained or could not be understood; nothing is distilled. ``confidence`` is in [0, 1], or
    None where the judge gives none, as in the paper.
    """

    label: Label
    reasons: Text = ""
    confidence: float | None = pydantic.Field(default=None, ge=0, le=1)


class Outcome(Frozen):
    """The environment's ground truth: for the scorer only. ``reward`` is in [0, 1]."""

    reward: float = pydantic.Field(ge=0, le=1)
    success: bool
    info: dict[str, JsonValue] = pydantic.Field(default_factory=dict)
