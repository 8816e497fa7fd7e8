"""What is to be done."""

from __future__ import annotations

import pydantic
from pydantic import JsonValue

from rb_dspy.errors import InvalidTask
from rb_dspy.schema.frozen import Frozen
from rb_dspy.text import hidden_characters

MAX_INSTRUCTION = 100_000
"""Longest task instruction, in characters."""

_MAX_DIGITS = 4300
_TOO_LONG = 10**_MAX_DIGITS
"""Neither Python nor pydantic reads an int of more digits from JSON."""


def _too_long(value: JsonValue) -> bool:
    """Whether ``value`` holds an int that could be written as JSON and not be read again."""
    if isinstance(value, dict):
        return any(map(_too_long, value.values()))
    if isinstance(value, list):
        return any(map(_too_long, value))
    return isinstance(value, int) and abs(value) >= _TOO_LONG


class Task(Frozen):
    """One thing to do.

    ``env`` names the environment family and ``env_args`` are its arguments; the agent, the judge and the distiller see
    ``instruction`` only. ``template`` groups tasks that were made alike, so that splits can keep them apart.
    Raises ``InvalidTask`` for an instruction that is empty, too long, or hides characters, and for ``env_args`` with
    numbers that are too long to be read again.
    """

    id: str
    instruction: str
    env: str = "question"
    env_args: dict[str, JsonValue] = pydantic.Field(default_factory=dict, repr=False)
    domain: str = ""
    template: str | None = None

    @pydantic.field_validator("id")
    @classmethod
    def _check_id(cls, value: str) -> str:
        if not value.strip() or len(value) > 500 or hidden_characters(value):
            raise InvalidTask(f"task id {value[:40]!r}: expected 1 to 500 visible characters; choose another id")
        return value

    @pydantic.field_validator("instruction")
    @classmethod
    def _check_instruction(cls, value: str) -> str:
        if not value.strip():
            raise InvalidTask("the instruction is empty; expected text that says what is to be done")
        if len(value) > MAX_INSTRUCTION:
            raise InvalidTask(
                f"the instruction has {len(value):,} characters; expected at most {MAX_INSTRUCTION:,}: shorten it, or"
                " let the environment show the long part as an observation"
            )
        hidden = hidden_characters(value)
        if hidden:
            position, code = hidden[0]
            raise InvalidTask(
                f"the instruction hides {len(hidden)} invisible character(s), the first {code} at position {position};"
                " expected visible text: remove them"
            )
        return value

    @pydantic.field_validator("env_args")
    @classmethod
    def _check_env_args(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if _too_long(value):
            raise InvalidTask(f"env_args hold a number of more than {_MAX_DIGITS:,} digits; write it as a text")
        return value

    def without_ground_truth(self) -> Task:
        """This task as a judge or a distiller may see it: ``env_args`` can hold the answer."""
        return self.model_copy(update={"env_args": {}})
