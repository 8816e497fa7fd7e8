"""Several rollouts of one task as a contraster or a selector reads them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rb_dspy.schema import Trajectory, Verdict
from rb_dspy.steps.view import defused, estimate_tokens, final_state, view

_STATE = 400
"""Tokens of the last observation, and of the answer, at most; the transcript has them as well, where it is not cut."""

_LEAST = 40
"""Tokens below which a long transcript tells nothing, so that only how it ended is told."""

_WORDS = 8
"""Tokens below which no text is begun."""


def listed(trajectories: Sequence[Trajectory], budget: int, remarks: Sequence[str]) -> str:
    """The transcripts, numbered from 1, in at most ``budget`` tokens together; ``remarks``: what is said about each.

    Each has an equal share, and what a short one leaves of it goes to the others. It is told in as much detail as fits:
    transcript and final state, final state alone, the answer alone. Where a share has no room for that, attempts that
    ended alike are told as one, with their count, the most frequent first. Deterministic.
    """
    heads = [_head(f"attempt {number}", remark) for number, remark in enumerate(remarks, 1)]
    whole = [
        f"{head}\n{view(each, sys.maxsize)}\n{final_state(each, _STATE)}"
        for head, each in zip(heads, trajectories, strict=True)
    ]
    told = "\n\n".join(whole)
    if estimate_tokens(told) <= budget:
        return told
    parts = []
    for head, trajectory, share in zip(heads, trajectories, _shares(whole, budget), strict=True):
        text = _told(trajectory, share - estimate_tokens(head))
        if text is None:
            return _counted(trajectories, budget, remarks)
        parts.append(f"{head}\n{text}")
    return "\n\n".join(parts)


def judged(verdict: Verdict) -> str:
    """A verdict as a remark."""
    return f"judged: {verdict.label}"


def same_answers(trajectories: Sequence[Trajectory]) -> list[int]:
    """For each rollout, how many gave the answer that it gave, itself included; 0 where it gave none.

    Compared without regard to case and white space.
    """
    given = [answer_key(trajectory) for trajectory in trajectories]
    votes = Counter(answer for answer in given if answer is not None)
    return [0 if answer is None else votes[answer] for answer in given]


def answer_key(trajectory: Trajectory) -> str | None:
    """What makes two answers the same; None for no answer."""
    return None if trajectory.answer is None else " ".join(trajectory.answer.casefold().split())


def _shares(whole: Sequence[str], budget: int) -> list[int]:
    """Tokens for each of the texts; one for what stands between two is kept back."""
    wanted = [estimate_tokens(text) + 2 for text in whole]  # what is estimated in parts is rounded up in each
    shares, left = [0] * len(wanted), budget - len(wanted)
    for place, number in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[number] = min(wanted[number], left // (len(wanted) - place))
        left -= shares[number]
    return shares


def _told(trajectory: Trajectory, room: int) -> str | None:
    """An attempt in at most ``room`` tokens; None where nothing fits."""
    state = final_state(trajectory, min(_STATE, max(room, _LEAST) // 8))  # of the last observation and of the answer
    size = max(room - estimate_tokens(state), _LEAST)  # what is short may fit all the same
    while size >= _LEAST:
        text = f"{view(trajectory, size)}\n{state}"
        over = estimate_tokens(text) - room
        if over <= 0:
            return text
        size -= max(over, size // 8)
    size = room // 2
    while size >= 1:
        text = final_state(trajectory, size)
        if estimate_tokens(text) <= room:
            return text
        size //= 2
    return _end(trajectory, room)


def _counted(trajectories: Sequence[Trajectory], budget: int, remarks: Sequence[str]) -> str:
    """The ways in which attempts ended, each with the first that did; at last, nothing but how many there are."""
    alike: dict[tuple[str, str], list[int]] = {}
    for number, (trajectory, remark) in enumerate(zip(trajectories, remarks, strict=True)):
        ended = answer_key(trajectory) or _end(trajectory, _LEAST) or ""
        alike.setdefault((remark, ended), []).append(number)
    groups = sorted(alike.items(), key=lambda group: -len(group[1]))
    for shown in range(min(len(groups), budget // _WORDS), 0, -1):
        left = sum(len(numbers) for _, numbers in groups[shown:])
        last = [f"({left} other attempts are left out)"] if left else []
        share = (budget - estimate_tokens("".join(last))) // shown - 1
        parts = []
        for (remark, _), (first, *others) in groups[:shown]:
            also = f" and {len(others)} more like it" if others else ""
            head = _head(f"attempt {first + 1}{also}", remark)
            end = _end(trajectories[first], share - estimate_tokens(head))
            parts += [f"{head}\n{end}"] if end else []
        if len(parts) == shown:
            return "\n\n".join([*parts, *last])
    return _short(f"({len(trajectories)} attempts, of which there is no room to tell)", budget) or ""


def _head(name: str, remark: str) -> str:
    return f"=== {name}{f' ({remark})' if remark else ''} ==="


def _end(trajectory: Trajectory, tokens: int) -> str | None:
    """The answer, or what was seen last, in at most so many tokens; None where too few are left to tell."""
    if trajectory.answer is not None:
        return _short(defused(f"final answer: {trajectory.answer}"), tokens)
    last = trajectory.steps[-1].observation if trajectory.steps else trajectory.first_observation
    return _short(defused(f"last observation: {last}"), tokens)


def _short(text: str, tokens: int) -> str | None:
    """As much of the beginning of ``text`` as ``tokens`` allow; None where that is less than a few words."""
    if estimate_tokens(text) <= tokens:
        return text
    limit = int(tokens * 3.5) - 2
    return f"{text[:limit]}…" if tokens >= _WORDS else None
