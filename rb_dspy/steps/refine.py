"""Refine: the agent checks its own work and corrects it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import metered, value
from rb_dspy.config import RefineConfig
from rb_dspy.errors import RBError, UnparseableOutput
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Check, Task, Trajectory
from rb_dspy.steps.act import Act, Episode, open_environment
from rb_dspy.steps.ask import ask
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.transcript import escape_markers, rollout_fields
from rb_dspy.text import summary_line


@dataclass(frozen=True)
class Refined:
    """The attempts, oldest first (several if an environment could not be reopened), and the last error, if any."""

    trajectories: tuple[Trajectory, ...]
    passes: int
    error: str = ""


class Refine(dspy.Module):
    """Sequential scaling (paper, section 3.3): ``passes`` over one trajectory; the first is the attempt itself.

    Each further pass is a check that confirms or revises; the first check is thorough, later ones are short. A revision
    continues in the same environment if it can be reopened; otherwise it is a new attempt in a fresh one, with the
    findings in its prompt. The checks are part of the trajectory, so that judge and distiller read them.
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
        """
        attempts: list[Trajectory] = []
        findings: list[str] = []
        done = 1
        while True:
            number = len(attempts)
            with open_environment(environments, task, number) as environment, metered() as ledger:
                episode = Episode(act.predict, act.config, task, memory, environment, number, 0.0)
                checks: list[Check] = []
                try:
                    episode.start(_notes(findings))
                    episode.play()
                    attempts.append(episode.trajectory(ledger.usage()))
                    fresh = False
                    while done < passes and not fresh:
                        check = self._check(task, attempts[-1], findings)
                        checks.append(check)
                        findings.append(check.findings)
                        done += 1
                        attempts[-1] = episode.trajectory(ledger.usage(), checks)
                        if check.decision == "confirm" and self.config.until_confirmed:
                            return Refined(tuple(attempts), done)
                        if check.decision == "revise":
                            fresh = not episode.reopen(_notes([check.findings]))
                            if not fresh:
                                episode.play()
                                attempts[-1] = episode.trajectory(ledger.usage(), checks)
                except RBError as exc:
                    if not attempts:
                        raise
                    return Refined(tuple(attempts), done, summary_line(exc))
            if not fresh:
                return Refined(tuple(attempts), done)

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


def _notes(findings: Sequence[str]) -> str:
    """Return the findings as the agent reads them when it continues or starts again; empty if there are none."""
    if not findings:
        return ""
    return "You checked your work on this task before, and found:\n" + "\n".join(f"- {each}" for each in findings)
