"""A question as an environment with one step: the agent's first action is its answer."""

from __future__ import annotations

import re
from collections.abc import Callable

from rb_dspy.errors import RBError
from rb_dspy.schema import Outcome, Task

Score = Callable[[str], Outcome]
"""Ground truth for an answer, as the agent gave it. Must not raise for any text."""

MAX_ANSWER = 10_000
"""Longest answer that is scored, in characters; a longer one counts as wrong."""

_WRAPPED = re.compile(
    r"""<answer>(?P<tag>.*)</answer> | ```(?:\w*\n)?(?P<fence>.*?)``` | (?P<quote>["'`])(?P<quoted>.*)(?P=quote)""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)


def unwrapped(text: str) -> str:
    """``text`` without spaces, quotes, backticks, code fence or ``<answer>`` tags around it, four layers at most."""
    text = text.strip()
    for _ in range(4):
        match = _WRAPPED.fullmatch(text)
        if match is None:
            break
        text = next(group for group in match.group("tag", "fence", "quoted") if group is not None).strip()
    return text


class SingleTurn:
    """An episode of one step. ``prepare`` is called by ``reset`` and gives the scorer of that task, or None.

    The question stands in the task's instruction, so no observation repeats it, and none says whether the answer was
    right. Only the first action counts; after ``reopen`` the next one takes its place.
    """

    action_rules = (
        "There is one turn. Your action is your final answer to the question and nothing else:"
        " no explanation, no label."
    )

    def __init__(self, prepare: Callable[[Task], Score | None], *, instant: bool = False) -> None:
        """``instant``: whether ``prepare`` and the scorer are over at once (``protocols.Instant``)."""
        self.instant = instant
        self._prepare = prepare
        self._score: Score | None = None
        self._begun = False
        self._open = False
        self._answer: str | None = None

    def reset(self, task: Task) -> str:
        self._score = self._prepare(task)
        self._begun = self._open = True
        self._answer = None
        return "The question is given in the task. Your next action is taken as your answer."

    def step(self, action: str) -> tuple[str, bool]:
        if not self._begun:
            raise RBError("step() before reset(); call reset(task) first")
        if not self._open:
            return "The question is closed: an answer was given before.", True
        self._answer, self._open = action, False
        return "Your answer was taken.", True

    def reopen(self) -> str | None:
        """Take another answer; the one before counts until then. None before there is one."""
        if self._answer is None:
            return None
        self._open = True
        return "The question is open again: your next action replaces your answer."

    def valid_actions(self) -> None:
        return None

    def answer(self) -> str | None:
        return self._answer

    def outcome(self) -> Outcome | None:
        """None without a scorer; reward 0 for no answer or one longer than ``MAX_ANSWER``, and ``info`` says so."""
        if not self._begun:
            raise RBError("outcome() before reset(); call reset(task) first")
        if self._score is None:
            return None
        if self._answer is None:
            return Outcome(reward=0.0, success=False, info={"error": "no answer was given"})
        if len(self._answer) > MAX_ANSWER:
            error = f"the answer has {len(self._answer):,} characters; at most {MAX_ANSWER:,} are scored"
            return Outcome(reward=0.0, success=False, info={"error": error})
        return self._score(self._answer)

    def close(self) -> None:
        """Nothing to release."""
