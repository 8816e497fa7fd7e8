"""Contrast: what do several rollouts of one task teach together?"""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from rb_dspy import signatures
from rb_dspy.config import ContrastConfig
from rb_dspy.errors import InputError
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps.ask import ask
from rb_dspy.steps.distill import Distilled, read_drafts
from rb_dspy.steps.statements import statements
from rb_dspy.steps.transcript import escape_markers, number_attempts


class Contrast(dspy.Module):
    """Lessons from all rollouts of a task in one call (paper, section 3.3: self-contrast).

    The paper shows no labels; ``ContrastConfig.labels`` shows the judge's verdicts.
    """

    def __init__(self, config: ContrastConfig | None = None) -> None:
        super().__init__()
        self.config = config or ContrastConfig()
        general = self.config.prompts == "general"
        self.predict = dspy.Predict(signatures.GeneralizeContrast if general else signatures.Contrast)

    def forward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Distilled:
        """Return at most ``max_items`` drafts. ``verdicts``, one per trajectory, are required if ``labels`` is set.

        Raises:
            UnparseableOutput: The answer could not be parsed.
            InfrastructureError: The call failed.
            InputError: Verdicts are missing.
        """
        if self.config.labels and (verdicts is None or len(verdicts) != len(trajectories)):
            raise InputError(f"contrast with labels needs {len(trajectories)} verdicts, got {len(verdicts or ())}")
        labels = verdicts if self.config.labels else None
        observed = self.config.observations or self.config.prompts == "facts"

        def inputs(max_tokens: int) -> dict[str, str]:
            attempts = number_attempts(trajectories, max_tokens, labels, observations=observed)
            return {"task": escape_markers(task.instruction), "attempts": attempts}

        said = ask(self.predict, "contraster", self.config, inputs, rollouts=len(trajectories))
        done = read_drafts(said, self.predict, "contraster", self.config.max_items)
        if self.config.prompts == "general":
            return done
        return done.in_own_words(task, statements(trajectories))
