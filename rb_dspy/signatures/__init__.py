"""The typed prompts. Their docstrings are the instructions that get compiled."""

from rb_dspy.signatures.act import Act
from rb_dspy.signatures.check import CheckAgain, CheckFirst
from rb_dspy.signatures.contrast import Contrast, ContrastDraft
from rb_dspy.signatures.distill import DistillFailure, DistillSuccess
from rb_dspy.signatures.draft import MemoryDraft
from rb_dspy.signatures.judge import Judge
from rb_dspy.signatures.select import Select

__all__ = [
    "Act",
    "CheckAgain",
    "CheckFirst",
    "Contrast",
    "ContrastDraft",
    "DistillFailure",
    "DistillSuccess",
    "Judge",
    "MemoryDraft",
    "Select",
]
