"""The JSON adapter of local models: valid actions only, bounded strings, and prompts that only grow at the end."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

import dspy
import pydantic

from rb_dspy.errors import InputError

MAX_CHARS = 240
"""Maximum length of a free string. At temperature 0 a small model can repeat itself until its tokens run out."""
MAX_ITEMS = 8
"""Maximum length of a list whose type sets no bound."""
MAX_ACTIONS = 256
"""A longer list of actions is not enforced: 500 actions cost 3 seconds per call, 10,000 three minutes."""

_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum")
_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+?]\??|\{[\d,]+\}\??|\(\?:|\(\?|.", re.DOTALL)
_ANY = r'(?:\\["\\]|[^"\\\n\r\t])'
"""One character of a JSON string; quotes and backslashes are escaped there."""
_SHORTHANDS = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\s": " "}
_SPECIAL = frozenset("^$.[]()|{}*+?")
_REPEATED = {"*": f"{{0,{MAX_CHARS}}}", "+": f"{{1,{MAX_CHARS}}}"}


class ActionAdapter(dspy.JSONAdapter):
    """``dspy.JSONAdapter`` that sends a stricter JSON schema to an LM that accepts one.

    - The output field ``action`` is one of the input ``valid_actions``, if that is a list of 1 to ``MAX_ACTIONS``; else
      it matches the input ``action_pattern``, a regular expression of literals, classes, groups, alternatives and
      repetition that has to match the whole action. The pattern is not shown to the model.
    - Every unbounded string and list gets a bound.
    - Earlier turns are shown as the model wrote them (JSON on one line), so that a server processes only new text.

    A ``<think>`` block before the answer is ignored.
    """

    def _call_preprocess(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: type[dspy.Signature], inputs: dict[str, Any]
    ) -> type[dspy.Signature]:
        # The only private name of DSPy that we use: it has no public way to change the response format of one call.
        signature = super()._call_preprocess(lm, lm_kwargs, signature, inputs)
        answer: Any = lm_kwargs.get("response_format")
        if hasattr(answer, "model_json_schema"):
            schema = answer.model_json_schema()
            for name, field in signature.output_fields.items():
                schema["properties"].get(name, {}).update(_stated_bounds(field))
            schema = _bounded(schema)
            if "action" in schema["properties"]:
                schema["properties"]["action"] |= _action(inputs.get("valid_actions"), inputs.get("action_pattern"))
            json_schema = {"name": "answer", "schema": schema}
            lm_kwargs["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        return signature.delete("action_pattern") if "action_pattern" in signature.input_fields else signature

    def format_field_with_value(self, fields_with_values: Any, role: str = "user") -> str:
        """Format the fields as DSPy does, but an answer on one line."""
        text: str = super().format_field_with_value(fields_with_values, role)
        return text if role == "user" else json.dumps(json.loads(text), ensure_ascii=False)

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the fields. Raises ``AdapterParseError``."""
        fields: dict[str, Any] = super().parse(signature, _THINKING.sub("", completion, count=1))
        return fields


def _action(valid: Any, pattern: Any) -> dict[str, Any]:
    if isinstance(valid, Sequence) and not isinstance(valid, str) and 0 < len(valid) <= MAX_ACTIONS:
        return {"enum": list(dict.fromkeys(str(action) for action in valid))}
    return {"pattern": json_pattern(str(pattern))} if pattern else {}


def _stated_bounds(field: Any) -> dict[str, Any]:
    """Return an output field's own bounds, such as ``max_length``; DSPy's schema only has those of its type."""
    if not field.metadata:
        return {}
    schema = pydantic.TypeAdapter(Annotated[(field.annotation, *field.metadata)]).json_schema()
    return {name: schema[name] for name in _BOUNDS if name in schema}


def _bounded(schema: Any) -> Any:
    """Return a copy of a JSON schema in which every string and list is bounded."""
    if isinstance(schema, list):
        return [_bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: _bounded(value) for name, value in schema.items()}
    if bounded.get("type") == "string" and "enum" not in bounded and "const" not in bounded:
        bounded.setdefault("maxLength", MAX_CHARS)
    if bounded.get("type") == "array":
        bounded.setdefault("maxItems", MAX_ITEMS)
    return bounded


@functools.lru_cache
def json_pattern(pattern: str) -> str:
    """Translate ``pattern`` for llama.cpp: anchored, of bounded length, and matching the JSON form of a string.

    Raises ``InputError`` for what llama.cpp cannot enforce: lookaround, back references, word boundaries.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"action_pattern {pattern!r} is not a regular expression: {error}; expected one such as ^(GO .*)$"
        ) from error
    tokens = _TOKEN.findall(pattern)
    if tokens[:1] == ["^"]:
        del tokens[0]
    if tokens[-1:] == ["$"]:
        del tokens[-1]
    body = "".join(_translated(token, pattern, tokens[i - 1] if i else "") for i, token in enumerate(tokens))
    return f"^({body})$"


def _translated(token: str, pattern: str, before: str) -> str:
    escaped = token[1:] if len(token) == 2 and token[0] == "\\" else ""
    if token in ("^", "$", "(?") or (escaped.isalnum() and token not in (*_SHORTHANDS, r"\n", r"\t")):
        raise InputError(
            f"action_pattern {pattern!r} uses {token!r}; expected literals, classes, groups without names, | and"
            " repetition only"
        )
    if token[0] in "*+?{" and token != "{":  # a lazy repetition accepts the same texts
        greedy = token[:-1] if len(token) > 1 and token[-1] == "?" else token
        return greedy if before == ")" else _REPEATED.get(greedy, greedy)
    if token == ".":
        return _ANY
    if token in _SHORTHANDS:
        return f"[{_SHORTHANDS[token]}]"
    if token[0] == "[" and len(token) > 1:
        return _class(token)
    if token in ('"', r"\"", r"\\", r"\n", r"\t"):
        return r"\\" + (r"\\" if token == r"\\" else token[-1])
    if escaped and escaped not in _SPECIAL:
        token = escaped
    return token if token.isascii() else f"[{token}]"


def _class(token: str) -> str:
    """Translate a class of characters; it cannot contain characters that JSON escapes."""
    for shorthand, letters in _SHORTHANDS.items():
        token = token.replace(shorthand, letters)
    token = re.sub(r"\\([^\w\\\]^-])", r"\1", token)
    if token.startswith("[^"):
        return r'[^"\\\n\r\t' + token[2:]
    if '"' not in token:
        return token
    rest = token.replace('"', "")
    return r"(?:\\" + '"' + ("" if rest == "[]" else f"|{rest}") + ")"
