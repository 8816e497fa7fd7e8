"""Environments: families of tasks by name, baselines that show their scoring is sound, and sealed ground truth."""

from rb_dspy.environments.baselines import BaselineRow, Policy, compare, run_baseline
from rb_dspy.environments.factory import make_environment
from rb_dspy.environments.scored import ScoredEnvironments

__all__ = ["BaselineRow", "Policy", "ScoredEnvironments", "compare", "make_environment", "run_baseline"]
