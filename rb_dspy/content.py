"""The content of messages, tool results and observations, as text."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import dspy
import pydantic

from rb_dspy.errors import InvalidTrajectory

THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_text", "reasoning_content", "summary_text"})
"""Types of the parts that contain a thought."""

_TEXTS = THOUGHTS | {"text", "input_text", "output_text", "refusal"}
_MEDIUM = re.compile(
    r"(?:input_|output_|computer_)?(image|screenshot|audio|video|file|document|media|resource|inlineData|inline_data"
    r"|fileData|file_data|container_upload)(?:_url)?"
)
"""Types of the parts that hold or name a binary; Bedrock and Gemini have the same names as fields."""
_WRAPPERS = {
    **dict.fromkeys(("toolUse", "functionCall", "function_call", "executableCode", "executable_code"), "tool_use"),
    **dict.fromkeys(("toolResult", "functionResponse", "function_response"), "tool_result"),
    **dict.fromkeys(("codeExecutionResult", "code_execution_result"), "tool_result"),
    **dict.fromkeys(("citationsContent", "guardContent"), "text"),
    "reasoningContent": "reasoning",
    "cachePoint": "cache_point",
    "toolInvocation": "tool_use",
}
"""The field that holds a part of Bedrock, Gemini or the AI SDK -> the part's type."""

_WORDS = (
    *("text", "refusal", "thinking", "reasoning", "reasoningText", "reasoning_content", "summary", "content"),
    "transcript",
)
_TITLES = ("title", "filename", "name", "context", "label", "uri")
_MEDIA_TYPES = ("mimeType", "mime_type", "mediaType", "media_type", "contentType")
_BINARY = frozenset({"data", "base64", "blob", "bytes", "file_data", "file_id", "fileId", "source"})
_KNOWN = _BINARY.union(
    *(_WORDS, _TITLES, _MEDIA_TYPES, ("type", "id", "index", "url", "extras", "_meta", "detail", "format", "state")),
    *(("annotations", "citations", "logprobs", "cache_control", "source_type", "qualifiers"),),
    *(("signature", "thoughtSignature", "thought_signature", "providerMetadata", "providerOptions"),),
)
"""Fields of a part that are its words or its binary, or say nothing to a reader."""
_MAX_DEPTH = 100

_DATA_URL = re.compile(r"data:(?:(\w{1,40})/[\w.+-]{1,100})?(?:;[\w.+=-]{1,100}){0,5};base64,[\w+/=%-]*", re.ASCII)
_BASE64 = re.compile(
    r"(?<![\w+/-])(?=[a-z\d+/_-]*[A-Z])(?=[A-Z\d+/_-]*[a-z])(?=[A-Za-z+/_-]*\d)([\w+/-]{500,})={0,2}", re.ASCII
)
"""Base64 mixes cases and digits; a sequence of genes or a ruler does not."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(value: Any, depth: int = 0) -> Any:
    """Convert mappings, sequences and the objects of client libraries to dicts and lists; other objects to their text.

    Binaries become ``[image]`` or ``[binary, 12 bytes]``. Encrypted content, which only the provider can read, is
    skipped.

    Raises:
        InvalidTrajectory: The value is nested too deeply, or contains itself.
    """
    if isinstance(value, str):
        return _without_binaries(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value).decode(errors="replace")
        is_text = "\ufffd" not in text and "\0" not in text
        return _without_binaries(text) if is_text else f"[binary, {len(bytes(value)):,} bytes]"
    if depth > _MAX_DEPTH:
        raise InvalidTrajectory(f"the trajectory is nested more than {_MAX_DEPTH} levels deep; expected fewer")
    if isinstance(value, dspy.Reasoning):
        return value.content
    for medium in (dspy.Image, dspy.Audio, dspy.File):
        if isinstance(value, medium):
            return join([getattr(value, "filename", None) or "", f"[{medium.__name__.lower()}]"])
    fields = _fields(value)
    if fields is not None:
        return {str(name): plain(part, depth + 1) for name, part in fields.items() if name != "encrypted_content"}
    if isinstance(value, Set | Sequence):
        return [plain(part, depth + 1) for part in (sorted(value, key=str) if isinstance(value, Set) else value)]
    return _without_binaries(_object_text(value))


def kind(part: Mapping[str, Any]) -> str:
    """The type of a message or a part; empty if it has none."""
    value = part.get("type")
    return value if isinstance(value, str) else ""


def typed(part: dict[str, Any]) -> dict[str, Any]:
    """``part`` with the type that OpenAI or Anthropic would give it, and its fields beside the type."""
    name = kind(part)
    if name == "dynamic-tool" or (name.startswith("tool-") and {"state", "toolCallId"} <= part.keys()):  # the AI SDK's
        return {"toolName": name.removeprefix("tool-"), **part, "type": "tool_use"}
    if name and name != "tool-invocation":
        return part
    if part.get("thought") is True:  # Gemini's
        return {**part, "type": "reasoning"}
    for field, inner in part.items():
        if isinstance(inner, dict) and (field in _WRAPPERS or _MEDIUM.fullmatch(field)):
            return {**part, **inner, "type": _WRAPPERS.get(field, field)}
    return {**part, "type": "text"} if "text" in part else part


def as_text(content: Any) -> str:
    """The text of a tool result or a thought: text, parts, or any JSON. A record with fields of its own stays JSON."""
    if isinstance(content, list):
        return join(map(as_text, content))
    if not isinstance(content, dict):
        return verbatim(content)
    if isinstance(content.get("content"), list) and "isError" in content:  # a tool result of MCP
        return join(["[error]" if content["isError"] else "", as_text(content["content"])])
    if list(content) == ["json"]:  # Bedrock's
        return as_text(content["json"])
    part = typed(content) if len(content) == 1 or content.keys() <= {"text", "signature"} else content
    has_binary = _MEDIUM.fullmatch(kind(part)) is not None and not _BINARY.isdisjoint(part)
    is_text = bool(kind(part)) and (part is content or "text" in content) and all(map(_is_known, part))
    text = part_text(part) if has_binary or is_text else None
    return as_json(content) if text is None else text


def observation_text(value: Any) -> str:
    """What a tool or an environment returned: a text, and the text of an object, as it is; anything else as JSON."""
    try:
        content = plain(value)
    except InvalidTrajectory:
        return f"[{type(value).__name__}, nested too deeply]"
    return observed(content) if isinstance(content, str | dict | list) else as_json(content)


def observed(content: Any) -> str:
    """The text of a step's observation: a text, the text of parts, or any other JSON."""
    parts = content if isinstance(content, list) else []
    is_text = all(isinstance(part, dict) and (kind(part) in _TEXTS or _MEDIUM.fullmatch(kind(part))) for part in parts)
    return as_text(content) if is_text and content != [] else as_json(content)


