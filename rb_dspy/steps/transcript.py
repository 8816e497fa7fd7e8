"""Transcripts of rollouts for judge, distiller, contraster and selector. The stored trajectory is not changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rb_dspy.schema import Check, Step, Task, Trajectory, Verdict
from rb_dspy.text import cut, estimate_tokens

_STATE_TOKENS = 400
"""Maximum tokens of the last observation, and of the answer, in a final state."""

_FIELD_START, _FIELD_END = re.compile(r"\[\[(?=\s*##)"), re.compile(r"(?<=##)(\s*)\]\]")

_LINE_ENDS = r"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_MARKER = re.compile(
    rf"(?i)(?:\A|(?<=[{_LINE_ENDS}]))(?=[^\S{_LINE_ENDS}]*+"
    r"(?:\[(?:step|start|check|attempt|archived as|left out)\b|>[^\S\n]*+\d++\."
    r"|={2,}+\s*+attempt|(?:final answer|last observation|judged)\s*+:))"
)
"""Start of a line that looks like a part of a transcript, or of what memory shows, even after white space."""


def escape_fields(text: str) -> str:
    """Break up everything in ``text`` that looks like a field of dspy's chat format, however it is spaced."""
    return _FIELD_START.sub("[ [", _FIELD_END.sub(r"\1] ]", text))


def escape_markers(text: str) -> str:
    """Escape everything in ``text`` that looks like a field, step, attempt or answer of a transcript, or a lesson.

    Such a line gets a backslash in front. Apply this to every text that a task, an environment or an agent wrote,
    before the markers of the transcript are added.
    """
    return _MARKER.sub(r"\\", escape_fields(text))


