"""What a part of a message, or a tool's result, says: as text.

Chat APIs mark their parts by a ``type``, and so do the records that tools return. So a part is read as an API's only
where it has that API's shape; everything else is JSON, whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rb_dspy.errors import InvalidTrajectory

TEXT = ("text", "input_text", "output_text", "refusal")
THOUGHT = ("thinking", "reasoning", "reasoning_text", "summary_text")
SHOWN = (
    *("image", "image_url", "input_image", "file", "input_file", "document"),
    *("audio", "input_audio", "output_audio"),
)

_WORDS = ("thinking", "text", "refusal", "reasoning", "summary", "content")
_HEARD = ("text", "transcript")
_TITLES = ("title", "filename", "context")
_MEDIA_TYPE = ("mime_type", "mimeType", "media_type")
_ANYWHERE = ("data", "base64", "url", "file_id")
_BYTES = ("source", "image_url", "input_audio", "audio", "file", "file_data", "file_url", *_ANYWHERE)
_ASIDE = (
    *("type", "id", "index", "annotations", "citations", "cache_control", "signature", "extras", "_meta"),
    *("detail", "format", "source_type"),
)
"""The formats' own keys, which tell a judge nothing."""


def get(thing: Any, key: str) -> Any:
    """What ``thing``, a mapping or an object of a client library, has under ``key``; None without."""
    return thing.get(key) if isinstance(thing, Mapping) else getattr(thing, key, None)


def flat(content: Any, i: int) -> str:
    """A tool's result, or a thought, of message ``i``: text, parts, or any JSON value.

    Raises ``InvalidTrajectory`` for what is none of these.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_element(element, i) for element in content)
    if isinstance(content, Mapping | int | float | bool):
        return as_json(content)
    raise InvalidTrajectory(f"message {i}: content is a {type(content).__name__}; expected text or parts")


def words(part: Any, i: int) -> str:
    """What a text or a thought says; where that stands in no place that is known, all that there is of the part."""
    held = [get(part, key) for key in _WORDS if get(part, key) is not None]
    return "\n".join(filter(None, (flat(each, i) for each in held))) if held else as_json(_fields(part))


def seen(part: Any, i: int) -> str:
    """The words that a picture, a sound or a file has with it, and ``[kind]`` where its content is none."""
    if not _is_media(part):
        return as_json(_fields(part))
    source = get(part, "source")
    inside = {"text": "data", "content": "content"}.get(str(get(source, "type")), "")
    titles = [get(get(part, "file"), "filename"), *(get(part, key) for key in _TITLES)]
    content = [*(get(part, key) for key in _HEARD), get(source, inside)]
    said = "\n".join(filter(None, (flat(each, i) for each in content)))
    return "\n".join(filter(None, [*(flat(each, i) for each in titles), said or f"[{get(part, 'type')}]"]))


def as_json(value: Any) -> str:
    """``value`` in one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _element(element: Any, i: int) -> str:
    kind = get(element, "type")
    if kind is None:
        return flat(element, i)
    if kind in SHOWN:
        return seen(element, i)
    if kind in (*TEXT, *THOUGHT) and not _others(element, *_WORDS, *_ASIDE):
        return words(element, i)
    return as_json(_fields(element))


def _is_media(part: Any) -> bool:
    """Whether it has the shape of a picture, a sound or a file, and is no record of such a thing, as in a listing."""
    if _others(part, *_BYTES, *_MEDIA_TYPE, *_TITLES, *_HEARD, *_ASIDE):
        return False
    if isinstance(get(part, "source"), str) or isinstance(get(part, "file"), str):
        return False
    if not _others(part, "type"):
        return True
    if get(part, "type") in ("file", "document") and any(get(part, key) for key in _ANYWHERE):
        return any(get(part, key) for key in _MEDIA_TYPE)
    return any(get(part, key) is not None for key in (*_BYTES, *_HEARD))


def _others(part: Any, *known: str) -> bool:
    """Whether ``part`` holds anything under another name than those."""
    return any(value is not None and name not in known for name, value in _fields(part).items())


def _fields(part: Any) -> Mapping[str, Any]:
    if isinstance(part, Mapping):
        return part
    if hasattr(part, "model_dump"):
        dumped: Mapping[str, Any] = part.model_dump()
        return dumped
    return getattr(part, "__dict__", {"text": str(part)})
