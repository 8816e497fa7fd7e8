"""The steps of the loop, one file each: retrieve, act, judge, distill."""

from rb_dspy.steps.act import Act
from rb_dspy.steps.distill import Distill, Distilled
from rb_dspy.steps.ingest import Foreign, as_task, as_trajectory
from rb_dspy.steps.judge import Judge
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.retrieve import Retrieve

__all__ = ["Act", "Distill", "Distilled", "Foreign", "Judge", "Memory", "Retrieve", "as_task", "as_trajectory"]
