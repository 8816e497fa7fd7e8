"""Synapse: whole rollouts that succeeded, as exemplars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.recall import Listed, Nearest, Recall
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import CASE_TOKENS, Cases, case, learned
from rb_dspy.schema import ItemDraft, Retrieved
from rb_dspy.steps import Distilled, Memory
from rb_dspy.steps.transcript import escape_fields, escape_markers
from rb_dspy.steps.working import Moment
from rb_dspy.text import cut, estimate_tokens

Turns = tuple[tuple[str, str], ...]
"""Pairs of what was seen and what was done then."""

_SHOWN = 3
"""Exemplars (ltzheng/Synapse: top_k 3, without a floor)."""
_BYTES = 15_000
"""Longest exemplar that is stored, as JSON: fits ``ItemDraft.data``."""
_LEAST = 20
"""Tokens; an observation that is cut to fewer says nothing."""


def synapse(base: Base) -> MemorySystem:
    """Exemplars as earlier turns of the agent's conversation: what was seen, and what was done.

    The authors have a static set of successes, and we the successes so far; they fill the context window, and we the
    cap that all systems have, with cut observations.
    """
    return MemorySystem(
        stores="whole rollouts that succeeded",
        shows=f"the {_SHOWN} nearest by task, as earlier turns",
        source="ltzheng/Synapse",
        calls="0",
        retrieve=Recall(base, Nearest(_SHOWN, ("case",), min_score=-1.0), AsTurns()),
        teach=exemplars,
        signal="outcome",
    )


def synapse_paper(base: Base) -> MemorySystem:
    """One rollout as text in the instructions: the baseline of the ReasoningBank paper.

    As google-research/reasoning-bank: thoughts and actions of what was judged a success, the nearest by task.
    """
    return MemorySystem(
        stores="thoughts and actions of rollouts that succeeded",
        shows="the nearest by task",
        source="google-research/reasoning-bank",
        calls="0",
        retrieve=Recall(base, Nearest(1, ("case",), min_score=-1.0), Listed("How an earlier task was done:", "system")),
        teach=Cases(("success",), observations=False),
    )


def exemplars(attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:  # noqa: ARG001
    """Stores each success with its turns, if its actions are not too long; a ``memories.Distiller``."""
    return learned((draft for each in attempts for draft in _exemplar(each)), attempts)


def _exemplar(attempt: Attempt) -> Iterator[ItemDraft]:
    steps, begin = attempt.trajectory.steps, attempt.trajectory.first_observation
    seen = [f"Task: {attempt.task.instruction}\n\n{begin}", *(step.observation for step in steps)]
    whole = tuple(zip(seen, (step.action for step in steps), strict=False))
    if attempt.verdict.label == "success" and (
        turns := _shortened(whole, lambda turns: len(json.dumps(turns)) <= _BYTES)
    ):
        content = "\n".join(f"seen: {seen}\ndone: {action}" for seen, action in turns)
        yield case(attempt, content, label="success", turns=[list(each) for each in turns])


class AsTurns:
    """Exemplars as earlier turns: as many as fit with their observations cut, or else the first turns of the best."""

    def __call__(self, moment: Moment, found: Sequence[Retrieved], max_tokens: int) -> Memory:
        every = [(each, turns) for each in found if (turns := _turns(each))]
        number, shown = _fit([turns for _, turns in every], max_tokens)
        best = [each for each, _ in every[:number]]
        beyond = max(0, sum(_tokens(turns) for _, turns in every) - _tokens(shown))
        memory = Listed(position="messages")(moment, best, max_tokens)
        return replace(memory, items=tuple(each.items[0] for each in best), turns=shown, beyond=beyond)


def _fit(every: Sequence[Turns], max_tokens: int) -> tuple[int, Turns]:
    """How many exemplars fit, and their turns."""
    for number in range(len(every), 0, -1):
        joined = tuple(pair for turns in every[:number] for pair in turns)
        if shown := _shortened(joined, lambda turns: _tokens(turns) <= max_tokens):
            return number, shown
    best = tuple((cut(seen, _LEAST), action) for seen, action in every[0]) if every else ()
    begin = max((best[:end] for end in range(len(best)) if _tokens(best[:end]) <= max_tokens), key=len, default=())
    return (1, begin) if begin else (0, ())


def _shortened(turns: Turns, fits: Callable[[Turns], bool]) -> Turns:
    """These turns with their observations cut until they fit; none if the actions alone are too long."""
    limit = CASE_TOKENS
    while limit >= _LEAST:
        short = tuple((cut(seen, limit), action) for seen, action in turns)
        if fits(short):
            return short
        limit = limit * 4 // 5
    return ()


def _turns(found: Retrieved) -> Turns:
    """The turns of an item, escaped; none if it has none."""
    given = found.items[0].data.get("turns")
    pairs = [pair for pair in given if isinstance(pair, list) and len(pair) == 2] if isinstance(given, list) else []
    return tuple((escape_markers(str(seen)), escape_fields(str(action))) for seen, action in pairs)


def _tokens(turns: Turns) -> int:
    return sum(estimate_tokens(part) for pair in turns for part in pair)
