"""The JSON adapter of local models: valid actions only, bounded strings, and prompts that only grow at the end."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

import dspy
import pydantic

from rb_dspy.backbones.answers import AnswerReader
from rb_dspy.errors import InputError

MAX_CHARS = 240
"""Maximum length of a free string. At temperature 0 a small model can repeat itself until its tokens run out."""
MAX_ITEMS = 8
"""Maximum length of a list whose type sets no bound."""
MAX_ACTIONS = 256
"""A longer list of actions is not enforced: 500 actions cost 3 seconds per call, 10,000 three minutes."""

_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum")

_CONTROL = re.compile(
    r"<(?=[|｜]|/?(?:[^\W_]*+_\w*+|s|unk|pad|bos|eos|sep|cls|mask|image|think|unused\d+|\w++\|)>|</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|PREFIX|MIDDLE|SUFFIX|THINK|IMG|ARGS|[A-Z]++_[A-Z_]++)\])"
)
"""Starts of what chat templates use as control tokens: ``<|im_end|>``, ``<start_of_turn>``, ``</s>``, ``[INST]``."""
_SPLIT = "\u200b"
"""A zero-width space after the first character of a control token makes it text for a tokenizer."""
_ESCAPED = re.compile(r"([<[])(?:\u200b|\\u200b)")

_TOKEN = re.compile(
    r"(?P<class>\[\^?-?(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|\\[dws]|\\[^\w\s^]|[^][\\^\s-]|[ ])*-?\])"
    r"|(?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)|(?P<group>\((?:\?:)?|\)|\|)|(?P<any>\.)"
    r"|(?P<set>\\[dwsDWS])|(?P<char>\\[nt]|\\[^\w\s]|[^][\\(){}*+?.^$|])",
)
_CLASS_PART = re.compile(r".-.|\\.|.", re.DOTALL)
_SETS = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\s": " "}


class ActionAdapter(AnswerReader, dspy.JSONAdapter):
    """``dspy.JSONAdapter`` that sends a stricter JSON schema to an LM that accepts one.

    - The output field ``action`` is one of the input ``valid_actions``, if that is a list of 1 to ``MAX_ACTIONS``; else
      it matches the input ``action_pattern`` (see ``json_pattern``) as a whole. The pattern is not shown to the model.
    - Every unbounded string and list gets a bound.
    - Earlier turns are shown as the model wrote them (JSON on one line), so that a server processes only new text.
    - Control tokens of chat templates in the texts of tasks, environments and lessons are made text, because the server
      would read them as such; the answer has them as they were.
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

    def format_user_message_content(self, *args: Any, **kwargs: Any) -> str:
        """Format the inputs of a turn as DSPy does, with control tokens as text."""
        return escape_control_tokens(super().format_user_message_content(*args, **kwargs))

    def format_field_with_value(self, fields_with_values: Any, role: str = "user") -> str:
        """Format the fields as DSPy does, but an answer on one line."""
        text: str = super().format_field_with_value(fields_with_values, role)
        return text if role == "user" else escape_control_tokens(json.dumps(json.loads(text), ensure_ascii=False))

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the fields. Raises ``AdapterParseError``."""
        return super().parse(signature, _ESCAPED.sub(r"\1", completion))


def escape_control_tokens(text: str) -> str:
    """Make text of everything in ``text`` that a chat template may use as a control token."""
    return _CONTROL.sub(rf"\g<0>{_SPLIT}", text)


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

    A pattern may have literals, ``.``, ``\\d``, ``\\w``, ``\\s`` and their opposites, classes of characters and
    ranges such as ``a-z``, groups without names, ``|`` and repetition. ``*``, ``+`` and ``{2,}`` end at ``MAX_CHARS``.

    Raises ``InputError`` for everything else: what cannot be translated exactly would allow other actions.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"action_pattern {pattern!r} is not a regular expression: {error}; expected one such as ^(GO .*)$"
        ) from error
    place = int(pattern.startswith("^"))
    parts: list[str] = []
    repeatable = False
    while pattern[place:] not in ("", "$"):
        token = _TOKEN.match(pattern, place)
        if token is None or (token["repeat"] and not repeatable):
            raise InputError(
                f"action_pattern {pattern!r}: {pattern[place : place + 8]!r} cannot be enforced by a local model;"
                " expected literals, escaped special characters, ., classes such as [a-z0-9_] or [^;], groups without"
                " names, | and repetition"
            )
        parts.append(_translated(token))
        repeatable = not token["repeat"] and token[0] not in ("(", "(?:", "|")
        place = token.end()
    return f"^({''.join(parts)})$"


def _translated(token: re.Match[str]) -> str:
    text = token[0]
    if token["class"]:
        return _class(text)
    if token["any"]:
        return _class("[^]")
    if token["set"]:
        return f"[{_SETS[text]}]" if text in _SETS else _class(f"[^{text.lower()}]")
    if token["char"]:
        return _literal({r"\n": "\n", r"\t": "\t"}.get(text, text[-1]))
    if token["repeat"]:  # a lazy repetition accepts the same texts
        lazy = text[:-1] if len(text) > 1 and text.endswith("?") else text
        return {"*": f"{{0,{MAX_CHARS}}}", "+": f"{{1,{MAX_CHARS}}}"}.get(lazy, lazy.replace(",}", f",{MAX_CHARS}}}"))
    return text


def _literal(char: str) -> str:
    """One character as JSON writes it."""
    form = json.dumps(char, ensure_ascii=False)[1:-1]
    if len(form) > 1:
        return f"(?:{form.replace(chr(92), 2 * chr(92))})"
    return f"\\{char}" if char in "^$.[]()|{}*+?" else char if char.isascii() else f"[{char}]"


def _class(text: str) -> str:
    """A class as alternatives: quotes and backslashes have a backslash before them in JSON."""
    negated = text.startswith("[^")
    parts = [
        part if len(part) != 2 else _SETS.get(part, part[-1]) for part in _CLASS_PART.findall(text[1 + negated : -1])
    ]
    escaped = [part for part in ('"', "\\") if (part in parts) != negated]
    plain = "".join(f"\\{part}" if part in "[]" else part for part in parts if part not in ('"', "\\", "-"))
    plain += "-" if "-" in parts else ""
    if negated:
        plain = f'^"\\\\\\n\\r\\t{plain}'
    forms = [rf"\\{each}" if each == '"' else r"\\\\" for each in escaped] + ([f"[{plain}]"] if plain else [])
    return forms[0] if len(forms) == 1 and plain else f"(?:{'|'.join(forms)})"