def part_text(part: dict[str, Any]) -> str | None:
    """The text of a typed part: its words; titles, words and a placeholder (``[image]``, ``[audio]``, ``[video]`` or
    ``[file]``) of a medium; None if it is neither.
    """
    inner = {key: value for each in part.values() if isinstance(each, dict) for key, value in each.items()}
    is_medium = _MEDIUM.fullmatch(kind(part))
    fields = {**inner, **part} if is_medium else part
    words = [as_text(fields[key]) for key in _WORDS if fields.get(key) is not None]
    if kind(part) in _TEXTS:
        return join(words) if words or all(map(_is_known, part)) else None
    if not is_medium:
        return None
    if inner.get("type") == "text" or isinstance(inner.get("data"), dict):  # a document of Anthropic, of Cohere
        words.append(as_text(inner.get("data")))
    label = f"[{_label(kind(part), fields)}]"
    titles = [fields.get(key) for key in _TITLES] + [part.get(key) for key in ("source", "url", "file")]
    lines = [title for title in titles if isinstance(title, str) and title != label and title[:7] != "[binary"]
    rest = {key: value for key, value in part.items() if not _is_known(key)}
    return join([*lines, join(words) or label, as_json(rest) if rest else ""])


def verbatim(value: Any) -> str:
    """A text as it is, anything else as JSON, and None as an empty text."""
    return value or "" if value is None or isinstance(value, str) else as_json(value)


def join(texts: Iterable[str]) -> str:
    """Join the texts that are not empty, one per line."""
    return "\n".join(filter(None, texts))


def as_json(value: Any) -> str:
    """``value`` as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The fields of a mapping, a record or an object of a client library; None if it is none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, dspy.Example):
        return dict(value.items())
    if isinstance(value, pydantic.BaseModel):
        names = [*type(value).model_fields, *(value.model_extra or ())]
        fields = {name: getattr(value, name, None) for name in names}
        return {name: part for name, part in fields.items() if part is not None or name == "content"}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence) and hasattr(value, "keys"):  # a row of sqlite3
        return dict(zip(value.keys(), value, strict=True))
    if isinstance(value, Sequence) and hasattr(value, "_asdict"):  # named tuples, rows of SQLAlchemy
        return dict(value._asdict())
    # Static, because a data frame has an attribute for each of its columns.
    is_part = any(isinstance(inspect.getattr_static(value, name, None), str) for name in ("role", "type"))
    own = getattr(value, "__dict__", None) if is_part else None
    return own and {name: part for name, part in own.items() if not name.startswith("_")}


def _object_text(value: Any) -> str:
    """The text of an object, or its fields, without memory addresses: equal rollouts have equal ids."""
    name = type(value).__name__
    try:
        if not {type(value).__str__, type(value).__repr__} <= {object.__str__, object.__repr__}:
            return _ADDRESS.sub("", str(value)) or name
        fields = {field: part for field, part in vars(value).items() if not field.startswith("_")}
        texts = [f"{field}={plain(part if isinstance(part, bytes) else str(part))}" for field, part in fields.items()]
    except Exception:  # noqa: BLE001 - an object of a tool, such as a row whose connection is closed
        return f"[{name}]"
    return _ADDRESS.sub("", f"{name}({', '.join(texts)})")


def _without_binaries(text: str) -> str:
    if "base64," in text:
        text = _DATA_URL.sub(lambda match: f"[{_label(match[1] or '', {})}]", text)
    if len(text) < 500:
        return text
    return _BASE64.sub(lambda match: f"[binary, {len(match[1]) * 3 // 4:,} bytes]", text)


def _is_known(field: str) -> bool:
    return field in _KNOWN or _MEDIUM.fullmatch(field) is not None


def _label(name: str, fields: Mapping[str, Any]) -> str:
    media_type = next((fields[key] for key in _MEDIA_TYPES if isinstance(fields.get(key), str)), "")
    found = re.search("image|audio|video", f"{media_type.partition('/')[0]} {name.replace('screenshot', 'image')}")
    return found[0] if found else "file"
