"""The values that flow through the loop: frozen, typed, JSON in and out.

A *verdict* is a judge's opinion; an *outcome* is the environment's ground truth and reaches the scorer only. A *draft*
is proposed by a distiller; an *item* has been admitted to a bank.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import Field, JsonValue

from rb_dspy.errors import InvalidTask
from rb_dspy.signatures.draft import MemoryDraft as MemoryDraft
from rb_dspy.text import counted, html_table, invisible, normalize

MAX_INSTRUCTION = 100_000
"""Longest task instruction, in characters."""
CANDIDATE = "candidate"
"""The kind of an item that is not shown yet."""
MAX_CONTENT = 100_000
"""Longest content of an item that is no lesson, in characters."""
MAX_DATA = 16_000
"""Most bytes of an item's data."""
EVERY = "all"
"""The ``tasks`` of an item that may hold something of every task that its bank has learned from."""

Text = Annotated[str, pydantic.AfterValidator(normalize)]
"""Text that an agent, an environment or a person wrote: normalized, never rejected (see ``rb_dspy.text``)."""

Label = Literal["success", "failure", "unknown"]
Polarity = Literal["success", "failure"]
ChangeKind = Literal["append", "edit", "mark", "delete", "rollback", "purge", "undelete", "retire"]
Mark = Literal["helpful", "harmful", "neutral"]
"""Whether an item helped an agent that was shown it, as a memory system says."""
Level = Literal["held", "learned", "owner"]
"""How far a lesson is trusted. ``held``: stored and listed, never shown; ``owner``: a person wrote or approved it."""
LEVELS: tuple[Level, ...] = ("held", "learned", "owner")
"""The levels in order; a bank stores their places."""
StopReason = Literal["done", "max_steps", "context", "unparseable", "external"]
"""Why a rollout ended: the environment ended it; the step limit; the context window; an answer of the agent that could
not be parsed; an agent loop outside rb_dspy."""


brief = reprlib.Repr()
"""Writes a text, cut to 60 characters, for a ``repr`` of one line."""
brief.maxstring = 60


class Frozen(pydantic.BaseModel):
    """An immutable value that accepts no unknown fields. Printed, it is its ``repr``."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    def __str__(self) -> str:
        return repr(self)


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

    def __repr__(self) -> str:
        return f"Task({self.id!r}: {brief.repr(self.instruction)})"

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


class Shown(Frozen):
    """What memory showed an agent during its rollout, beside what it was shown before the first action."""

    ids: tuple[str, ...] = ()
    """Ids of items, in order, each once."""
    tokens: int = Field(default=0, ge=0)
    """Tokens (estimated) of these texts."""
    problem: Text = ""
    """Why nothing was shown before the first action, if memory failed."""


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
    shown: Shown = Field(default_factory=Shown, exclude_if=lambda shown: shown == Shown())
    usage: Usage = Field(default_factory=dict)

    @pydantic.field_validator("stop_reason", mode="before")
    @classmethod
    def _rename_stop_reason(cls, value: object) -> object:
        """Exports of the first edition say "unreadable"."""
        return "unparseable" if value == "unreadable" else value

    def __repr__(self) -> str:
        steps, answer = counted(len(self.steps), "step"), brief.repr(self.answer)
        return f"Trajectory({self.task_id!r}, rollout {self.rollout_id}: {steps}, {self.stop_reason}, answer {answer})"


TaskOrTrajectory = TypeVar("TaskOrTrajectory", Task, Trajectory)


def cleaned(value: TaskOrTrajectory, redact: Callable[[str], str]) -> TaskOrTrajectory:
    """A task or a trajectory whose texts went through ``redact``; ids and the arguments of environments stay."""

    def clean(given: Any) -> Any:
        if isinstance(given, str):
            return redact(given) if given else given
        if isinstance(given, tuple):
            return tuple(map(clean, given))
        if isinstance(given, Step | Check | Task | Trajectory):
            texts = {name: clean(each) for name, each in dict(given).items() if name in _CLEANED}
            changed = {name: each for name, each in texts.items() if each != getattr(given, name)}
            return given.model_copy(update=changed) if changed else given
        return given

    result: TaskOrTrajectory = clean(value)
    return result


_CLEANED = {
    *("instruction", "key", "steps", "answer", "first_observation", "feedback", "checks"),
    *("thought", "action", "observation", "findings"),
}


class Verdict(Frozen):
    """A judge's opinion of a rollout; never ground truth.

    ``unknown``: the judge abstained or its answer could not be parsed; nothing is distilled. ``confidence`` is in
    [0, 1], or None if the judge states none, as in the paper.
    """

    label: Label
    reasons: Text = ""
    confidence: float | None = Field(default=None, ge=0, le=1)

    def __repr__(self) -> str:
        return f"Verdict({self.label}: {brief.repr(self.reasons)})"


class Outcome(Frozen):
    """The environment's ground truth: for the scorer only. ``reward`` is in [0, 1]."""

    reward: float = Field(ge=0, le=1)
    success: bool
    info: dict[str, JsonValue] = Field(default_factory=dict)


