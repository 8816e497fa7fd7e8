"""Judge: did the rollout do what the task asked? Decided without ground truth."""

from __future__ import annotations

import dspy

from rb_dspy import signatures
from rb_dspy.config import JudgeConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps.ask import Ask, Routine, adrive, drive
from rb_dspy.steps.events import Judged, emit
from rb_dspy.steps.view import final_state, view


class Judge(dspy.Module):
    """LLM-as-a-judge (paper, section 3.2).

    An answer that cannot be read after one repair gives ``unknown``, never failure.
    """

    def __init__(self, config: JudgeConfig | None = None) -> None:
        super().__init__()
        self.config = config or JudgeConfig()
        self.predict = dspy.Predict(signatures.Judge)

    def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
        """A verdict on ``trajectory``."""
        return drive(self._routine(task, trajectory))

    async def aforward(self, task: Task, trajectory: Trajectory) -> Verdict:
        """``forward`` for asyncio."""
        return await adrive(self._routine(task, trajectory))

    def _routine(self, task: Task, trajectory: Trajectory) -> Routine[Verdict]:
        try:
            said = yield Ask(
                role="judge",
                predict=self.predict,
                inputs={
                    "task": task.instruction,
                    "trajectory": view(trajectory, self.config.view_tokens),
                    "final_state": final_state(trajectory),
                },
                temperature=self.config.temperature,
                max_tokens=self.config.max_tokens,
            )
        except UnparseableOutput as exc:
            verdict = Verdict(label="unknown", reasons=str(exc))
        else:
            verdict = Verdict(label=said.label, reasons=said.reasons)
        emit(Judged(task, trajectory, verdict))
        return verdict
