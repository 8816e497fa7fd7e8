"""An agent that you have, in the place of our own."""

from __future__ import annotations

from rb_dspy.agents.external import Agent, ExternalAct
from rb_dspy.agents.score import ScoreFunction, scored_by

__all__ = ["Agent", "ExternalAct", "ScoreFunction", "scored_by"]
