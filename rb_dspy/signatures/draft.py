"""The typed value that both distillers return."""

from __future__ import annotations

import pydantic


class MemoryDraft(pydantic.BaseModel):
    """A lesson for other tasks."""

    # The docstring above is part of the distillers' prompts. The three fields are the paper's (section 3.1). A distiller
    # proposes drafts; the bank decides what it admits.

    model_config = pydantic.ConfigDict(frozen=True, str_strip_whitespace=True)

    title: str = pydantic.Field(min_length=3, max_length=120, description="names the strategy in a few words")
    description: str = pydantic.Field(
        min_length=3, max_length=400, description="one sentence: when to use this, and when not to"
    )
    content: str = pydantic.Field(
        min_length=3, max_length=1200, description="one to three sentences: what to do and why"
    )
