"""What of a trajectory the judge and the distiller get to read. The trajectory itself is always kept whole."""

from __future__ import annotations

import re

from rb_dspy.protocols import TokenCounter
from rb_dspy.schema import Check, Step, Trajectory


def estimate_tokens(text: str) -> int:
    """Tokens in ``text``, estimated at 3.5 characters each: near the mark for English and code, model-independent."""
    return int(len(text) / 3.5) + 1


def view(trajectory: Trajectory, budget: int, count: TokenCounter = estimate_tokens) -> str:
    """The transcript in at most about ``budget`` tokens.

    All of it where it fits. Else first every long text is cut in its middle; if that is not enough, steps in the middle
    of the episode are left out, since its start shows the plan and its end shows what decided it. Every cut is marked.
    Deterministic.
    """
    whole = [defused(block) for block in _lines(trajectory)]
    if count("\n".join(whole)) <= budget:
        return "\n".join(whole)
    per_text = max(80, int(budget * 3.5 / 8))
    blocks = [_cut(block, per_text) for block in whole]
    head, rest, tail = blocks[:1], blocks[1:-1], blocks[1:][-1:]  # without a step, the start is all there is
    used = sum(count(block) for block in (*head, *tail))
    # From both ends inwards, two from the end for one from the start: verdicts hang on how it ended.
    taken_head = taken_tail = 0
    while taken_head + taken_tail < len(rest):
        from_end = taken_tail <= 2 * taken_head
        block = rest[len(rest) - 1 - taken_tail] if from_end else rest[taken_head]
        used += count(block) + 1
        if used > budget:
            break
        if from_end:
            tail.insert(0, block)
            taken_tail += 1
        else:
            head.append(block)
            taken_head += 1
    left_out = rest[taken_head : len(rest) - taken_tail]
    steps = sum(block.startswith("[step ") for block in left_out)
    marker = [f"[… {steps} steps left out …]"] if left_out else []
    return "\n".join([*head, *marker, *tail])


def final_state(trajectory: Trajectory, max_tokens: int = 400) -> str:
    """The last observation and the answer, in at most about ``max_tokens`` tokens each."""
    last = trajectory.steps[-1].observation if trajectory.steps else trajectory.first_observation
    limit = int(max_tokens * 3.5)
    lines = [f"last observation: {_cut(last, limit) or '(none)'}"]
    if trajectory.answer is not None:
        lines.append(f"final answer: {_cut(trajectory.answer, limit)}")
    if trajectory.stop_reason == "max_steps":
        lines.append("the rollout was stopped at its step limit")
    elif trajectory.stop_reason == "unreadable":
        lines.append("the rollout was stopped because the agent's answer could not be read")
    elif trajectory.stop_reason == "context":
        lines.append("the rollout was stopped because its transcript had become too long")
    return defused("\n".join(lines))


def defused(text: str) -> str:
    """``text`` in which nothing passes for a field of dspy's chat format, nor for the head of another attempt."""
    return re.sub(r"(?m)^===", "= = =", text.replace("[[ ##", "[ [ ##").replace("## ]]", "## ] ]"))


def _lines(trajectory: Trajectory) -> list[str]:
    """One block for the start, one for each step, and one for each look back."""
    blocks = [f"[start] observation: {trajectory.first_observation}"]
    for i in range(len(trajectory.steps) + 1):
        if i:
            blocks.append(_block(i, trajectory.steps[i - 1]))
        blocks += [_looked_back(check) for check in trajectory.checks if check.after == i]
    return blocks


def _block(number: int, step: Step) -> str:
    parts = [f"thought: {step.thought}"] if step.thought else []
    parts.append(f"action: {step.action}")
    if step.observation:
        parts.append(f"observation: {step.observation}")
    return f"[step {number}] " + "\n".join(parts)


def _looked_back(check: Check) -> str:
    return f"[check of the work so far: {check.decision}] {check.findings}"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = max(1, limit // 2)
    return f"{text[:half]} [… {len(text) - 2 * half} characters left out …] {text[-half:]}"
