"""The steps of the loop, one file each: retrieve, act, judge, distill; and for scaling contrast, select, refine."""

from rb_dspy.steps.act import Act
from rb_dspy.steps.contrast import Contrast
from rb_dspy.steps.distill import Distill
from rb_dspy.steps.drafts import Distilled
from rb_dspy.steps.ingest import Foreign, as_task, as_trajectory
from rb_dspy.steps.judge import Judge
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.refine import Refine, Refined
from rb_dspy.steps.retrieve import Retrieve
from rb_dspy.steps.select import Select, Selection

__all__ = [
    "Act",
    "Contrast",
    "Distill",
    "Distilled",
    "Foreign",
    "Judge",
    "Memory",
    "Refine",
    "Refined",
    "Retrieve",
    "Select",
    "Selection",
    "as_task",
    "as_trajectory",
]
