"""Environments: task families by name, baselines that check their scoring, and outcomes for the scorer only."""

from rb_dspy.environments.baselines import Policy, run_baseline
from rb_dspy.environments.scored import ScoredEnvironments, make_environment

__all__ = ["Policy", "ScoredEnvironments", "make_environment", "run_baseline"]
