"""Review: distil a rollout and judge it, in one call."""

from __future__ import annotations

import dspy

from rb_dspy import signatures
from rb_dspy.config import DistillConfig, JudgeConfig
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps.ask import ask
from rb_dspy.steps.distill import UNKNOWN, Distilled, read_drafts, said_fields, worded
from rb_dspy.steps.judge import read_verdict
from rb_dspy.steps.transcript import escape_markers, final_state, transcript


class Review(dspy.Module):
    """The verdict and the lessons of one rollout, for the price of one call of the distiller's model.

    It reads actions and observations, as the distiller does, and no thoughts. Its answer may be as long as those of
    judge and distiller together; other settings are the distiller's.
    """

    def __init__(self, judge: JudgeConfig | None = None, distill: DistillConfig | None = None) -> None:
        super().__init__()
        judge, distill = judge or JudgeConfig(), distill or DistillConfig()
        self.config = distill.model_copy(update={"max_tokens": judge.max_tokens + distill.max_tokens})
        self.predict = dspy.Predict(signatures.Review)

    def forward(self, task: Task, trajectory: Trajectory) -> tuple[Verdict, Distilled]:
        """Return, and raise, what ``Judge`` and ``Distill`` do."""

        def inputs(max_tokens: int) -> dict[str, str]:
            return {
                "task": escape_markers(task.instruction),
                "trajectory": transcript(trajectory, max_tokens, thoughts=False),
                "final_state": final_state(trajectory, max_tokens),
                **said_fields(trajectory, max_tokens),
            }

        said = ask(self.predict, "distiller", self.config, inputs)
        verdict = read_verdict(said, "distiller")
        if verdict.label == "unknown" and not self.config.distill_unknown:
            return verdict, UNKNOWN
        drafts = read_drafts(said, self.predict, "distiller", self.config.max_items)
        return verdict, worded(drafts, self.config, task, trajectory, verdict)
