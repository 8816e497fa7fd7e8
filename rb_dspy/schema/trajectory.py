"""What an agent did: one rollout of a task."""

from __future__ import annotations

from typing import Literal

import pydantic

from rb_dspy.schema.frozen import Frozen, Text
from rb_dspy.schema.usage import Usage

StopReason = Literal["done", "max_steps", "context", "unreadable", "external"]
"""The environment ended it; the step cap; the context window; an answer of the agent's that could not be read; or an
agent loop that is not ours."""


class Step(Frozen):
    """One turn: what the agent thought and did, and what the environment answered."""

    thought: Text = ""
    action: Text
    observation: Text = ""


class Check(Frozen):
    """The agent's look back at its own work, after step number ``after``: what it found, and whether to change it.

    To revise was to ``correct`` once, and is read by that name, too.
    """

    after: int = pydantic.Field(ge=0)
    findings: Text = ""
    decision: Literal["confirm", "revise"]

    @pydantic.field_validator("decision", mode="before")
    @classmethod
    def _by_its_name_of_now(cls, given: object) -> object:
        return "revise" if given == "correct" else given


class Trajectory(Frozen):
    """One rollout, always whole. ``first_observation`` is what the agent was shown first.

    ``checks`` are those of sequential scaling, in order; a rollout that was not checked is stored without them.
    """

    task_id: str
    steps: tuple[Step, ...] = ()
    answer: Text | None = None
    first_observation: Text = ""
    rollout_id: str = "0"
    stop_reason: StopReason = "done"
    checks: tuple[Check, ...] = pydantic.Field(default=(), exclude_if=lambda checks: not checks)
    usage: Usage = pydantic.Field(default_factory=dict)
