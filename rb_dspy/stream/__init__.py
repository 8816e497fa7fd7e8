"""Ordered tasks, and running a program over them with one bank."""

from rb_dspy.stream.orders import COMPILE_SHARES, Streams, split_streams
from rb_dspy.stream.report import RunReport, Summary
from rb_dspy.stream.result import TaskResult
from rb_dspy.stream.run import Program, run_stream
from rb_dspy.stream.scaling import PassAt, Passes, Scaling
from rb_dspy.stream.tasks import PRESETS, SHARES, TaskStream, split_templates, stream_names

__all__ = [
    "COMPILE_SHARES",
    "PRESETS",
    "SHARES",
    "PassAt",
    "Passes",
    "Program",
    "RunReport",
    "Scaling",
    "Streams",
    "Summary",
    "TaskResult",
    "TaskStream",
    "run_stream",
    "split_streams",
    "split_templates",
    "stream_names",
]
