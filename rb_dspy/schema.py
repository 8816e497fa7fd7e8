"""The values that flow through the loop: frozen, typed, JSON in and out.

Words: a *verdict* is a judge's opinion; an *outcome* is the environment's ground truth and reaches the scorer only. A
*draft* is proposed by a distiller; an *item* has been admitted to a bank.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import regex
from pydantic import JsonValue

from rb_dspy.errors import InvalidTask
from rb_dspy.signatures.draft import MemoryDraft

MAX_INSTRUCTION = 100_000
"""Longest task instruction, in characters."""

MAX_TEXT = 10_000_000
"""Longest thought, action or observation that is kept, in characters; the rest is cut and said so."""

# Control, format and surrogate characters, less line ends, tabs, and the joiners of Persian, Indic and emoji text.
_HIDDEN = regex.compile(r"(?V1)[\p{Cc}\p{Cf}\p{Cs}--[\t\n\r\u200c\u200d]]")


def hidden_characters(text: str) -> list[tuple[int, str]]:
    """Positions and code points of characters that a reader cannot see.

    Control characters, lone surrogates, format characters (zero-width space, byte-order mark, bidirectional overrides,
    tags). Line ends, tabs, joiners and variation selectors are ordinary text and are not reported.
    """
    return [(found.start(), f"U+{ord(found[0]):04X}") for found in _HIDDEN.finditer(text)]


def visible(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` as it can be stored and shown: hidden characters replaced by U+FFFD, and cut at ``limit`` characters."""
    if len(text) > limit:
        text = f"{text[:limit]}… [{len(text) - limit} characters cut]"
    return str(_HIDDEN.sub("\ufffd", text))


Text = Annotated[str, pydantic.AfterValidator(visible)]
"""Text that an agent, an environment or a language model wrote: made storable, never refused."""


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Task(_Frozen):
    """One thing to do.

    ``env`` names the environment family and ``env_args`` are its arguments; the agent, the judge and the distiller see
    ``instruction`` only. ``template`` groups tasks that were made alike, so that splits can keep them apart.
    Raises ``InvalidTask`` for an instruction that is empty, too long, or hides characters.
    """

    id: str
    instruction: str
    env: str = "question"
    env_args: dict[str, JsonValue] = pydantic.Field(default_factory=dict)
    domain: str = ""
    template: str | None = None

    @pydantic.field_validator("id")
    @classmethod
    def _check_id(cls, value: str) -> str:
        if not value.strip() or len(value) > 500 or hidden_characters(value):
            raise InvalidTask(f"task id {value[:40]!r}: expected 1 to 500 visible characters; choose another id")
        return value

    @pydantic.field_validator("instruction")
    @classmethod
    def _check_instruction(cls, value: str) -> str:
        if not value.strip():
            raise InvalidTask("the instruction is empty; expected text that says what is to be done")
        if len(value) > MAX_INSTRUCTION:
            raise InvalidTask(
                f"the instruction has {len(value):,} characters; expected at most {MAX_INSTRUCTION:,}: shorten it, or"
                " let the environment show the long part as an observation"
            )
        hidden = hidden_characters(value)
        if hidden:
            position, code = hidden[0]
            raise InvalidTask(
                f"the instruction hides {len(hidden)} invisible character(s), the first {code} at position {position};"
                " expected visible text: remove them"
            )
        return value

    def without_ground_truth(self) -> Task:
        """This task as a judge or a distiller may see it: ``env_args`` can hold the answer."""
        return self.model_copy(update={"env_args": {}})


class Step(_Frozen):
    """One turn: what the agent thought and did, and what the environment answered."""

    thought: Text = ""
    action: Text
    observation: Text = ""


class RoleUsage(_Frozen):
    """What one role used: LM calls, tokens, and wall seconds inside the role's calls."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_calls: int = 0
    """Calls answered from dspy's response cache; their tokens are not billed and not counted."""
    seconds: float = 0.0

    def __add__(self, other: RoleUsage) -> RoleUsage:
        return RoleUsage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_calls=self.cached_calls + other.cached_calls,
            seconds=self.seconds + other.seconds,
        )


Usage = dict[str, RoleUsage]
"""Role name -> what it used."""

StopReason = Literal["done", "max_steps", "context", "unreadable", "external"]
"""The environment ended it; the step cap; the context window; an answer of the agent's that could not be read; or an
agent loop that is not ours."""


class Trajectory(_Frozen):
    """One rollout, always whole. ``first_observation`` is what ``Environment.reset`` returned."""

    task_id: str
    steps: tuple[Step, ...] = ()
    answer: Text | None = None
    first_observation: Text = ""
    rollout_id: str = "0"
    stop_reason: StopReason = "done"
    usage: Usage = pydantic.Field(default_factory=dict)


Label = Literal["success", "failure", "unknown"]


class Verdict(_Frozen):
    """A judge's word on a rollout; never ground truth.

    ``unknown``: the judge abstained or could not be understood; nothing is distilled. ``confidence`` is in [0, 1], or
    None where the judge gives none, as in the paper.
    """

    label: Label
    reasons: Text = ""
    confidence: float | None = pydantic.Field(default=None, ge=0, le=1)


class Outcome(_Frozen):
    """The environment's ground truth: for the scorer and ``OracleJudge`` only. ``reward`` is in [0, 1]."""

    reward: float
    success: bool
    info: dict[str, JsonValue] = pydantic.Field(default_factory=dict)


Polarity = Literal["success", "failure"]


class Provenance(_Frozen):
    """Where an item comes from: the experience, its task, its run, and the LM that distilled it."""

    experience_id: str
    task_id: str
    run_id: str = ""
    distiller: str = ""


class MemoryItem(_Frozen):
    """A lesson in a bank. ``seq`` orders the items of a bank; clocks never do."""

    id: str
    scope: str
    seq: int
    title: str
    description: str
    content: str
    polarity: Polarity
    provenance: Provenance


State = Literal["recorded", "distilled"]
"""How far learning from a rollout got: kept only, because judging or distilling it broke; or all the way."""


class Experience(_Frozen):
    """The unit that is appended and, by default, retrieved: a task, its rollouts and verdicts, and the items they gave.

    ``trajectories`` and ``verdicts`` are aligned. ``note`` says why nothing was distilled, where that is so.
    """

    id: str
    scope: str
    seq: int
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    items: tuple[MemoryItem, ...] = ()
    run_id: str = ""
    state: State = "distilled"
    note: str = ""
    created_at: str = ""
    """ISO 8601, UTC; for people, never for order."""


class Retrieved(_Frozen):
    """One experience that matched a query, with its cosine similarity and the items that are shown from it."""

    score: float
    experience_id: str
    task_id: str
    instruction: str
    items: tuple[MemoryItem, ...]


__all__ = [
    "Experience",
    "Label",
    "MemoryDraft",
    "MemoryItem",
    "Outcome",
    "Polarity",
    "Provenance",
    "Retrieved",
    "RoleUsage",
    "State",
    "Step",
    "StopReason",
    "Task",
    "Text",
    "Trajectory",
    "Usage",
    "Verdict",
    "hidden_characters",
    "visible",
]
