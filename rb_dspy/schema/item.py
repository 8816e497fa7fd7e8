"""Lessons as a bank holds them, and as a query finds them."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from rb_dspy.schema.frozen import Frozen

Polarity = Literal["success", "failure"]


class Provenance(Frozen):
    """Where an item comes from: the experience, its task, its run, the LM that distilled it, and who brought it."""

    experience_id: str
    task_id: str
    run_id: str = ""
    distiller: str = ""
    origin: str = ""
    """Empty for what this program learned itself; else who brought it: an imported file, another agent."""


class MemoryItem(Frozen):
    """A lesson in a bank. ``seq`` orders the items of a bank; clocks never do.

    The same text learned twice in a scope is one item with two provenances, the earliest first. ``polarity`` is that of
    the earliest.
    """

    id: str
    scope: str
    seq: int
    title: str
    description: str
    content: str
    polarity: Polarity
    provenances: Annotated[tuple[Provenance, ...], pydantic.Field(min_length=1)]

    @property
    def provenance(self) -> Provenance:
        """The earliest of ``provenances``."""
        return self.provenances[0]


class Retrieved(Frozen):
    """One experience that matched a query, with the items that are shown from it.

    ``score``: what it was ranked by; more is better. Dense: cosine similarity, in [-1, 1]. Lexical: BM25, above 0.
    Hybrid: the sum of reciprocal ranks.
    """

    score: float
    experience_id: str
    task_id: str
    instruction: str
    items: tuple[MemoryItem, ...]
