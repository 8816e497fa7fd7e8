"""The typed value that both distillers return."""

from __future__ import annotations

import pydantic


class MemoryDraft(pydantic.BaseModel):
    """A lesson that a distiller proposes; the bank decides whether to admit it.

    Three fields, as in the paper (section 3.1): a title, a one-sentence description, and a content of one to three
    sentences.
    """

    model_config = pydantic.ConfigDict(frozen=True, str_strip_whitespace=True)

    title: str = pydantic.Field(min_length=3, max_length=120, description="names the strategy in a few words")
    description: str = pydantic.Field(
        min_length=3, max_length=400, description="one sentence: when to use this, and when not to"
    )
    content: str = pydantic.Field(min_length=3, max_length=1200, description="one to three sentences: what to do and why")
