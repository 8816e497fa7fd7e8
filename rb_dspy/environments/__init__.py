"""Environments: task families by name, and outcomes for the scorer only."""

from rb_dspy.environments.scored import ScoredEnvironments, make_environment

__all__ = ["ScoredEnvironments", "make_environment"]
