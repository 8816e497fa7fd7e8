"""The values that flow through the loop: frozen, typed, JSON in and out.

Words: a *verdict* is a judge's opinion; an *outcome* is the environment's ground truth and reaches the scorer only. A
*draft* is proposed by a distiller; an *item* has been admitted to a bank.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import JsonValue

from rb_dspy.errors import InvalidTask
from rb_dspy.signatures.draft import MemoryDraft
from rb_dspy.text import hidden_characters, visible

MAX_INSTRUCTION = 100_000
"""Longest task instruction, in characters."""

Text = Annotated[str, pydantic.AfterValidator(visible)]
"""Text that an agent, an environment or a language model wrote: made storable, never refused."""


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


_MAX_DIGITS = 4300
_TOO_LONG = 10**_MAX_DIGITS
"""Neither Python nor pydantic reads an int of more digits from JSON."""


def _too_long(value: JsonValue) -> bool:
    """Whether ``value`` holds an int that could be written as JSON and not be read again."""
    if isinstance(value, dict):
        return any(map(_too_long, value.values()))
    if isinstance(value, list):
        return any(map(_too_long, value))
    return isinstance(value, int) and abs(value) >= _TOO_LONG


class Task(_Frozen):
    """One thing to do.

    ``env`` names the environment family and ``env_args`` are its arguments; the agent, the judge and the distiller see
    ``instruction`` only. ``template`` groups tasks that were made alike, so that splits can keep them apart.
    Raises ``InvalidTask`` for an instruction that is empty, too long, or hides characters, and for ``env_args`` with
    numbers that are too long to be read again.
    """

    id: str
    instruction: str
    env: str = "question"
    env_args: dict[str, JsonValue] = pydantic.Field(default_factory=dict, repr=False)
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

    @pydantic.field_validator("env_args")
    @classmethod
    def _check_env_args(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if _too_long(value):
            raise InvalidTask(f"env_args hold a number of more than {_MAX_DIGITS:,} digits; write it as a text")
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
    """What one role used: LM calls, tokens, and wall seconds inside the role's calls. Finite, and none below zero."""

    calls: int = pydantic.Field(default=0, ge=0)
    prompt_tokens: int = pydantic.Field(default=0, ge=0)
    completion_tokens: int = pydantic.Field(default=0, ge=0)
    cached_calls: int = pydantic.Field(default=0, ge=0)
    """Calls answered from dspy's response cache; their tokens are not billed and not counted."""
    seconds: float = pydantic.Field(default=0.0, ge=0, allow_inf_nan=False)

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


class Check(_Frozen):
    """The agent's look back at its own work, after step number ``after``: what it found, and whether to change it."""

    after: int = pydantic.Field(ge=0)
    findings: Text = ""
    decision: Literal["confirm", "correct"]


class Trajectory(_Frozen):
    """One rollout, always whole. ``first_observation`` is what the agent was shown first.

    ``checks`` are those of sequential scaling, in order; a rollout that was not checked is stored without them.
    """

    task_id: str
    steps: tuple[Step, ...] = ()
    answer: Text | None = None
    first_observation: Text = ""
    rollout_id: str = "0"
    stop_reason: StopReason = "done"
    checks: tuple[Check, ...] = pydantic.Field(default=(), exclude_if=lambda checks: not checks)
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
    """The environment's ground truth: for the scorer only. ``reward`` is in [0, 1]."""

    reward: float = pydantic.Field(ge=0, le=1)
    success: bool
    info: dict[str, JsonValue] = pydantic.Field(default_factory=dict)


Polarity = Literal["success", "failure"]


class Provenance(_Frozen):
    """Where an item comes from: the experience, its task, its run, the LM that distilled it, and who brought it."""

    experience_id: str
    task_id: str
    run_id: str = ""
    distiller: str = ""
    origin: str = ""
    """Empty for what this program learned itself; else who brought it: an imported file, another agent."""


