"""A question as an environment of one turn: the agent's action is its answer."""

from __future__ import annotations

from collections.abc import Callable

from rb_dspy.protocols import Environment
from rb_dspy.schema import Outcome, Task

Score = Callable[[str], Outcome | None]
"""Scores an answer by ground truth; None if the outcome is unknown. What it raises is an error of the task."""

MAX_ANSWER = 10_000
"""Maximum length of an answer, in characters; a longer one counts as wrong."""


class SingleTurn(Environment):
    """An episode of one turn.

    Later actions are ignored unless the question is reopened; then the next action replaces the answer.

    Args:
        prepare: Called by ``reset``; returns the task's scorer, or None if the outcome is unknown.
        feedback: The text that the agent sees after its answer is scored; None: no text. A question with feedback
            cannot be reopened.
    """

    action_rules = (
        "There is one turn. Your action is your final answer to the question and nothing else:"
        " no explanation, no label."
    )

    def __init__(
        self, prepare: Callable[[Task], Score | None], feedback: Callable[[Outcome], str] | None = None
    ) -> None:
        self._prepare = prepare
        self._feedback = feedback
        self._score: Score | None = None
        self._open = False
        self._answer: str | None = None

    def reset(self, task: Task) -> str:
        self._score = self._prepare(task)
        self._open = True
        self._answer = None
        return "The question is given in the task. Your next action is taken as your answer."

    def step(self, action: str) -> tuple[str, bool]:
        if not self._open:
            return "The question is closed: an answer was given before.", True
        self._answer, self._open = action, False
        outcome = self.outcome() if self._feedback else None
        return self._feedback(outcome) if self._feedback and outcome else "", True

    def reopen(self) -> str | None:
        """Allow another answer; None if there is none to replace. The current one counts until it is replaced."""
        if self._answer is None or self._feedback is not None:
            return None
        self._open = True
        return "The question is open again: your next action replaces your answer."

    def answer(self) -> str | None:
        return self._answer

    def outcome(self) -> Outcome | None:
        """Return the outcome, None if it is unknown. ``info["error"]`` explains an answer that was not scored."""
        if self._score is None:
            return None
        if self._answer is None:
            return Outcome(reward=0.0, success=False, info={"error": "no answer was given"})
        if len(self._answer) > MAX_ANSWER:
            error = f"the answer has {len(self._answer):,} characters; at most {MAX_ANSWER:,} are scored"
            return Outcome(reward=0.0, success=False, info={"error": error})
        return self._score(self._answer)
