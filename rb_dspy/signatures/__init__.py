"""The typed prompts. Their docstrings are the instructions that get compiled."""

from rb_dspy.signatures.act import Act
from rb_dspy.signatures.distill import DistillFailure, DistillSuccess
from rb_dspy.signatures.draft import MemoryDraft
from rb_dspy.signatures.judge import Judge

__all__ = ["Act", "DistillFailure", "DistillSuccess", "Judge", "MemoryDraft"]
