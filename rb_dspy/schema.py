"""The values that flow through the loop: frozen, typed, JSON in and out.

A *verdict* is a judge's opinion; an *outcome* is the environment's ground truth and reaches the scorer only. A *draft*
is proposed by a distiller; an *item* has been admitted to a bank.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

import pydantic
from pydantic import Field, JsonValue

from rb_dspy.errors import InvalidTask
from rb_dspy.signatures.draft import MemoryDraft as MemoryDraft
from rb_dspy.text import html_table, invisible, normalize

MAX_INSTRUCTION = 100_000
"""Longest task instruction, in characters."""

Text = Annotated[str, pydantic.AfterValidator(normalize)]
"""Text that an agent, an environment or a person wrote: normalized, never rejected (see ``rb_dspy.text``)."""

Label = Literal["success", "failure", "unknown"]
Polarity = Literal["success", "failure"]
ChangeKind = Literal["append", "edit", "delete", "rollback", "purge"]
StopReason = Literal["done", "max_steps", "context", "unparseable", "external"]
"""Why a rollout ended: the environment ended it; the step limit; the context window; an answer of the agent that could
not be parsed; an agent loop outside rb_dspy."""


class Frozen(pydantic.BaseModel):
    """An immutable value that accepts no unknown fields."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Task(Frozen):
    """One thing to do.

    ``env`` names the environment family and ``env_args`` are its arguments; agent, judge and distiller see
    ``instruction`` only. ``template`` groups tasks that were made alike, so that splits can keep them apart.

    Raises:
        InvalidTask: The id is empty, longer than 500 characters or has invisible ones; the instruction is empty or
            longer than ``MAX_INSTRUCTION``; ``env_args`` hold a number that JSON readers reject.
    """

    id: str
    instruction: Text
    env: str = "question"
    env_args: dict[str, JsonValue] = Field(default_factory=dict, repr=False)
    domain: str = ""
    template: str | None = None
    key: Text = ""
    """Text that lessons are searched by; empty: the instruction. For tasks with similar instructions, such as games
    that differ in the first observation."""

    @pydantic.field_validator("id")
    @classmethod
    def _check_id(cls, value: str) -> str:
        if not value.strip() or len(value) > 500 or invisible(value):
            raise InvalidTask(f"task id {value[:40]!r}: expected 1 to 500 visible characters; choose another id")
        return value

    @pydantic.field_validator("instruction")
    @classmethod
    def _check_instruction(cls, value: str) -> str:
        if not value.strip():
            raise InvalidTask("the instruction is empty; expected text that says what to do")
        if len(value) > MAX_INSTRUCTION:
            raise InvalidTask(
                f"the instruction has {len(value):,} characters; expected at most {MAX_INSTRUCTION:,}: shorten it, or"
                " let the environment show the long part as an observation"
            )
        return value

    @pydantic.field_validator("env_args")
    @classmethod
    def _check_env_args(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise InvalidTask(
                "env_args hold NaN, infinity, or an integer of more than 4,300 digits; write it as a text"
            ) from None
        return value

    def without_ground_truth(self) -> Task:
        """This task as a judge or a distiller may see it: ``env_args`` can hold the answer."""
        return self.model_copy(update={"env_args": {}})


class RoleUsage(Frozen):
    """What one role used: LM calls, tokens, and wall seconds inside its calls."""

    calls: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    cached_calls: int = Field(default=0, ge=0)
    """Calls answered from dspy's cache; their tokens are not billed and not counted."""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def __add__(self, other: RoleUsage) -> RoleUsage:
        return RoleUsage(**{name: getattr(self, name) + getattr(other, name) for name in RoleUsage.model_fields})


Usage = dict[str, RoleUsage]
"""Role -> what it used."""


class Step(Frozen):
    """One turn: what the agent thought and did, and what the environment answered."""

    thought: Text = ""
    action: Text
    observation: Text = ""


class Check(Frozen):
    """The agent's check of its own work, after step number ``after``: its findings, and whether to revise the work."""

    after: int = Field(ge=0)
    findings: Text = ""
    decision: Literal["confirm", "revise"]


class Trajectory(Frozen):
    """One complete rollout.

    ``first_observation`` is what the agent saw first; ``checks`` are those of sequential scaling, in order;
    ``feedback`` is a person's comment on this rollout; ``known_label`` is its label if the caller of ``learn`` passed
    one: the judge is then not called.
    """

    task_id: str
    steps: tuple[Step, ...] = ()
    answer: Text | None = None
    first_observation: Text = ""
    rollout_id: str = "0"
    stop_reason: StopReason = "done"
    feedback: Text = Field(default="", exclude_if=lambda feedback: not feedback)
    known_label: Literal["success", "failure"] | None = Field(default=None, exclude_if=lambda label: label is None)
    checks: tuple[Check, ...] = Field(default=(), exclude_if=lambda checks: not checks)
    usage: Usage = Field(default_factory=dict)

    @pydantic.field_validator("stop_reason", mode="before")
    @classmethod
    def _rename_stop_reason(cls, value: object) -> object:
        """Exports of the first edition say "unreadable"."""
        return "unparseable" if value == "unreadable" else value


class Verdict(Frozen):
    """A judge's opinion of a rollout; never ground truth.

    ``unknown``: the judge abstained or its answer could not be parsed; nothing is distilled. ``confidence`` is in
    [0, 1], or None if the judge states none, as in the paper.
    """

    label: Label
    reasons: Text = ""
    confidence: float | None = Field(default=None, ge=0, le=1)


class Outcome(Frozen):
    """The environment's ground truth: for the scorer only. ``reward`` is in [0, 1]."""

    reward: float = Field(ge=0, le=1)
    success: bool
    info: dict[str, JsonValue] = Field(default_factory=dict)


class Provenance(Frozen):
    """Where an item comes from: its experience, task and run, and the LM that distilled it."""

    experience_id: str
    task_id: str
    run_id: str = ""
    distiller: str = ""
    origin: str = ""
    """Source of the item: an imported file, another agent, a person; empty if this program learned it itself."""


class MemoryItem(Frozen):
    """A lesson in a bank. The items of a bank are ordered by ``seq``, never by time.

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
    provenances: Annotated[tuple[Provenance, ...], Field(min_length=1)]

    @property
    def provenance(self) -> Provenance:
        """The earliest of ``provenances``."""
        return self.provenances[0]


class Retrieved(Frozen):
    """One experience that matched a query, with the items that are shown from it.

    ``score`` is what it was ranked by, higher is better: cosine in [-1, 1] (dense), BM25 above 0 (lexical), or the sum
    of reciprocal ranks (hybrid).
    """

    score: float
    experience_id: str
    task_id: str
    instruction: str
    items: tuple[MemoryItem, ...]


class Experience(Frozen):
    """The unit that is appended: a task, its rollouts and their verdicts (aligned), and the items drawn from them."""

    id: str
    scope: str
    seq: int
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    items: tuple[MemoryItem, ...] = ()
    run_id: str = ""
    note: str = ""
    """Why nothing was distilled, if nothing was."""
    origin: str = ""
    """See ``Provenance.origin``."""
    shown: tuple[str, ...] = ()
    """Ids of the items that the agent was shown."""
    created_at: str = ""
    """ISO 8601, UTC; for display, never for order."""

    def _repr_html_(self) -> str:
        labels = ", ".join(verdict.label for verdict in self.verdicts)
        rows = [(item.title, item.content) for item in self.items]
        return html_table(
            f"{self.task.instruction[:200]} ({labels})", ("learned", ""), rows or [("nothing", self.note)]
        )


class ExperienceDraft(Frozen):
    """An experience before a bank admits it: one or more rollouts, their verdicts (aligned), and the lessons' drafts.

    ``polarity`` None follows the verdicts: success if any rollout succeeded, else failure.
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
    """Ids of the items that the agent was shown."""


class Snapshot(Frozen):
    """A name for a state of one scope; ``MemoryBank.open(..., at=name)`` opens it.

    ``digest`` is a hash of the journal up to that state: equal digests mean equal changes in the same order.
    """

    name: str
    scope: str
    seq: int
    digest: str
    created_at: str = ""


class Change(Frozen):
    """An entry of a bank's journal. ``before`` and ``after`` are the texts of an edited item."""

    seq: int
    kind: ChangeKind
    id: str
    """The experience or item that was changed."""
    note: str = ""
    """The reason for the change, as the caller stated it."""
    before: MemoryDraft | None = None
    after: MemoryDraft | None = None
    created_at: str = ""


class Removal(Frozen):
    """What a delete or a rollback removed, or would remove: ids, in the order of their numbers."""

    experiences: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    """Pending rollouts."""