class Provenance(Frozen):
    """Where an item comes from: its experience, task and run, and the LM that distilled it."""

    experience_id: str
    task_id: str
    polarity: Polarity
    run_id: str = ""
    distiller: str = ""
    origin: str = ""
    """Source of the item: an imported file, another agent, a person; empty if this program learned it itself."""

    @property
    def taught_by(self) -> str:
        """What taught the item: ``from a success``, ``from a failure``, or ``by hand`` (``MemoryBank.add``)."""
        return "by hand" if re.fullmatch("lesson-[0-9a-f]{20}", self.task_id) else f"from a {self.polarity}"


class ItemDraft(MemoryDraft):
    """A draft of another kind than a lesson: a whole case, a workflow, a bullet.

    Its content has up to ``MAX_CONTENT`` characters. The kind decides which texts are embedded: of ``case`` and
    ``workflow`` title and description, of ``bullet`` the content, of any other kind all three.
    """

    content: str = Field(max_length=MAX_CONTENT)
    kind: str = Field(min_length=1, max_length=40, pattern=r"^[a-z][a-z0-9_-]*$")
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """JSON of up to 16,000 bytes, which is stored with the item.

    ``tasks``: ids of all tasks that it was learned from, if there are more than its own, or ``"all"`` for all that the
    bank knows. None of these tasks is shown the item, and it goes when one of them is rolled back or purged.
    """

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        return data

    @pydantic.field_validator("data")
    @classmethod
    def _check_data(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if len(json.dumps(value, allow_nan=False)) > MAX_DATA:
            raise ValueError(f"expected JSON of at most {MAX_DATA:,} bytes")
        return value

    def __hash__(self) -> int:
        return hash((self.title, self.description, self.content, self.kind))


class MemoryItem(Frozen):
    """A lesson in a bank, or an item of another ``kind``. The items of a bank are ordered by ``seq``, never by time.

    The same text learned twice in a scope is one item with two provenances, the earliest first. ``polarity`` is that of
    the earliest, ``level`` the highest of them, or ``owner`` if the item was approved. ``data``: see ``ItemDraft``.
    """

    id: str
    scope: str
    seq: int
    title: str
    description: str
    content: str
    kind: str = "lesson"
    data: dict[str, JsonValue] = Field(default_factory=dict)
    level: Level = "learned"
    polarity: Polarity
    provenances: Annotated[tuple[Provenance, ...], Field(min_length=1)]

    def __hash__(self) -> int:
        return hash((self.scope, self.id, self.seq))

    def __repr__(self) -> str:
        return f"MemoryItem({self.id}, {brief.repr(self.title)}: {brief.repr(self.content)})"

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
    outranks: bool = True
    """False if others are not to be left out because this one is so much better: its origin is not trusted by name, or
    many say the same."""


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
    """Ids of the items and experiences that the agent was shown."""
    level: Level = "learned"
    reward: float | None = None
    """Ground truth, from 0 to 1, if it is known."""
    submitted: int | None = None
    """The place of the trajectory that was submitted, if it is known."""
    created_at: str = ""
    """ISO 8601, UTC; for display, never for order."""

    def __repr__(self) -> str:
        """What was learned, from which task, and how it was judged."""
        labels = ", ".join(dict.fromkeys(verdict.label for verdict in self.verdicts))
        lessons = [brief.repr(item.title) for item in self.items[:3]] or [brief.repr(self.note)]
        what = f"{counted(len(self.items), 'lesson')}: {', '.join(lessons)}{', …' if len(self.items) > 3 else ''}"
        return f"Experience({self.id}, {self.task.id!r}, {labels or 'not judged'}, {what})"

    def _repr_html_(self) -> str:
        labels = ", ".join(verdict.label for verdict in self.verdicts)
        rows = [(item.title, item.content) for item in self.items]
        return html_table(
            f"{self.task.instruction[:200]} ({labels})", ("learned", ""), rows or [("nothing", self.note)]
        )


class ExperienceDraft(Frozen):
    """An experience before a bank admits it: one or more rollouts, their verdicts (aligned), and the lessons' drafts.

    ``polarity`` None follows the verdicts: success if any rollout succeeded, else failure. ``reward`` None follows what
    is known of the rollouts: the share of successes.
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
    """Ids of the items and experiences that the agent was shown."""
    cited: tuple[str, ...] = ()
    """Those that it said it used."""
    reward: float | None = Field(default=None, ge=0, le=1)
    submitted: int | None = Field(default=None, ge=0)
    """The place of the trajectory that was submitted."""
    retired: dict[str, Text] = Field(default_factory=dict)
    """Id of an item -> why it is retired."""
    marks: dict[str, Mark] = Field(default_factory=dict)
    """Id of what was shown -> whether it helped."""


class Use(Frozen):
    """One time that an item or an experience was shown to an agent, and what came of it."""

    experience_id: str
    """The experience that was learned from the rollout."""
    task_id: str
    run_id: str
    place: int
    """Its place in the prompt, from 0 on."""
    cited: bool
    """Whether the agent said that it used it."""
    label: Label
    """The verdict; success if any of several rollouts was judged a success."""
    reward: float | None
    """Ground truth, if it is known."""
    seq: int
    """The number of that experience: uses are ordered by it."""
    mark: Mark | None = None
    """Whether it helped, if the memory system said so when it learned from the experience."""

    @property
    def succeeded(self) -> bool | None:
        """By the reward if it is known (0.5 or more), else by the verdict; None if that is unknown."""
        if self.reward is not None:
            return self.reward >= 0.5
        return None if self.label == "unknown" else self.label == "success"


class Uses(tuple[Use, ...]):
    """All uses of one item or experience, oldest first."""

    __slots__ = ()

    @property
    def succeeded(self) -> int:
        """After how many the rollout was a success."""
        return sum(use.succeeded is True for use in self)

    @property
    def failed(self) -> int:
        """After how many it was a failure."""
        return sum(use.succeeded is False for use in self)

    @property
    def tasks(self) -> list[str]:
        """Ids of the tasks, without repetition."""
        return list(dict.fromkeys(use.task_id for use in self))


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
    """An entry of a bank's journal.

    ``before`` and ``after`` are the texts of an edited item; ``mark`` is the name of a mark, and ``note`` its value.
    """

    seq: int
    kind: ChangeKind
    id: str
    """The experience or item that was changed."""
    note: str = ""
    """The reason for the change, as the caller stated it."""
    before: MemoryDraft | None = None
    after: MemoryDraft | None = None
    mark: str = ""
    created_at: str = ""


class Removal(Frozen):
    """What a delete or a rollback removed, or would remove: ids, in the order of their numbers."""

    experiences: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    """Pending rollouts."""
