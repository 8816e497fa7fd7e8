"""Refine: the agent checks its own work and corrects it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import metered, value
from rb_dspy.config import RefineConfig
from rb_dspy.errors import BudgetSpent, RBError, UnparseableOutput
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Check, Task, Trajectory
from rb_dspy.steps.act import Act, Episode, open_environment
from rb_dspy.steps.ask import ask
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.transcript import escape_markers, rollout_fields
from rb_dspy.text import summary_line


@dataclass(frozen=True)
class Refined:
    """The attempt after its last pass, the number of passes, and the error that ended them, if any."""

    trajectory: Trajectory
    passes: int
    error: str = ""


class Refine(dspy.Module):
    """Sequential scaling (paper, section 3.3): ``passes`` over one trajectory; the first is the attempt itself.

    Each further pass is a check that confirms or revises; the first check is thorough, later ones are short. A revision
    continues in the same environment. If that cannot be reopened, for example because it has said whether the answer
    was right, the attempt stays as it is. The checks are part of the trajectory, so that judge and distiller read them.
    """

    def __init__(self, config: RefineConfig | None = None) -> None:
        super().__init__()
        self.config = config or RefineConfig()
        self.first = dspy.Predict(signatures.CheckFirst)
        self.again = dspy.Predict(signatures.CheckAgain)

    def forward(self, act: Act, task: Task, memory: Memory, environments: EnvironmentFactory, passes: int) -> Refined:
        """Make up to ``passes`` passes. If an error occurs after the first attempt, earlier results are returned.

        Raises:
            InfrastructureError: The first attempt failed.
            BudgetSpent: A limit was reached before the last pass.
        """
        with open_environment(environments, task, 0) as environment, metered() as ledger:
            episode = Episode(act, task, memory, environment)
            episode.play()
            trajectory, checks, error = episode.trajectory(ledger.usage()), list[Check](), ""
            try:
                while len(checks) + 1 < passes:
                    check = self._check(task, trajectory, [each.findings for each in checks])
                    checks.append(check)
                    trajectory = episode.trajectory(ledger.usage(), checks)
                    if check.decision == "revise":
                        found = f"You checked your work on this task before, and found:\n- {check.findings}"
                        if not episode.reopen(found if check.findings else ""):
                            break
                        episode.play()
                        trajectory = episode.trajectory(ledger.usage(), checks)
                    elif self.config.until_confirmed:
                        break
            except BudgetSpent:  # as after Ctrl-C: with fewer passes than other tasks it would not be comparable
                raise
            except RBError as exc:
                error = summary_line(exc)
            return Refined(trajectory, len(checks) + 1, error)

    def _check(self, task: Task, trajectory: Trajectory, findings: Sequence[str]) -> Check:
        """Check the work so far. A check that cannot be parsed counts as confirm."""
        numbered = "\n".join(f"{number}. {each}" for number, each in enumerate(findings, 1))
        earlier = {"earlier_checks": escape_markers(numbered)} if findings else {}

        def inputs(max_tokens: int) -> dict[str, str]:
            return {**rollout_fields(task, trajectory, max_tokens), **earlier}

        predict = self.again if findings else self.first
        after = len(trajectory.steps)
        try:
            said = ask(predict, "agent", self.config, inputs, rollout=len(findings))
            decision = str(value(said, "decision", "agent")).strip().lower()
            if decision not in ("confirm", "revise"):
                raise UnparseableOutput(f"the decision is {decision[:40]!r}; expected confirm or revise")
        except UnparseableOutput as exc:
            return Check(after=after, findings=f"not checked: {exc}", decision="confirm")
        return Check(after=after, findings=str(said.get("findings") or ""), decision=decision)
