"""What broke in a compile, or in every task of a stream."""

from __future__ import annotations

from typing import Any

import dspy

from rb_dspy.stream import RunReport

MOST_SAID = 500
"""Characters of what broke, in a message or a report."""


def all_broke(prediction: Any) -> str:
    """The first error of a stream where every task broke; empty where one did not, and for anything but a stream."""
    report = prediction.get("report") if isinstance(prediction, dspy.Prediction) else None
    return first_error(report) if isinstance(report, RunReport) else ""


def first_error(report: RunReport) -> str:
    """The first error of a report in which every task broke, else empty."""
    errors = [result.error for result in report.results]
    return errors[0] if errors and all(errors) else ""