def transcript(trajectory: Trajectory, max_tokens: int, *, thoughts: bool = True, states: int | None = None) -> str:
    """Return the steps of ``trajectory`` in about ``max_tokens`` estimated tokens, with or without thoughts.

    ``states``: only this many observations, the last ones; None: all.

    If it does not fit, long texts are cut in their middle; if that is not enough, steps in the middle are left out,
    because the start shows the plan and the end shows the result. Every cut is marked. Deterministic.
    """
    if not thoughts:
        trajectory = trajectory.model_copy(
            update={"steps": tuple(step.model_copy(update={"thought": ""}) for step in trajectory.steps)}
        )
    if states is not None:
        trajectory = _last_states(trajectory, states)
    blocks = list(_blocks(trajectory, None))
    if estimate_tokens("\n".join(blocks)) <= max_tokens:
        return "\n".join(blocks)
    per_text = max(25, max_tokens // 16)
    blocks = list(_blocks(trajectory, per_text))
    head, tail = blocks[:1], blocks[1:][-1:]
    middle = blocks[1:-1]
    used = estimate_tokens("\n".join([*head, *tail]))
    n_head = n_tail = 0
    # Fill from both ends, two from the end for one from the start: a verdict depends on how the rollout ended.
    while n_head + n_tail < len(middle):
        from_end = n_tail <= 2 * n_head
        block = middle[len(middle) - 1 - n_tail] if from_end else middle[n_head]
        used += estimate_tokens(block)
        if used > max_tokens:
            break
        n_tail, n_head = (n_tail + 1, n_head) if from_end else (n_tail, n_head + 1)
    left_out = len(middle) - n_head - n_tail
    marker = [f"[… {left_out} steps left out …]"] if left_out else []
    return "\n".join([*head, *middle[:n_head], *marker, *middle[len(middle) - n_tail :], *tail])


def final_state(trajectory: Trajectory, max_tokens: int = _STATE_TOKENS) -> str:
    """Return the last observation, the answer, and the reason if the rollout ended early.

    Observation and answer are cut to about ``max_tokens`` each, at most 400.
    """
    limit = min(_STATE_TOKENS, max_tokens)
    last = trajectory.steps[-1].observation if trajectory.steps else trajectory.first_observation
    lines = [f"last observation: {_shown(last, limit) or '(none)'}"]
    if trajectory.answer is not None:
        lines.append(f"final answer: {_shown(trajectory.answer, limit)}")
    reason = {
        "max_steps": "the rollout was stopped at its step limit",
        "unparseable": "the rollout was stopped because the agent's answer could not be parsed",
        "context": "the rollout was stopped because its transcript had become too long",
    }.get(trajectory.stop_reason)
    return "\n".join([*lines, *([reason] if reason else [])])


def observations(trajectory: Trajectory) -> list[str]:
    """Return the observations in order, each once; the first observation only if there is no step."""
    every = dict.fromkeys(step.observation.strip() for step in trajectory.steps)
    return [each for each in every if each] if trajectory.steps else [trajectory.first_observation]


def rollout_fields(
    task: Task, trajectory: Trajectory, max_tokens: int, *, thoughts: bool = True, states: int | None = None
) -> dict[str, str]:
    """Return the input fields for judging or checking one rollout."""
    return {
        "task": escape_markers(task.instruction),
        "trajectory": transcript(trajectory, max_tokens, thoughts=thoughts, states=states),
        "final_state": final_state(trajectory, max_tokens),
    }


def number_attempts(
    trajectories: Sequence[Trajectory],
    max_tokens: int,
    verdicts: Sequence[Verdict] | None = None,
    *,
    observations: bool = True,
) -> str:
    """Return the transcripts of several rollouts, numbered from 1, in about ``max_tokens`` together.

    Each gets an equal share; tokens that a short one does not use go to the longer ones. ``verdicts`` are optional.
    """
    states = None if observations else 0
    sizes = [estimate_tokens(transcript(each, max_tokens, states=states)) for each in trajectories]
    shares, left = [0] * len(sizes), max_tokens
    for place, number in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[number] = min(sizes[number], left // (len(sizes) - place))
        left -= shares[number]
    attempts = []
    for number, (trajectory, share) in enumerate(zip(trajectories, shares, strict=True)):
        label = f" (judged: {verdicts[number].label})" if verdicts else ""
        shown = [transcript(trajectory, max(share, 20), states=states)]
        shown += [final_state(trajectory, max(20, share // 4))] if observations else []
        attempts.append("\n".join([f"=== attempt {number + 1}{label} ===", *shown]))
    return "\n\n".join(attempts)


def _last_states(trajectory: Trajectory, states: int) -> Trajectory:
    """``trajectory`` without its earlier observations."""
    first = len(trajectory.steps) + 1 - states  # number of the first observation that is shown; that before step 1 is 0
    steps = (
        step if number >= first else step.model_copy(update={"observation": ""})
        for number, step in enumerate(trajectory.steps, 1)
    )
    start = trajectory.first_observation if first <= 0 else "(not shown)"
    return trajectory.model_copy(update={"first_observation": start, "steps": tuple(steps)})


def _shown(text: str, limit: int | None) -> str:
    return escape_markers(text if limit is None else cut(text, limit))


def _blocks(trajectory: Trajectory, limit: int | None) -> Iterator[str]:
    """Yield the start, each step, and each check of the work, every text in at most about ``limit`` tokens."""
    yield f"[start] observation: {_shown(trajectory.first_observation, limit)}"
    checks = list(trajectory.checks)
    yield from (_check(check, limit) for check in checks if check.after == 0)
    for number, step in enumerate(trajectory.steps, 1):
        yield step_text(number, step, limit)
        yield from (_check(check, limit) for check in checks if check.after == number)


def step_text(number: int, step: Step, limit: int | None = None) -> str:
    """One step as transcripts show it, every text in at most about ``limit`` tokens."""
    lines = [f"thought: {_shown(step.thought, limit)}"] if step.thought else []
    lines.append(f"action: {_shown(step.action, None if limit is None else 4 * limit)}")
    if step.observation:
        lines.append(f"observation: {_shown(step.observation, limit)}")
    return f"[step {number}] " + "\n".join(lines)


def _check(check: Check, limit: int | None) -> str:
    return f"[check of the work so far: {check.decision}] {_shown(check.findings, limit)}"
