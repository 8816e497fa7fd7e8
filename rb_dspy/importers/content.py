"""The content of messages and tool results, as text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import dspy
import pydantic

from rb_dspy.errors import InvalidTrajectory

THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_text", "summary_text"})
"""Types of the parts that contain a thought."""

_TEXTS = THOUGHTS | {"text", "input_text", "output_text", "refusal"}
_MEDIA = {
    **dict.fromkeys(("image", "image_url", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("audio", "input_audio", "output_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("file", "input_file", "document"), "file"),
}
_TEXT_KEYS = ("text", "refusal", "thinking", "reasoning", "summary", "content", "transcript")
_TITLE_KEYS = ("title", "filename", "name", "context", "label", "url", "file", "source")
_BINARY_KEYS = frozenset({"data", "base64", "file_data", "file_id", "file_url", "image_url", "video_url"})
_METADATA_KEYS = frozenset(
    {"id", "index", "annotations", "citations", "logprobs", "cache_control", "signature", "extras"}
)
_FORMAT_KEYS = frozenset({"_meta", "type", "detail", "format", "source_type", "mime_type", "mimeType", "media_type"})
_NON_TEXT_KEYS = _BINARY_KEYS | _METADATA_KEYS | _FORMAT_KEYS | {"audio", "input_audio"}
_PART_KEYS = _NON_TEXT_KEYS.union(_TEXT_KEYS, _TITLE_KEYS)
_MAX_DEPTH = 100


def plain(value: Any, depth: int = 0) -> Any:
    """Convert mappings, sequences and the objects of client libraries to dicts and lists; other objects to their text.

    Encrypted content, which only the provider can read, is skipped.

    Raises:
        InvalidTrajectory: The value is nested too deeply, or contains itself.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if depth > _MAX_DEPTH:
        raise InvalidTrajectory(f"the trajectory is nested more than {_MAX_DEPTH} levels deep; expected fewer")
    fields: Mapping[Any, Any] | None = None
    if isinstance(value, dspy.Reasoning):
        return value.content
    if isinstance(value, Mapping):
        fields = value
    elif isinstance(value, dspy.Example):
        fields = dict(value.items())
    elif isinstance(value, pydantic.BaseModel):
        values = {name: getattr(value, name, None) for name in type(value).model_fields}
        fields = {name: part for name, part in {**values, **(value.model_extra or {})}.items() if part is not None}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "__dict__") and (hasattr(value, "role") or hasattr(value, "type")):
        fields = {name: part for name, part in vars(value).items() if not name.startswith("_")}
    if fields is not None:
        return {str(name): plain(part, depth + 1) for name, part in fields.items() if name != "encrypted_content"}
    if isinstance(value, Set):
        value = sorted(value, key=str)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(part, depth + 1) for part in value]
    return str(value)


def kind(part: Mapping[str, Any]) -> str:
    """The type of a message or a part; empty if it has none."""
    value = part.get("type")
    return value if isinstance(value, str) else ""


def as_text(content: Any) -> str:
    """The text of a tool result or a thought: text, parts, or any JSON. A record with fields of its own stays JSON."""
    if isinstance(content, list):
        return join(as_text(part) for part in content)
    if isinstance(content, dict) and _PART_KEYS.issuperset(content):
        return part_text(content)
    return verbatim(content)


def part_text(part: dict[str, Any]) -> str:
    """The text of a message's part; ``[image]``, ``[audio]``, ``[video]`` or ``[file]`` for a part without text."""
    words = [part[name] for name in _TEXT_KEYS if part.get(name) is not None]
    if kind(part) in _TEXTS and (words or _NON_TEXT_KEYS.issuperset(part)):
        return join(map(as_text, words))
    if kind(part) not in _MEDIA:
        return as_json(part)
    titles = [part[name] for name in _TITLE_KEYS if isinstance(part.get(name), str)]
    source, file = part.get("source"), part.get("file")
    if isinstance(source, dict):  # Anthropic's documents
        words += [source.get("content"), source.get("data") if source.get("type") == "text" else None]
    if isinstance(file, dict):
        titles.append(verbatim(file.get("filename")))
    titles = [title for title in titles if not title.startswith("data:")]
    return join([*titles, join(map(as_text, words)) or f"[{_MEDIA[kind(part)]}]"])


def verbatim(value: Any) -> str:
    """A text as it is, anything else as JSON, and None as an empty text."""
    return value or "" if value is None or isinstance(value, str) else as_json(value)


def join(texts: Iterable[str]) -> str:
    """Join the texts that are not empty, one per line."""
    return "\n".join(filter(None, texts))


def as_json(value: Any) -> str:
    """``value`` as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)
