"""Answers that end where a cap of tokens cut them off, which may say the contrary of what was going to be said.

Why an answer ended stands in a language model's response, of which dspy hands an adapter the text alone. It is in what
dspy writes into a history, so who is noticed writes none where none is wanted.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import dspy
from dspy import lm15

CUT_OFF = "the answer was cut off where its tokens ended: raise max_tokens."
"""The message of who refuses one."""

_KEY = "rb_dspy_cut"
_KNOWN = ("dspy", "rb_dspy")
_MARKER = "[[ ## completed ## ]]"
_LEAST = "[[ ##"
"""Of the marker: what is less may be text."""


class Cut:
    """The answers of one call that were cut off."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.latest: list[str] = []
        """Those of the latest response."""

    def note(self, response: Any, outputs: Sequence[Any]) -> None:
        """Take down what was cut off in ``response``, of which dspy made ``outputs``."""
        said = [output.get("text") if isinstance(output, dict) else output for output in outputs]
        self.latest = [text for text, cut in zip(said, _ends(response), strict=False) if cut and text]
        self.texts.update(self.latest)


def settings_for(lm: Any, cut: Cut) -> dict[str, Any]:
    """What ``dspy.context`` needs so that ``cut`` learns of the answers of ``lm``, which is ``lm`` there.

    A language model of somebody's own class is left as it is: it may count in itself, and this takes a shallow copy.
    """
    if type(lm).__module__.partition(".")[0] not in _KNOWN:
        return {"lm": lm}
    recorded = not dspy.settings.disable_history

    def update_history(entry: dict[str, Any]) -> None:
        cut.note(entry["response"], entry["outputs"])
        if recorded:
            lm.update_history(entry)

    heard = copy.copy(lm)
    heard.update_history = update_history
    return {"lm": heard, "disable_history": False, _KEY: cut}


def was_cut(completion: str) -> bool:
    """Whether this answer, of the call that is under way, was cut off."""
    cut: Cut | None = dspy.settings.get(_KEY, None)
    return cut is not None and completion in cut.texts


def is_closed(completion: str) -> bool:
    """Whether ``completion`` holds an object of JSON up to its last brace."""
    try:
        json.JSONDecoder(strict=False).raw_decode(completion, completion.index("{"))
    except (ValueError, RecursionError):
        return False
    return True


def is_marked(completion: str) -> bool:
    """Whether ``completion`` has the mark that ends an answer in dspy's chat format."""
    return _MARKER in completion


def before_marker(text: str) -> str | None:
    """``text`` without the mark that it ends in the middle of; None where it does not."""
    before, _, line = text.rpartition("\n")
    return before.strip() if line.startswith(_LEAST) and _MARKER.startswith(line.strip()) else None


def _ends(response: Any) -> list[bool]:
    """For each answer in a response, whether it was cut off."""
    if isinstance(response, lm15.Response | tuple):
        responses = response if isinstance(response, tuple) else (response,)
        return [each.finish_reason == "length" for each in responses]
    if _get(response, "status") == "incomplete":  # of OpenAI's newer API, as litellm gives it
        return [_get(_get(response, "incomplete_details"), "reason") == "max_output_tokens"]
    return [_get(choice, "finish_reason") == "length" for choice in _get(response, "choices") or ()]


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)
