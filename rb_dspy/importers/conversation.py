"""Turns of a conversation, as the steps of a trajectory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from rb_dspy.content import join
from rb_dspy.errors import InvalidTrajectory
from rb_dspy.text import without_thoughts


@dataclass(eq=False)
class _Step:
    """A step; ``has_result`` if a tool has answered its call."""

    thought: str
    action: str
    observation: list[str] = field(default_factory=list)
    has_result: bool = False


class Conversation:
    """Builds steps from what user, assistant and tools say, in order.

    The assistant's text is the thought of the tool calls that follow it in its turn. Text without a call is an action
    of its own, and the user's next message is its observation. User messages before the first step are the first
    observation. Each of several parallel calls is a step; the first one has the thought.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._opening: list[str] = []
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: dict[tuple[str, str], list[tuple[int, deque[_Step]]]] = {}
        """Calls by id and name, by id or name alone, and all, for each turn."""
        self._answered: dict[str, _Step] = {}
        self._turn = 0
        self._answer: str | None = None

    def begin_turn(self) -> None:
        """Begin a new message of the assistant."""
        self._end_text()
        self._turn += 1

    def think(self, text: str) -> None:
        """Add a thought of the assistant."""
        self._thoughts += [text] if text else []

    def say(self, text: str) -> None:
        """Add a text of the assistant. Thoughts in it (``<think>``) are no part of the action."""
        self._texts += [text] if text else []

    def call(self, name: str, arguments: str, id: str, observation: str = "") -> None:
        """Add a tool call. ``observation``: the part of the result that is already known."""
        text, thought = self._said()
        step = _Step(join([thought, text]), f"{name}({arguments})", [observation])
        self._answer = None
        self._steps.append(step)
        for key in {(id, name), (id, ""), ("", name), ("", "")}:
            turns = self._calls.setdefault(key, [])
            if not turns or turns[-1][0] != self._turn:
                turns.append((self._turn, deque()))
            turns[-1][1].append(step)

    def result(self, text: str, id: str, name: str = "", failed: bool = False) -> None:
        """Add the result of the pending tool call ``id``, or of the call ``name`` if it has no id.

        If calls share an id (some servers restart ids in each turn), the call is chosen by name, then by turn, the
        latest first, then by order. A second result is added to the first. A result whose call is missing, because the
        history was trimmed, is what the agent sees next.
        """
        self._end_text()
        text = f"[error] {text}" if failed else text
        step = self._pending(id, name) or self._pending(id, "") or (self._answered.get(id) if id else None)
        if step is None:
            self.observe(text)
        else:
            step.has_result = True
            step.observation.append(text)
            self._answered[id] = step
            self._turn += 1

    def observe(self, text: str) -> None:
        """Add a message of the user."""
        self._end_text()
        (self._steps[-1].observation if self._steps else self._opening).append(text)

    def fields(self) -> dict[str, Any]:
        """End the conversation and return ``steps``, ``first_observation`` and ``answer`` of the trajectory."""
        self._end_text()
        if self._thoughts:
            self._steps.append(_Step(join(self._thoughts), ""))
        if not self._steps:
            raise InvalidTrajectory("the assistant says and does nothing; expected at least one text or tool call")
        steps = [
            {"thought": step.thought, "action": step.action, "observation": join(step.observation)}
            for step in self._steps
        ]
        return {"steps": steps, "first_observation": join(self._opening), "answer": self._answer}

    def _pending(self, id: str, name: str) -> _Step | None:
        """The first call without a result in the latest turn that has one."""
        turns = self._calls.get((id, name), [])
        while turns:
            calls = turns[-1][1]
            while calls and calls[0].has_result:
                calls.popleft()
            if calls:
                return calls[0]
            turns.pop()
        return None

    def _said(self) -> tuple[str, str]:
        """The assistant's text since the last step, and its thought; both are removed."""
        text, thought = without_thoughts(join(self._texts)) if self._texts else ("", "")
        thought = join([*self._thoughts, thought])
        self._thoughts, self._texts = [], []
        return text, thought

    def _end_text(self) -> None:
        if self._texts:
            text, thought = self._said()
            if text:
                self._answer = text
                self._steps.append(_Step(thought, text))
            else:
                self._thoughts = [thought]
