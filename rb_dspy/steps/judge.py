"""Judge: did the rollout do what the task asked? Decided without ground truth."""

from __future__ import annotations

from functools import partial

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import active, value
from rb_dspy.concurrency import guarded, resolve
from rb_dspy.config import JudgeConfig
from rb_dspy.errors import InfrastructureError, UnparseableOutput
from rb_dspy.protocols import Judge as JudgeProtocol
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import rollout_fields


class Judge(dspy.Module):
    """LLM-as-a-judge (paper, section 3.2)."""

    def __init__(self, config: JudgeConfig | None = None) -> None:
        super().__init__()
        self.config = config or JudgeConfig()
        self.predict = dspy.Predict(signatures.Judge if self.config.strict else signatures.PlainJudge)

    def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
        """Return a verdict on ``trajectory``.

        Raises:
            UnparseableOutput: The answer has no label. This never counts as a failure.
            InfrastructureError: The call failed, or even a short transcript does not fit the context window.
        """
        shown = partial(rollout_fields, task, trajectory, thoughts=self.config.thoughts, states=self.config.states)
        said = ask(self.predict, "judge", self.config, shown)
        return read_verdict(said, "judge")


def read_verdict(said: dspy.Prediction, role: str) -> Verdict:
    """Return the verdict of ``label`` and ``reasons``. Raises ``UnparseableOutput`` if there is no such label."""
    label = str(value(said, "label", role)).strip().lower()
    if label not in ("success", "failure", "unknown"):
        raise UnparseableOutput(f"the {role}'s label is {label[:40]!r}; expected success or failure")
    return Verdict(label=label, reasons=str(said.get("reasons") or ""))


def judge_rollout(judge: JudgeProtocol, task: Task, trajectory: Trajectory) -> Verdict:
    """Return the verdict of any judge, which may be async, a function or a ``dspy.Module``.

    The judge gets no ground truth. While it runs, dspy's configured LM is that of the role judge. If the caller of
    ``learn`` stated a verdict, the judge is not called.

    Raises:
        InfrastructureError: The judge failed or did not return a ``Verdict``.
    """
    if trajectory.known_label is not None:
        return Verdict(label=trajectory.known_label, reasons=trajectory.feedback or "stated by the caller")
    backbones = active()
    lm = backbones.lm("judge") if {"judge", "agent"} & backbones.own.keys() else dspy.settings.lm
    with dspy.context(lm=lm):
        verdict = guarded("the judge", lambda: resolve(judge(task.without_ground_truth(), trajectory)))
    if not isinstance(verdict, Verdict):
        raise InfrastructureError(f"the judge returned {verdict!r:.200}; expected a Verdict")
    return verdict
