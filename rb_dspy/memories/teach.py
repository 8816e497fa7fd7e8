"""What is learned from rollouts: parts that memory systems are composed of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import dspy

from rb_dspy.backbones import active, value
from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.memories.recall import merged
from rb_dspy.memories.system import Attempt
from rb_dspy.schema import ItemDraft, Label, MemoryDraft, MemoryItem, Task
from rb_dspy.steps import Distilled
from rb_dspy.steps.ask import ask
from rb_dspy.steps.distill import said_fields
from rb_dspy.steps.transcript import escape_markers, transcript
from rb_dspy.text import without_invisible

Each = TypeVar("Each")

_TITLE = 200
"""Characters of a title, as in ``MemoryDraft``."""
CASE_TOKENS = 16_000
"""Longest case that is stored, in tokens (estimated): fits ``ItemDraft``."""


@dataclass(frozen=True)
class Cases:
    """Stores each rollout as it was, without a language model: its task, its steps, and how it was judged.

    Args:
        labels: Only rollouts with these verdicts.
        thoughts: Whether the agent's thoughts are kept.
        observations: Whether what it saw after its actions is kept.
    """

    labels: Sequence[Label] = ("success", "failure", "unknown")
    thoughts: bool = True
    observations: bool = True

    def __call__(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        drafts = [self._case(each) for each in attempts if each.verdict.label in self.labels]
        return Distilled(tuple(dict.fromkeys(drafts)), "" if drafts else f"not stored: {_labels(attempts)}")

    def _case(self, attempt: Attempt) -> ItemDraft:
        label, rollout = attempt.verdict.label, attempt.trajectory
        if not self.observations:
            blind = tuple(step.model_copy(update={"observation": ""}) for step in rollout.steps)
            rollout = rollout.model_copy(update={"steps": blind})
        steps = transcript(rollout, CASE_TOKENS, thoughts=self.thoughts)
        ended = "" if label == "unknown" else f"\nJudged: {label}"
        return case(attempt, f"{steps}{ended}", label=label)


class Asked(dspy.Module):
    """Asks a language model, in the role of the distiller, what a rollout teaches.

    Args:
        predict: Its signature has some of the inputs ``task``, ``trajectory``, ``environment_said``, ``feedback`` and
            ``verdict``; a rollout is given without the thoughts of its agent if ``thoughts`` is False.
        read: Turns the answer into drafts.
        labels: Rollouts with another verdict teach nothing.
    """

    def __init__(
        self,
        signature: type[dspy.Signature],
        read: Callable[[dspy.Prediction, Attempt], Iterable[MemoryDraft]],
        config: DistillConfig,
        *,
        labels: Sequence[Label] = ("success", "failure"),
        thoughts: bool = True,
    ) -> None:
        super().__init__()
        self.predict = dspy.Predict(signature)
        self.config, self.read, self.labels, self.thoughts = config, read, tuple(labels), thoughts

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``. Each rollout is asked about by itself."""
        drafts: list[MemoryDraft] = []
        for attempt in attempts:
            if attempt.verdict.label in self.labels:
                drafts += self.read(self.ask(attempt, bank), attempt)
        kept = tuple(dict.fromkeys(each for each in map(_clean, drafts) if each.title and each.content))
        return Distilled(kept, "" if kept else f"nothing learned: {_labels(attempts)}", model_of(self.predict))

    def ask(self, attempt: Attempt, bank: MemoryBank) -> dspy.Prediction:
        """The answer about one rollout."""
        return asked(self.predict, self.config, attempt, thoughts=self.thoughts)


class Rollout(dspy.Signature):
    """A signature to derive others from, whose docstrings say what to do."""

    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the attempt")
    environment_said: str = dspy.InputField(desc="what the environment said, in order")


def asked(
    predict: Any, config: DistillConfig, attempt: Attempt, *, thoughts: bool = True, **more: Any
) -> dspy.Prediction:
    """Call ``predict`` about a rollout, with those of its inputs that the signature has, and of ``more``.

    Texts of the task, the environment and the agent are escaped, and shortened until the prompt fits. What in ``more``
    is to be shortened, too, is a function of the most tokens for one rollout.
    """
    wanted = predict.signature.input_fields

    def inputs(max_tokens: int) -> dict[str, Any]:
        every = {
            "task": escape_markers(attempt.task.instruction),
            "trajectory": transcript(attempt.trajectory, max_tokens, thoughts=thoughts),
            "verdict": attempt.verdict.label,
            "reasons": escape_markers(attempt.verdict.reasons) or "(none)",
            **said_fields(attempt.trajectory, max_tokens),
            **{name: each(max_tokens) if callable(each) else each for name, each in more.items()},
        }
        return {name: every[name] for name in wanted}

    return ask(predict, "distiller", config, inputs, rollout=attempt.number)


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
    return ItemDraft(title=title, description=description[:600], content=content[:100_000], kind=kind, data=data)


def joined(items: Sequence[MemoryItem], task: Task, title: str, content: str) -> ItemDraft:
    """A draft in the place of ``items``, learned from all of their tasks and this one."""
    first = items[0]
    named = without_invisible(title).strip() or first.title
    return item(first.kind, named, content, first.description, **{**first.data, **merged(items, task)})


def case(attempt: Attempt, content: str, kind: str = "case", **data: Any) -> ItemDraft:
    """A draft that is found by tasks similar to that of a rollout: by their keys, if they have any."""
    return item(kind, attempt.task.instruction, content, attempt.task.key, **data)


def model_of(predict: Any) -> str:
    """The name of the model that answers for the distiller."""
    return str((getattr(predict, "lm", None) or active().lm("distiller")).model)


def _clean(draft: MemoryDraft) -> MemoryDraft:
    cleaned = {name: without_invisible(getattr(draft, name)).strip() for name in ("title", "description", "content")}
    return draft.model_copy(update=cleaned)


def _labels(attempts: Sequence[Attempt]) -> str:
    return f"judged {', '.join(dict.fromkeys(each.verdict.label for each in attempts))}"
