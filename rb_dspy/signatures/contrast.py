"""The contraster's prompt: what tells attempts at one task apart?"""

from __future__ import annotations

import re
from typing import Any

import dspy
import pydantic

from rb_dspy.signatures.draft import MemoryDraft

_MOST = 64


def _some(schema: dict[str, Any]) -> None:
    """What the schema states, and an engine with constrained output keeps to; a draft without is no parse error."""
    schema["minItems"] = 1


class ContrastDraft(MemoryDraft):
    """A lesson for other tasks, with its evidence."""

    evidence: list[int] = pydantic.Field(
        default_factory=list, description="numbers of the attempts that show it", json_schema_extra=_some
    )

    @pydantic.field_validator("evidence", mode="before")
    @classmethod
    def _numbers(cls, given: Any) -> list[int]:
        """The numbers in whatever a model wrote, such as ``"attempts 1 and 3"``: one slip must not lose the others."""
        return [int(number) for number in re.findall(r"(?<!\d)(?:(?<!\w)-)?\d{1,4}(?!\d)", str(given))][:_MOST]


class Contrast(dspy.Signature):
    """Compare several attempts at one and the same task, and extract what tells the better ones from the worse.

    Attempts that began alike and ended differently are the most telling: find the first decision at which they part,
    and what each choice led to. A pattern that the sound attempts share is a strategy; one that only the poor ones show
    is a trap; what all of them do the same way proves nothing by itself. Unless a label is given, work out from the
    transcripts how far each attempt came, and do not trust the tone in which it speaks of itself.

    Then write one to five memory items. Each must teach a strategy or a precaution that carries over to tasks of the
    same kind: the title names it, the description says when to use it and when not to, the content says what to do and
    why in one to three sentences, and the evidence lists the numbers of the attempts that show it. Items must not
    overlap. Do not retell the attempts, and use no name, number, quotation or object that belongs to this one task only.
    """

    task: str = dspy.InputField(desc="what was to be done in every attempt")
    attempts: str = dspy.InputField(desc="the numbered transcripts; long ones are cut in the middle")
    analysis: str = dspy.OutputField(desc="where the attempts part and what it led to, in a few sentences")
    memory_items: list[ContrastDraft] = dspy.OutputField(
        desc="one to five, without overlap", min_length=1, max_length=5
    )
