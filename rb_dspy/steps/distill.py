"""Distill: what does this rollout teach about other tasks?"""

from __future__ import annotations

from dataclasses import replace

import dspy

from rb_dspy import signatures
from rb_dspy.config import MOST_OF_ONE, DistillConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.steps.answered import drafts
from rb_dspy.steps.ask import Ask, Routine, adrive, drive
from rb_dspy.steps.drafts import Distilled, admissible
from rb_dspy.steps.events import Drafted, emit
from rb_dspy.steps.fit import fitted
from rb_dspy.steps.limit import limited
from rb_dspy.steps.place import Place
from rb_dspy.steps.player import player
from rb_dspy.steps.predict import Predict
from rb_dspy.steps.view import view


class Distill(dspy.Module):
    """Lessons from one rollout: why it worked, or what went wrong and how to prevent it (paper, section 3.2).

    Two predictors with distinct instructions, so that optimizers tell success and failure apart. Nothing is distilled
    from a verdict ``unknown`` unless configured. A lesson that cannot be read is left out, and the note says so. An
    answer of which nothing can be read after one repair gives no drafts but a note.
    """

    success = Place()
    failure = Place()

    def __init__(self, config: DistillConfig | None = None) -> None:
        super().__init__()
        self.config = config or DistillConfig()
        self.success = Predict(signatures.DistillSuccess)
        self.failure = Predict(signatures.DistillFailure)

    def forward(self, task: Task, trajectory: Trajectory, verdict: Verdict, rollout: int = 0) -> Distilled:
        """At most ``max_items`` drafts that do not overlap."""
        return drive(self._routine(task, trajectory, verdict, rollout))

    async def aforward(self, task: Task, trajectory: Trajectory, verdict: Verdict, rollout: int = 0) -> Distilled:
        """``forward`` for asyncio."""
        return await adrive(self._routine(task, trajectory, verdict, rollout))

    def _routine(self, task: Task, trajectory: Trajectory, verdict: Verdict, rollout: int) -> Routine[Distilled]:
        if verdict.label == "unknown" and not self.config.distill_unknown:
            return Distilled(note="not distilled: the verdict is unknown")

        predict = self.success if verdict.label == "success" else self.failure

        def ask(view_tokens: int) -> Ask:
            return Ask(
                role="distiller",
                predict=predict,
                inputs={
                    "task": task.instruction,
                    "trajectory": view(trajectory, view_tokens),
                    "judge_reasons": verdict.reasons,
                    **limited(predict, self.config.max_items, MOST_OF_ONE),
                },
                temperature=self.config.temperature,
                max_tokens=self.config.max_tokens,
                rollout=rollout,
            )

        try:
            proposed = drafts((yield from fitted(ask, self.config.view_tokens)), MemoryDraft)
        except UnparseableOutput as exc:
            return Distilled(note=f"not distilled: {exc}")
        found = admissible(proposed, task, self.config.max_items)
        emit(Drafted(task, len(found.drafts), found.dropped))
        return replace(found, distiller=str(player("distiller", predict).model))
