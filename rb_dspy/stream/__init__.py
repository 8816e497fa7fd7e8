"""Ordered tasks, and running a program over them with one bank."""

from rb_dspy.stream.run import RunReport, Summary, TaskResult, run_stream
from rb_dspy.stream.tasks import PRESETS, SHARES, TaskStream, split_templates, stream_names

__all__ = [
    "PRESETS",
    "SHARES",
    "RunReport",
    "Summary",
    "TaskResult",
    "TaskStream",
    "run_stream",
    "split_templates",
    "stream_names",
]
