"""What is learned from rollouts: parts that memory systems are composed of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import dspy

from rb_dspy.backbones import active, value
from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.memories.recall import tasks_of
from rb_dspy.memories.system import Attempt
from rb_dspy.schema import EVERY, MAX_CONTENT, MAX_DATA, ItemDraft, Label, MemoryDraft, MemoryItem, Task
from rb_dspy.steps import Distilled
from rb_dspy.steps.ask import ask
from rb_dspy.steps.distill import said_fields
from rb_dspy.steps.transcript import escape_markers, transcript
from rb_dspy.text import without_invisible

Each = TypeVar("Each")

_TITLE = 200
"""Characters of a title, as in ``MemoryDraft``."""
_OTHER_DATA = 2_000
"""Bytes of an item's data that are not ids of tasks."""
CASE_TOKENS = 16_000
"""Longest case that is stored, in tokens (estimated): fits ``ItemDraft``."""


@dataclass(frozen=True)
class Cases:
    """Stores each rollout as it was, without a language model: its task, its steps, and how it was judged."""

    labels: Sequence[Label] = ("success", "failure", "unknown")
    """Only rollouts with these verdicts."""
    observations: bool = True
    """Whether what the agent saw after its actions is kept."""

    def __call__(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        return learned((self._case(each) for each in attempts if each.verdict.label in self.labels), attempts)

    def _case(self, attempt: Attempt) -> ItemDraft:
        label, rollout = attempt.verdict.label, attempt.trajectory
        if not self.observations:
            blind = tuple(step.model_copy(update={"observation": ""}) for step in rollout.steps)
            rollout = rollout.model_copy(update={"steps": blind})
        ended = "" if label == "unknown" else f"\nJudged: {label}"
        return case(attempt, f"{transcript(rollout, CASE_TOKENS)}{ended}", label=label)


class Asked(dspy.Module):
    """Asks a language model, in the role of the distiller, what each rollout teaches.

    Args:
        config: Settings of the calls.
        read: Turns an answer into drafts.
        success: What is asked after a success. Inputs: see ``asked``.
        failure: What is asked after a failure; None: it teaches nothing.
        more: Further inputs.
    """

    def __init__(
        self,
        config: DistillConfig,
        read: Callable[[dspy.Prediction, Attempt], Iterable[MemoryDraft]],
        success: type[dspy.Signature],
        failure: type[dspy.Signature] | None = None,
        more: Callable[[Attempt], dict[str, Any]] = lambda attempt: {},
    ) -> None:
        super().__init__()
        self.config, self.read, self.more, self.success = config, read, more, dspy.Predict(success)
        self.failure = self.success if failure is success else failure and dspy.Predict(failure)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        drafts: list[MemoryDraft] = []
        for each in attempts:
            if predict := getattr(self, each.verdict.label, None):
                drafts += self.read(asked(predict, self.config, each, **self.more(each)), each)
        return learned(drafts, attempts, self.success)


class Attempted(dspy.Signature):
    """A signature to derive others from, whose docstrings say what to do."""

    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the attempt")


class Rollout(Attempted):
    """The same, with what is the best source of facts."""

    environment_said: str = dspy.InputField(desc="what the environment said, in order")


def asked(predict: Any, config: DistillConfig, attempt: Attempt, **more: Any) -> dspy.Prediction:
    """Call ``predict`` about a rollout, with those of its inputs that the signature has, and of ``more``.

    Texts of the task, the environment and the agent are escaped, and shortened until the prompt fits. What in ``more``
    is to be shortened, too, is a function of the most tokens for one rollout.
    """
    wanted = predict.signature.input_fields

    def inputs(max_tokens: int) -> dict[str, Any]:
        every = {
            "task": escape_markers(attempt.task.instruction),
            "trajectory": transcript(attempt.trajectory, max_tokens),
            "verdict": attempt.verdict.label,
            **said_fields(attempt.trajectory, max_tokens),
            **{name: each(max_tokens) if callable(each) else each for name, each in more.items()},
        }
        return {name: every[name] for name in wanted}

    return ask(predict, "distiller", config, inputs, rollout=attempt.number)


def learned(
    drafts: Iterable[MemoryDraft], attempts: Sequence[Attempt], predict: Any = None, note: str = ""
) -> Distilled:
    """The drafts that say something, each once; ``predict``: which model wrote them."""
    kept = tuple(dict.fromkeys(each for each in map(_clean, drafts) if each.title and each.content))
    labels = ", ".join(dict.fromkeys(each.verdict.label for each in attempts))
    why = note or ("" if kept else f"nothing learned: judged {labels}")
    return Distilled(kept, why, "" if predict is None else _model_of(predict))


def texts(said: dspy.Prediction, name: str) -> list[str]:
    """An output field that is a list of texts, without empty ones. Raises as ``listed``."""
    return [text for text in (without_invisible(each).strip() for each in listed(said, name, str)) if text]


def listed(said: dspy.Prediction, name: str, kind: type[Each]) -> list[Each]:
    """An output field that is a list.

    Raises:
        UnparseableOutput: It is something else, or what it lists is.
    """
    given = value(said, name, "distiller")
    if not isinstance(given, list | tuple) or not all(isinstance(each, kind) for each in given):
        raise UnparseableOutput(f"the distiller's {name} is {given!r:.120}; expected a list of {kind.__name__}")
    return list(given)


def numbers(said: dspy.Prediction, name: str, most: int) -> list[int]:
    """As ``listed``, of numbers: those from 1 to ``most``, each once, in order."""
    return [each for each in dict.fromkeys(listed(said, name, int)) if 0 < each <= most]


def sentence(said: dspy.Prediction, name: str) -> str:
    """An output field that is a text.

    Raises:
        UnparseableOutput: It is empty.
    """
    text = without_invisible(str(value(said, name, "distiller"))).strip()
    if not text:
        raise UnparseableOutput(f"the distiller's {name} is empty; expected a text")
    return text


def item(kind: str, title: str, content: str, description: str = "", **data: Any) -> ItemDraft:
    """A draft of a kind, whose texts are cut to what a bank takes."""
    title, content = without_invisible(title).strip(), without_invisible(content).strip()
    title = f"{title[: _TITLE - 1]}…" if len(title) > _TITLE else title
    return ItemDraft(title=title, description=description[:600], content=content[:MAX_CONTENT], kind=kind, data=data)


def joined(items: Sequence[MemoryItem], task: Task, title: str, content: str) -> ItemDraft:
    """A draft in the place of ``items``, learned from all of their tasks and this one."""
    first, ids = items[0], list(dict.fromkeys([*tasks_of(items), task.id]))
    long = len(json.dumps(ids)) > MAX_DATA - _OTHER_DATA
    tasks = EVERY if long or any(each.data.get("tasks") == EVERY for each in items) else ids
    named = without_invisible(title).strip() or first.title
    return item(first.kind, named, content, first.description, **{**first.data, "tasks": tasks})


def case(attempt: Attempt, content: str, kind: str = "case", **data: Any) -> ItemDraft:
    """A draft that is found by tasks similar to that of a rollout: by their keys, if they have any."""
    return item(kind, attempt.task.instruction, content, attempt.task.key, **data)


def _model_of(predict: Any) -> str:
    """The name of the model that answers for the distiller."""
    return str((getattr(predict, "lm", None) or active().lm("distiller")).model)


def _clean(draft: MemoryDraft) -> MemoryDraft:
    cleaned = {name: without_invisible(getattr(draft, name)).strip() for name in ("title", "description", "content")}
    return draft.model_copy(update=cleaned)
