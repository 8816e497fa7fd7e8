"""A judge that knows the truth."""

from __future__ import annotations

from rb_dspy.environments import ScoredEnvironments
from rb_dspy.protocols import Judge
from rb_dspy.schema import Task, Trajectory, Verdict


def true_judge(environments: ScoredEnvironments) -> Judge:
    """A judge that knows the ground truth of the rollouts in ``environments``."""

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        outcome = environments.outcome(task.id, environments.rollout_of(task.id, trajectory))
        if outcome is None:
            return Verdict(label="unknown", reasons="no ground truth")
        return Verdict(label="success" if outcome.success else "failure", reasons="by ground truth")

    return judge
