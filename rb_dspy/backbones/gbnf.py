"""GBNF, llama.cpp's grammar language: rules for free text and for the JSON that dspy renders.

JSON comes out exactly as ``json.dumps(..., ensure_ascii=False)`` writes it, so that a value which is rendered into a
later prompt reads as it was generated. Lengths are bounded everywhere: a small model would ramble on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

MAX_REPEAT = 1900
"""llama.cpp refuses to repeat a rule 2,000 times or more."""
MAX_LIST = 8
"""Most entries of a list that has no bound of its own."""
MAX_RANGE = 100
"""An integer range up to this wide is spelled out; of a wider one only the sign is enforced."""

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f\u0085\u2028\u2029"  # what str.splitlines or a terminal would act on

# Free text is counted in units: a word, a mark with the word that is stuck to it, or a line break. In prose and in code
# a unit is 1 to 1.5 tokens, and where a model has run wild it is about one, so a number of units bounds the tokens,
# which a number of characters does not. Two words cannot touch, hence there is one way to read a text, and the grammar
# stays fast. Text neither starts nor ends with white space, nor starts with "[". A field's header starts with "[[ ##";
# neither it nor what small models write in its stead, "[#" or "[ #", can be written.
_TEXT_RULES = {
    "blank": r"[ \t]{0,40}",
    "word": "[A-Za-z]{1,40}",
    "mark": rf"[^A-Za-z \t\n\[{_CONTROL}]",
    "solid": rf"[^ \t\n#\[{_CONTROL}]",
    "open": r'"["{1,4} (solid | " " solid | "\n" blank solid)',
    "unit": r"blank (mark | open) word? | [ \t] blank word",
    "break": r'"\n" word?',
    "piece": "unit | break",
    "last": r'unit | "\n" blank word',
    "pieces": f"piece{{{MAX_REPEAT}}}",
}
_JSON_RULES = {
    "jv": rf'[^ "\\\t\n{_CONTROL}] | "\\" ["\\nt]',
    "jc": r'jv | " "',
    "int": r'"0" | [1-9] [0-9]{0,14}',
    "num": r'int ("." [0-9]{1,8})?',
    "any": r'"null" | "true" | "false" | "-"? num | str | "[" (any (", " any){0,7})? "]"'
    r' | "{" (pair (", " pair){0,7})? "}"',
    "pair": r'str ": " any',
    "str": r'"\"" jc{0,200} "\""',
}


def literal(text: str) -> str:
    """``text`` as a GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def alternatives(texts: Iterable[str]) -> str:
    """One of ``texts``, exactly."""
    return "(" + " | ".join(literal(text) for text in texts) + ")"


class Grammar:
    """Collects rules; ``str()`` of it is the grammar. ``chars`` bounds the JSON strings that set no lower bound."""

    def __init__(self, chars: int) -> None:
        self.chars = chars
        self._rules: dict[str, str] = {}

    def rule(self, name: str, body: str) -> str:
        """Define a rule; returns its name."""
        self._rules[name] = body
        return name

    def text(self, units: int) -> str:
        """Free text of at most ``units`` words, marks and line breaks, without white space around it."""
        self._rules |= _TEXT_RULES
        whole, rest = divmod(max(units - 2, 0), MAX_REPEAT)
        many = f"pieces{{0,{whole}}} " if whole else ""
        return f"(mark word? | word) ({many}piece{{0,{max(rest, 1)}}} last)?"

    def json(self, schema: Mapping[str, Any]) -> str:
        """A value of a JSON schema, as pydantic writes schemas; of what is not understood, any JSON value."""
        self._rules |= _JSON_RULES
        return self._value(schema, schema.get("$defs", {}))

    def _value(self, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), defs)
        if "const" in schema or "enum" in schema:
            return alternatives(_dumps(v) for v in ([schema["const"]] if "const" in schema else schema["enum"]))
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return "(" + " | ".join(self._value(option, defs) for option in schema[several]) + ")"
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, defs)
        if kind == "array":
            return self._array(schema, defs)
        if kind == "string":
            return self._string(schema)
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        return {"boolean": '("true" | "false")', "null": '"null"'}.get(str(kind), "any")

    def _reference(self, ref: str, defs: Mapping[str, Any]) -> str:
        key = ref.rpartition("/")[2]
        name = "d-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in key)
        if name not in self._rules:
            self.rule(name, "")  # a schema that refers to itself finds its rule begun
            self.rule(name, self._value(defs[key], defs))
        return name

    def _object(self, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
        properties = schema.get("properties")
        if properties:
            fields = [f"{literal(_dumps(key) + ': ')} {self._value(value, defs)}" for key, value in properties.items()]
            return '"{" ' + ' ", " '.join(fields) + ' "}"'
        extra = schema.get("additionalProperties")
        if not isinstance(extra, Mapping):
            return '"{" (pair (", " pair){0,7})? "}"'
        pair = f'str ": " {self._value(extra, defs)}'
        return f'"{{" ({pair} (", " {pair}){{0,{MAX_LIST - 1}}})? "}}"'

    def _array(self, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
        if "prefixItems" in schema:
            return '"[" ' + ' ", " '.join(self._value(item, defs) for item in schema["prefixItems"]) + ' "]"'
        low = int(schema.get("minItems", 0))
        high = max(low, int(schema.get("maxItems", MAX_LIST)))
        if high == 0:
            return '"[]"'
        body = self._value(schema.get("items") or {}, defs)  # first: it may hold lists, which name rules of their own
        item = self.rule(f"i{len(self._rules)}", body)
        some = f'{item} (", " {item}){{{max(low - 1, 0)},{high - 1}}}'
        return f'"[" {some} "]"' if low else f'"[" ({some})? "]"'

    def _string(self, schema: Mapping[str, Any]) -> str:
        low = int(schema.get("minLength", 0))
        high = max(low, min(int(schema.get("maxLength", self.chars)), self.chars, MAX_REPEAT))
        if not low:
            return f'"\\"" jc{{0,{high}}} "\\""'
        # Still long enough when the white space around it is stripped.
        required = "jv" if low == 1 else f"jv jc{{{low - 2}}} jv"
        return f'"\\"" {required} jc{{0,{high - low}}} "\\""'

    def __str__(self) -> str:
        return "".join(f"{name} ::= {body}\n" for name, body in self._rules.items())


def _number(schema: Mapping[str, Any], *, whole: bool) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + (1 if whole else 0)
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - (1 if whole else 0)
    if whole and low is not None and high is not None and high - low <= MAX_RANGE:
        return alternatives(str(value) for value in range(int(low), int(high) + 1))
    if not whole and low == 0 and high == 1:
        return '("0." [0-9]{1,4} | "1.0")'
    sign = '"-"? ' if low is None or low < 0 else ""
    return f"{sign}int" if whole else f"{sign}num"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
