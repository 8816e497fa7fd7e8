"""What of a trajectory the judge and the distiller get to read. The trajectory itself is always kept whole."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rb_dspy.protocols import TokenCounter
from rb_dspy.schema import Check, Step, Trajectory


def estimate_tokens(text: str) -> int:
    """Tokens in ``text``, estimated at 3.5 characters each: near the mark for English and code, model-independent."""
    return int(len(text) / 3.5) + 1


def view(trajectory: Trajectory, budget: int, count: TokenCounter = estimate_tokens) -> str:
    """The transcript in at most about ``budget`` tokens.

    All of it where it fits. Else first every long text is cut in its middle, of a step its thought and its observation
    before its action; if that is not enough, steps in the middle of the episode are left out, since its start shows the
    plan and its end shows what decided it. Every cut is marked. Deterministic.
    """
    told = _blocks(trajectory)
    whole = "\n".join(map(_joined, told))
    if count(whole) <= budget:
        return whole
    per_block = max(80, int(budget * 3.5 / 8))
    blocks = [_shortened(block, per_block) for block in told]
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
    limit = characters(max_tokens)
    lines = [f"last observation: {cut(last, limit) or '(none)'}"]
    if trajectory.answer is not None:
        lines.append(f"final answer: {cut(trajectory.answer, limit)}")
    if trajectory.stop_reason == "max_steps":
        lines.append("the rollout was stopped at its step limit")
    elif trajectory.stop_reason == "unreadable":
        lines.append("the rollout was stopped because the agent's answer could not be read")
    elif trajectory.stop_reason == "context":
        lines.append("the rollout was stopped because its transcript had become too long")
    return defused("\n".join(lines))


def defused(text: str) -> str:
    """``text`` in which nothing passes for a field of dspy's chat format, nor for the head of another attempt."""
    return re.sub(r"(?m)^===", "= = =", without_fields(text))


def without_fields(text: str) -> str:
    """``text`` in which nothing passes for a field of dspy's chat format."""
    # However it is spaced: an answer that quotes it may be read leniently.
    return _HEAD.sub("[ [", _TAIL.sub(r"\1] ]", text))


_HEAD, _TAIL = re.compile(r"\[\[(?=\s*##)"), re.compile(r"(?<=##)(\s*)\]\]")


@dataclass(frozen=True)
class _Text:
    """A text, and what it is called."""

    name: str
    text: str
    is_action: bool = False


def _blocks(trajectory: Trajectory) -> list[list[_Text]]:
    """What is shown together or left out together: the start, each step, and each look back."""
    blocks = [[_Text("[start] observation: ", trajectory.first_observation)]]
    for i in range(len(trajectory.steps) + 1):
        if i:
            blocks.append(_step(i, trajectory.steps[i - 1]))
        blocks += [_looked_back(check) for check in trajectory.checks if check.after == i]
    return blocks


def _step(number: int, step: Step) -> list[_Text]:
    texts = [_Text("thought: ", step.thought)] if step.thought else []
    texts.append(_Text("action: ", step.action, is_action=True))
    if step.observation:
        texts.append(_Text("observation: ", step.observation))
    first, *others = texts
    return [replace(first, name=f"[step {number}] {first.name}"), *others]


def _looked_back(check: Check) -> list[_Text]:
    return [_Text(f"[check of the work so far: {check.decision}] ", check.findings)]


def _joined(block: list[_Text]) -> str:
    return defused("\n".join(each.name + each.text for each in block))


def _shortened(block: list[_Text], limit: int) -> str:
    """``block`` in about ``limit`` characters.

    What was done is what a step is: its action stays whole up to the limit. The others, each cut in its own middle,
    share what it leaves, and a quarter of the limit in any case.
    """
    whole = _joined(block)
    if len(whole) <= limit:
        return whole
    room = max(limit - sum(len(each.text) for each in block if each.is_action), limit // 4)
    sizes = dict.fromkeys((each.name for each in block), limit)
    others = sorted((each for each in block if not each.is_action), key=lambda each: len(each.text))
    for place, each in enumerate(others):  # what a short one leaves of its share goes to the other
        sizes[each.name] = room // (len(others) - place)
        room -= min(sizes[each.name], len(each.text))
    return _joined([replace(each, text=cut(each.text, sizes[each.name])) for each in block])


def characters(tokens: int) -> int:
    """How many characters are so many tokens, by ``estimate_tokens``."""
    return int(tokens * 3.5)


def cut(text: str, limit: int) -> str:
    """``text``, cut in its middle to about ``limit`` characters, with how many are left out."""
    if len(text) <= limit:
        return text
    half = max(1, limit // 2)
    return f"{text[:half]} [… {len(text) - 2 * half} characters left out …] {text[-half:]}"
