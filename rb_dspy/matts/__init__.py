"""Memory-aware test-time scaling: k rollouts that are contrasted, or k passes over one."""

from rb_dspy.matts.matts import MaTTS
from rb_dspy.matts.rollouts import Lost

__all__ = ["Lost", "MaTTS"]
