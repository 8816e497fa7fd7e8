"""Turns of a conversation, as the steps of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rb_dspy.errors import InvalidTrajectory
from rb_dspy.importers.content import join


@dataclass(eq=False)
class _Call:
    """A tool call without a result."""

    id: str
    name: str
    turn: int
    step: dict[str, str]


class Conversation:
    """Builds steps from what user, assistant and tools say, in order.

    The assistant's text is the thought of the tool calls that follow it in its turn. Text without a call is an action
    of its own, and the user's next message is its observation. User messages before the first step are the first
    observation. Each of several parallel calls is a step; the first one has the thought.
    """

    def __init__(self) -> None:
        self._steps: list[dict[str, str]] = []
        self._opening: list[str] = []
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._pending: list[_Call] = []
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
        """Add a text of the assistant."""
        self._texts += [text] if text else []

    def call(self, name: str, arguments: str, id: str, observation: str = "") -> None:
        """Add a tool call. ``observation``: the part of the result that is already known."""
        thought = join([*self._thoughts, *self._texts])
        step = {"thought": thought, "action": f"{name}({arguments})", "observation": observation}
        self._thoughts, self._texts, self._answer = [], [], None
        self._steps.append(step)
        self._pending.append(_Call(id, name, self._turn, step))

    def result(self, text: str, id: str, name: str = "", failed: bool = False) -> None:
        """Add the result of the pending tool call ``id``, or of the call ``name`` if it has no id.

        If calls share an id (some servers restart ids in each turn), the call is chosen by name, then by turn, the
        latest first, then by order.
        """
        self._end_text()
        calls = [call for call in self._pending if not id or call.id == id]
        calls = [call for call in calls if name and call.name == name] or calls
        if not calls:
            raise InvalidTrajectory(f"a tool result with id {id!r} has no tool call before it; expected the call first")
        call = next(call for call in calls if call.turn == calls[-1].turn)
        self._pending.remove(call)
        self._turn += 1
        call.step["observation"] = join([call.step["observation"], f"[error] {text}" if failed else text])

    def observe(self, text: str) -> None:
        """Add a message of the user."""
        self._end_text()
        if self._steps:
            self._steps[-1]["observation"] = join([self._steps[-1]["observation"], text])
        else:
            self._opening.append(text)

    def fields(self) -> dict[str, Any]:
        """End the conversation and return ``steps``, ``first_observation`` and ``answer`` of the trajectory."""
        self._end_text()
        if self._thoughts:
            self._steps.append({"thought": join(self._thoughts), "action": "", "observation": ""})
        if not self._steps:
            raise InvalidTrajectory("the assistant says and does nothing; expected at least one text or tool call")
        return {"steps": self._steps, "first_observation": join(self._opening), "answer": self._answer}

    def _end_text(self) -> None:
        if self._texts:
            self._answer = join(self._texts)
            self._steps.append({"thought": join(self._thoughts), "action": self._answer, "observation": ""})
            self._thoughts, self._texts = [], []
