"""The format that an answer which could not be read is asked for once more: one JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from functools import partial
from typing import Any

import dspy
import json_repair
import pydantic
from dspy.adapters.utils import parse_value
from dspy.utils.exceptions import AdapterParseError

from rb_dspy.backbones.cut import CUT_OFF, is_closed, was_cut
from rb_dspy.backbones.lenient import holds_drafts, read_drafts, without_last
from rb_dspy.backbones.meant import read_meant, says_one_thing
from rb_dspy.backbones.thinking import without_thinking

_OBJECT = re.compile(r"\s*(?:```\w*\s*)?\{")


class RepairAdapter(dspy.JSONAdapter):
    """``dspy.JSONAdapter`` that reads as leniently as ``ChatAdapter`` does; it sends what dspy sends.

    JSON that is nested too deeply cannot be read either; dspy lets that through as a bug.
    """

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """The output fields of an answer. Raises ``AdapterParseError``, also where it was cut off (``cut``)."""
        answer = completion if _OBJECT.match(completion) else without_thinking(completion, _begins)
        types = {name: info.annotation for name, info in signature.output_fields.items()}
        drafts = {name: pydantic.TypeAdapter(type_) for name, type_ in types.items() if holds_drafts(type_)}
        plain = signature
        for name in drafts:
            plain = plain.with_updated_fields(name, type_=Any)
        single = {name: type_ for name, type_ in types.items() if says_one_thing(type_)}
        for name in single:
            plain = plain.with_updated_fields(name, type_=str)
        try:
            if was_cut(completion) and not is_closed(answer):
                answer = _whole(signature, completion, answer, drafts.keys())
            found: dict[str, Any] = super().parse(plain, answer)
            for name, adapter in drafts.items():
                found[name] = read_drafts(adapter.validate_python, found[name])
            for name, type_ in single.items():
                if isinstance(found[name], str):  # else a default
                    found[name] = read_meant(partial(parse_value, annotation=type_), type_, name, found[name])
        except (ValueError, TypeError, RecursionError, MemoryError) as exc:
            raise AdapterParseError("JSONAdapter", signature, completion, str(exc)) from exc
        return found


def _whole(signature: Any, completion: str, answer: str, drafts: Set[str]) -> str:
    """What is whole of an answer that was cut off."""
    found: Any = json_repair.loads(answer)
    last = next(reversed(found), "") if isinstance(found, dict) else ""
    whole = without_last(found[last]) if last in drafts else []
    if not whole:
        raise AdapterParseError("JSONAdapter", signature, completion, CUT_OFF)
    return json.dumps({**found, last: whole})


def _begins(text: str) -> bool:
    """Whether an object begins here."""
    return _OBJECT.match(text) is not None
