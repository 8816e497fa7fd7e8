"""What runs did, kept in MLflow: numbers, traces, prompts, data, and programs that can be loaded and served."""

from rb_dspy.tracking.off import NoRun
from rb_dspy.tracking.tracker import Tracker

__all__ = ["NoRun", "Tracker"]
