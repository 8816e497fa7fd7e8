"""The typed value that distillers and contrasters return."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic


def _cut_at(limit: int) -> pydantic.AfterValidator:
    """Cut a longer text instead of refusing it: one long lesson must not lose the others to a parse error."""
    return pydantic.AfterValidator(lambda text: text if len(text) <= limit else f"{text[: limit - 1]}…")


def _bounds(max_length: int) -> dict[str, pydantic.JsonValue]:
    """The length in the schema, which a server with constrained output enforces."""
    return {"minLength": 3, "maxLength": max_length}


def _without_titles(schema: dict[str, Any]) -> None:
    """Remove pydantic's own titles: a small model copies ``"title": "Title"`` as the value."""
    schema.pop("title", None)
    for field in schema["properties"].values():
        field.pop("title", None)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    if isinstance(value, str):  # JSON can hold half of a surrogate pair, which pydantic refuses
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(value) if isinstance(value, int | float) else ""


class MemoryDraft(pydantic.BaseModel):
    """A lesson for other tasks."""

    # The docstring above is part of the distillers' prompts. The three fields are the paper's (section 3.1).

    model_config = pydantic.ConfigDict(frozen=True, str_strip_whitespace=True, json_schema_extra=_without_titles)

    title: Annotated[str, _cut_at(200)] = pydantic.Field(
        description="names what it is about in a few words", json_schema_extra=_bounds(80)
    )
    description: Annotated[str, _cut_at(600)] = pydantic.Field(
        description="one sentence: when to use this, and when not to", json_schema_extra=_bounds(240)
    )
    content: Annotated[str, _cut_at(2000)] = pydantic.Field(
        description="one to three sentences: what is true, or what to do and why", json_schema_extra=_bounds(480)
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Accept keys in any case, and other values than texts: one poor lesson must not lose the others.

        What cannot be read becomes empty, and a lesson without a title or content is dropped later.
        """
        if isinstance(data, MemoryDraft):
            return data
        given = {str(key).strip().lower(): data[key] for key in data} if isinstance(data, dict) else {}
        return {name: _text(given.get(name)) for name in cls.model_fields}


class Strategy(MemoryDraft):
    """A strategy for other tasks."""

    description: Annotated[str, _cut_at(600)] = pydantic.Field(
        description="the item in one plain sentence", json_schema_extra=_bounds(240)
    )
    content: Annotated[str, _cut_at(2000)] = pydantic.Field(
        description="what to do and why", json_schema_extra=_bounds(480)
    )


def _without_description(schema: dict[str, Any]) -> None:
    _without_titles(schema)
    del schema["properties"]["description"]
    schema["required"].remove("description")


class Note(MemoryDraft):
    """A fact or a rule for other tasks."""

    # A draft without a description, which is read if a model writes one all the same: it costs a small model a third of
    # its tokens, and the title says what the note is about.

    model_config = pydantic.ConfigDict(json_schema_extra=_without_description)

    title: Annotated[str, _cut_at(200)] = pydantic.Field(
        description="the subject in two to five words, such as: Limit for refunds", json_schema_extra=_bounds(60)
    )
    content: Annotated[str, _cut_at(2000)] = pydantic.Field(
        description="the fact or the rule in one short sentence, without the task it was met in",
        json_schema_extra=_bounds(160),
    )
