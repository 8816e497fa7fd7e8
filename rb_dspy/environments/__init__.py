"""Environments: task families by name, baselines that check their scoring, and outcomes for the scorer only."""

from rb_dspy.environments.baselines import BaselineRow, Policy, compare, run_baseline
from rb_dspy.environments.scored import ScoredEnvironments, make_environment

__all__ = ["BaselineRow", "Policy", "ScoredEnvironments", "compare", "make_environment", "run_baseline"]
