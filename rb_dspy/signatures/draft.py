"""The typed value that both distillers return."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic


def _cut_at(most: int) -> pydantic.AfterValidator:
    """Cut what is longer, never refuse it: one lesson that is too long must not lose the others to a parse error."""
    return pydantic.AfterValidator(lambda text: text if len(text) <= most else f"{text[: most - 1]}…")


def _usual(longest: int) -> dict[str, pydantic.JsonValue]:
    """The length that the schema states, and that an engine with constrained output keeps to."""
    return {"minLength": 3, "maxLength": longest}


def plain_keys(given: dict[Any, Any]) -> dict[Any, Any]:
    """``given`` with its keys in lower case; of keys that are alike then, what is in lower case counts, else the first.
    """
    plain: dict[Any, Any] = {}
    for key, value in given.items():
        name = key.strip().lower() if isinstance(key, str) else key
        if name == key or name not in given:
            plain.setdefault(name, value)
    return plain


def _untitled(schema: dict[str, Any]) -> None:
    """Take out pydantic's own titles: a small model reads ``"title": "Title"`` as what a title has to be."""
    schema.pop("title", None)
    for field in schema["properties"].values():
        field.pop("title", None)


class MemoryDraft(pydantic.BaseModel):
    """A lesson for other tasks."""

    # The docstring above is part of the distillers' prompts. The three fields are the paper's (section 3.1). A distiller
    # proposes drafts; the bank decides what it admits.

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """A field that is missing is empty, and one is known in any case, as Title: one incomplete lesson must not lose the others either."""
        return {**dict.fromkeys(cls.model_fields, ""), **plain_keys(given)} if isinstance(given, dict) else given

    model_config = pydantic.ConfigDict(frozen=True, str_strip_whitespace=True, json_schema_extra=_untitled)

    title: Annotated[str, _cut_at(200)] = pydantic.Field(
        description="names the strategy in a few words", json_schema_extra=_usual(80)
    )
    description: Annotated[str, _cut_at(600)] = pydantic.Field(
        description="one sentence: when to use this, and when not to", json_schema_extra=_usual(240)
    )
    content: Annotated[str, _cut_at(2000)] = pydantic.Field(
        description="one to three sentences: what to do and why", json_schema_extra=_usual(480)
    )
