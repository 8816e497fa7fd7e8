"""What a model thought aloud before its answer is no part of the answer."""

from __future__ import annotations

import re
from collections.abc import Callable

_BEGIN = re.compile(r"\s*(?:<think(?:ing)?>|\[THINK\])", re.IGNORECASE)
_END = re.compile(r"</think(?:ing)?>|\[/THINK\]", re.IGNORECASE)

_LAST = 8
"""Ends that are looked at: a model that repeats itself may write a thousand."""


def without_thinking(completion: str, is_answer: Callable[[str], bool]) -> str:
    """``completion`` without the block of thinking that it begins with: that may rehearse the answer, and others.

    Templates that open the block for the model leave its opening out. Then only what ``is_answer`` shows it to end,
    since a text may well speak of such a mark. A block that does not end holds no answer.
    """
    ends = [end.end() for end in _END.finditer(completion)]
    rests = [completion[end:] for end in (*ends[:1], *ends[1:][-_LAST:])]
    for rest in reversed(rests):  # the block may speak of its own end, too
        if is_answer(rest):
            return rest
    if _BEGIN.match(completion):
        return rests[0] if rests else ""
    return completion