class MemoryItem(_Frozen):
    """A lesson in a bank. ``seq`` orders the items of a bank; clocks never do.

    The same text learned twice in a scope is one item with two provenances, the earliest first. ``polarity`` is that of
    the earliest.
    """

    id: str
    scope: str
    seq: int
    title: str
    description: str
    content: str
    polarity: Polarity
    provenances: Annotated[tuple[Provenance, ...], pydantic.Field(min_length=1)]

    @property
    def provenance(self) -> Provenance:
        """The earliest of ``provenances``."""
        return self.provenances[0]


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
    note: str = ""
    origin: str = ""
    """See ``Provenance.origin``."""
    shown: tuple[str, ...] = ()
    """Ids of the items that the agent had been given."""
    created_at: str = ""
    """ISO 8601, UTC; for people, never for order."""


class ExperienceDraft(_Frozen):
    """An experience before a bank has admitted it: rollouts of a task, their verdicts, and what was drawn from them.

    ``trajectories`` and ``verdicts`` are aligned, one or more. ``polarity`` of the items follows the verdicts where it
    is None: success when any rollout was one, else failure.
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    drafts: tuple[MemoryDraft, ...] = ()
    run_id: str = ""
    polarity: Polarity | None = None
    distiller: str = ""
    note: str = ""
    origin: str = ""
    shown: tuple[str, ...] = ()
    """Ids of the items that the agent had been given."""


Stage = Literal["recorded", "judged", "distilled"]
"""How far learning from rollouts got: they are kept; their verdicts are; the drafts are, and can be admitted."""


class Ingestion(_Frozen):
    """Rollouts on their way to becoming an experience; what each step gave is stored before the next begins.

    ``id`` is that of the experience it becomes. ``verdicts`` and ``drafts`` are None until there are some.
    """

    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")

    id: str
    scope: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...] | None = None
    drafts: tuple[MemoryDraft, ...] | None = None
    polarity: Polarity | None = None
    """Of the drafts, where it is not that of the verdicts together (see ``ExperienceDraft``)."""
    run_id: str = ""
    distiller: str = ""
    note: str = ""
    """The distiller's: why some drafts, or all, are missing."""
    error: str = ""
    """Why the last try to get further failed."""
    told: bool = pydantic.Field(default=False, exclude_if=lambda told: not told)
    """Whether a try failed, and who made it heard so, with what the rollouts had used."""
    origin: str = ""
    shown: tuple[str, ...] = ()
    created_at: str = ""

    @property
    def stage(self) -> Stage:
        """How far it got."""
        return "recorded" if self.verdicts is None else "judged" if self.drafts is None else "distilled"


class Snapshot(_Frozen):
    """A name for the state of one scope; ``MemoryBank.open(..., at=name)`` gives that state for good.

    ``digest`` is the head of the journal's hash chain at that state: equal digests are equal histories.
    """

    name: str
    scope: str
    seq: int
    digest: str
    created_at: str = ""


ChangeKind = Literal["append", "edit", "delete", "rollback"]


class Change(_Frozen):
    """An entry of a bank's journal. ``before`` and ``after`` are an edited item's texts; None where there is none."""

    seq: int
    kind: ChangeKind
    id: str
    """The experience or item that was changed."""
    note: str = ""
    """Why, in the words of whoever did it."""
    before: MemoryDraft | None = None
    after: MemoryDraft | None = None
    created_at: str = ""


class Removal(_Frozen):
    """What a delete or a rollback took away, or would take away: ids, in the order they had come."""

    experiences: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    ingestions: tuple[str, ...] = ()
    """Rollouts that waited to be learned from."""


class Retrieved(_Frozen):
    """One experience that matched a query, with the items that are shown from it.

    ``score``: what it was ranked by; more is better. Dense: cosine similarity, in [-1, 1]. Lexical: BM25, above 0.
    Hybrid: the sum of reciprocal ranks.
    """

    score: float
    experience_id: str
    task_id: str
    instruction: str
    items: tuple[MemoryItem, ...]


__all__ = [
    "Change",
    "ChangeKind",
    "Check",
    "Experience",
    "ExperienceDraft",
    "Ingestion",
    "Label",
    "MemoryDraft",
    "MemoryItem",
    "Outcome",
    "Polarity",
    "Provenance",
    "Removal",
    "Retrieved",
    "RoleUsage",
    "Snapshot",
    "Stage",
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
