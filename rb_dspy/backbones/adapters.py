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

_CONTROL = re.compile(
    r"<(?=[|｜]|/?(?:[^\W_]*+_\w*+|s|unk|pad|bos|eos|sep|cls|mask|image|think|unused\d+|\w++\|)>|</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|PREFIX|MIDDLE|SUFFIX|THINK|IMG|ARGS|[A-Z]++_[A-Z_]++)\])"
)
"""Starts of what chat templates use as control tokens: ``<|im_end|>``, ``<start_of_turn>``, ``</s>``, ``[INST]``."""
_ESCAPED = re.compile(r"([<[])(?:\u200b|\\u200b)")

_TOKEN = re.compile(
    r"(?P<class>\[\^?-?(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|\\[dws]|\\[^\w\s^]|[^][\\^\s-]|[ ])*-?\])"
    r"|(?:(?P<open>[*+]|\{(?P<least>\d+),\})|(?P<repeat>\?|\{\d+(?:,\d+)?\}))\??(?!\+)"
    r"|(?P<mark>\((?:\?:|(?!\?))|\)|\||\A\^|\$\Z)"
    r"|(?P<set>\.|\\[dwsDWS])|(?P<char>\\[nt]|\\[^\w\s]|[^][\\(){}*+?.^$|])|.",
    re.DOTALL,
)
"""The parts of a pattern, or any other character. A lazy repetition accepts the same texts."""
_CLASS_PART = re.compile(r"\\.|\w-\w|.", re.DOTALL)
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
            schema = json.loads(json.dumps(schema), object_hook=_bounded)
            if "action" in schema["properties"]:
                schema["properties"]["action"] |= _action(inputs.get("valid_actions"), inputs.get("action_pattern"))
            json_schema = {"name": "answer", "schema": schema}
            lm_kwargs["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        return signature.delete("action_pattern") if "action_pattern" in signature.input_fields else signature

    def format_user_message_content(self, *args: Any, **kwargs: Any) -> str:
        """Format the inputs of a turn as DSPy does, with control tokens as text."""
        return escape_control_tokens(super().format_user_message_content(*args, **kwargs))

    def format_task_description(self, signature: type[dspy.Signature]) -> str:
        """Format the instructions, which may hold lessons, as DSPy does, with control tokens as text."""
        return escape_control_tokens(super().format_task_description(signature))

    def format_field_with_value(self, fields_with_values: Any, role: str = "user") -> str:
        """Format the fields as DSPy does, but an answer on one line."""
        text: str = super().format_field_with_value(fields_with_values, role)
        return text if role == "user" else escape_control_tokens(json.dumps(json.loads(text), ensure_ascii=False))

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the fields. Raises ``AdapterParseError``."""
        return super().parse(signature, _ESCAPED.sub(r"\1", completion))


def escape_control_tokens(text: str) -> str:
    """Make text of what a chat template may use as a control token: a zero-width space after its first character."""
    return _CONTROL.sub("\\g<0>\u200b", text)


def _action(valid: Any, pattern: Any) -> dict[str, Any]:
    if isinstance(valid, Sequence) and not isinstance(valid, str) and 0 < len(valid) <= MAX_ACTIONS:
        return {"enum": list(dict.fromkeys(str(action) for action in valid))}
    return {"pattern": json_pattern(str(pattern))} if pattern else {}


def _stated_bounds(field: Any) -> dict[str, Any]:
    """Return an output field's own bounds, such as ``max_length``; DSPy's schema only has those of its type."""
    if not field.metadata:
        return {}
    schema = pydantic.TypeAdapter(Annotated[(field.annotation, *field.metadata)]).json_schema()
    return {name: bound for name, bound in schema.items() if name.startswith(("min", "max"))}


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Bound an object of a JSON schema that describes a string or a list."""
    if schema.get("type") == "string" and not schema.keys() & {"enum", "const"}:
        schema.setdefault("maxLength", MAX_CHARS)
    if schema.get("type") == "array":
        schema.setdefault("maxItems", MAX_ITEMS)
    return schema


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
    return f"^({_TOKEN.sub(_translated, pattern)})$"


def _translated(token: re.Match[str]) -> str:
    text, kind = token[0], token.lastgroup
    if kind == "class":
        return _class(text)
    if kind == "set":  # a capital letter is the opposite
        return _class("[^]" if text == "." else f"[^{text.lower()}]" if text.isupper() else f"[{text}]")
    if kind == "char":
        return _literal({r"\n": "\n", r"\t": "\t"}.get(text, text[-1]))
    if kind == "open":
        least = int(token["least"] or text.startswith("+"))
        return f"{{{least},{max(least, MAX_CHARS)}}}"
    if kind in ("repeat", "mark"):
        return token[kind].strip("^$")
    raise InputError(
        f"action_pattern {token.string!r}: {token.string[token.start() :][:8]!r} cannot be enforced by a local model;"
        " expected literals, escaped special characters, ., classes such as [a-z0-9_] or [^;], groups without names,"
        " | and repetition"
    )


def _literal(char: str) -> str:
    """One character as JSON writes it."""
    form = json.dumps(char, ensure_ascii=False)[1:-1]
    if len(form) > 1:
        return f"(?:{form.replace(chr(92), 2 * chr(92))})"
    return f"\\{char}" if char in "^$.[]()|{}*+?" else char if char.isascii() else f"[{char}]"


def _class(text: str) -> str:
    """A class as alternatives: quotes and backslashes have a backslash before them in JSON."""
    negated = text.startswith("[^")
    parts = [_SETS.get(part, part.removeprefix("\\")) for part in _CLASS_PART.findall(text[1 + negated : -1])]
    forms = [_literal(char) for char in '"\\' if (char in parts) != negated]
    plain = ['^"\\\\\\n\\r\\t'] * negated
    plain += [f"\\{part}" if part in "[]" else part for part in parts if part not in ('"', "\\", "-")]
    plain += ["-"] * ("-" in parts)
    if plain:
        forms.append(f"[{''.join(plain)}]")
    return forms[0] if len(forms) == 1 else f"(?:{'|'.join(forms)})"
