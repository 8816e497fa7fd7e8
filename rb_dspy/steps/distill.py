"""Distill: what does this rollout teach about other tasks?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import active, value
from rb_dspy.config import DistillConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.schema import Mark, MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.steps.ask import ask
from rb_dspy.steps.statements import Statement, in_own_words, says_nothing, statements
from rb_dspy.steps.transcript import escape_markers, observations, transcript
from rb_dspy.text import cut, normalize, without_invisible


@dataclass(frozen=True)
class Distilled:
    """The drafts, the model that wrote them, and a note on drafts that were dropped, or on why there are none."""

    drafts: tuple[MemoryDraft, ...] = ()
    note: str = ""
    distiller: str = ""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Id of an item that was shown -> whether it helped."""

    def in_own_words(self, task: Task, said: Sequence[Statement], answer: str | None = None) -> Distilled:
        """Return this with the environment's own words in the drafts (see ``statements``), equal ones once."""
        drafts = [in_own_words(draft, task, said, answer) for draft in self.drafts if not says_nothing(draft, task)]
        left_out = [f"{draft.title!r} only retells the task" for draft in self.drafts if says_nothing(draft, task)]
        note = "; ".join(filter(None, [self.note, *(f"dropped: {each}" for each in left_out)]))
        return replace(self, drafts=tuple({each.content: each for each in reversed(drafts)}.values())[::-1], note=note)


UNKNOWN = Distilled(note="not distilled: the verdict is unknown")


_PROMPTS = {
    "facts": ("DistillSuccess", "DistillFailure"),
    "general": ("GeneralizeSuccess", "GeneralizeFailure"),
    "procedures": ("ProcedureSuccess", "ProcedureFailure"),
}


class Distill(dspy.Module):
    """Lessons from one rollout: what stays true, why it worked, or how to prevent the failure (paper, section 3.2).

    Success and failure have separate predictors, so that optimizers can tune each. With ``prompts="facts"`` they read
    the actions and observations, but neither the agent's thoughts nor the judge's reasons, because a small model copies
    guesses from these. A verdict ``unknown`` gives no lessons unless ``distill_unknown`` is set.
    """

    def __init__(self, config: DistillConfig | None = None) -> None:
        super().__init__()
        self.config = config or DistillConfig()
        success, failure = _PROMPTS[self.config.prompts]
        self.success = dspy.Predict(getattr(signatures, success))
        self.failure = dspy.Predict(getattr(signatures, failure))

    def forward(self, task: Task, trajectory: Trajectory, verdict: Verdict, rollout: int = 0) -> Distilled:
        """Return at most ``max_items`` drafts.

        Raises:
            UnparseableOutput: The answer could not be parsed.
            InfrastructureError: The call failed.
        """
        if verdict.label == "unknown" and not self.config.distill_unknown:
            return UNKNOWN
        predict = self.success if verdict.label == "success" else self.failure
        reasons = {"judge_reasons": escape_markers(verdict.reasons) or "(none)"}

        def inputs(max_tokens: int) -> dict[str, str]:
            return {
                "task": escape_markers(task.instruction),
                "trajectory": self._trajectory(trajectory, verdict, max_tokens),
                **said_fields(trajectory, max_tokens),
                **({} if self._states is None else {"environment_said": "(not shown)"}),
                **(reasons if self.config.prompts == "procedures" else {}),
            }

        said = ask(predict, "distiller", self.config, inputs, rollout=rollout)
        drafts = read_drafts(said, predict, "distiller", self.config.max_items)
        return worded(drafts, self.config, task, trajectory, verdict)

    @property
    def _states(self) -> int | None:
        return 0 if self.config.prompts != "facts" and not self.config.observations else None

    def _trajectory(self, trajectory: Trajectory, verdict: Verdict, max_tokens: int) -> str:
        if self.config.prompts != "facts":
            return transcript(trajectory, max_tokens, states=self._states)
        if len(trajectory.steps) == 1 and verdict.label != "success":
            return "(one action, which failed)"  # small models copy a wrong answer into the lesson
        return transcript(trajectory, max_tokens, thoughts=False)


def said_fields(trajectory: Trajectory, max_tokens: int) -> dict[str, str]:
    """The input fields with what the environment and a person said."""
    observed = "\n".join(observations(trajectory))
    return {
        "environment_said": escape_markers(cut(observed, max_tokens // 2)) or "(nothing)",
        "feedback": escape_markers(cut(trajectory.feedback, max_tokens // 2)) or "(none)",
    }


def worded(drafts: Distilled, config: DistillConfig, task: Task, trajectory: Trajectory, verdict: Verdict) -> Distilled:
    """Return ``drafts`` in the environment's own words, if ``config`` asks for them."""
    if config.prompts != "facts" or not config.own_words:
        return drafts
    right = verdict.label == "success"
    answer = trajectory.answer if right else None
    return drafts.in_own_words(task, statements([trajectory], right=right), answer)


def read_drafts(said: dspy.Prediction, predict: Any, role: str, limit: int) -> Distilled:
    """Return the first ``limit`` drafts of ``memory_items`` that are complete and do not repeat an earlier one.

    Raises:
        UnparseableOutput: ``memory_items`` is not a list of drafts.
    """
    drafts = value(said, "memory_items", role)
    if not isinstance(drafts, list | tuple) or not all(isinstance(draft, MemoryDraft) for draft in drafts):
        raise UnparseableOutput(f"the {role}'s memory_items are {drafts!r:.120}; expected a list of memory drafts")
    valid: list[MemoryDraft] = []
    dropped: list[str] = []
    for each in drafts:
        draft = MemoryDraft(**{name: without_invisible(text) for name, text in each})
        if not (draft.title and draft.content):
            dropped.append("one without title or content")
        elif any(_words(draft.content) == _words(other.content) for other in valid):
            dropped.append(f"{draft.title!r} repeats another")
        elif len(valid) == limit:
            dropped.append(f"{draft.title!r} is beyond the limit of {limit}")
        else:
            valid.append(draft)
    note = f"dropped: {'; '.join(dropped)}" if dropped else "" if valid else "no lesson proposed"
    return Distilled(tuple(valid), note, str((getattr(predict, "lm", None) or active().lm(role)).model))


def _words(content: str) -> str:
    """The content as it is compared: a longer or otherwise different one may hold another fact."""
    return " ".join(normalize(content).casefold().split()).rstrip(".!")
