"""What tasks were rated, and which of them count: the one rule for tasks whose outcome nobody knows.

Such a task is neither solved nor failed. It does not count: not in scores, not in what candidates are chosen by, and
not in what is told of a run. A task that broke is another thing: it counts as not solved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rb_dspy.stream import RunReport

SamplingUnit = Literal["task", "template"]
"""What is taken to be drawn independently."""


@dataclass
class Ratings:
    """Task -> its scores in [0, 1]: one an order where ``crossed``, else one an example of the task's."""

    scores: dict[str, list[float]] = field(default_factory=dict)
    crossed: bool = False
    unit: SamplingUnit = "task"
    weights: dict[str, list[float]] = field(default_factory=dict)
    """Aligned with ``scores``; empty where every task counts the same."""
    broken: int = 0
    """Scores that are 0 since something broke."""
    touched: set[str] = field(default_factory=set)
    """The tasks of those."""
    known: set[str] = field(default_factory=set)
    """The tasks whose outcome somebody knew, at least once."""
    unknown: set[str] = field(default_factory=set)
    """The tasks that came to their end, at least once, and nobody knew how; where nobody ever does, they do not count.
    """

    def add(
        self, task: str, score: float, *, weight: float | None = None, broken: bool = False, unknown: bool = False
    ) -> None:
        """One more score of a task; all have a weight, or none. One that is ``unknown`` is 0."""
        self.scores.setdefault(task, []).append(score)
        if weight is not None:
            self.weights.setdefault(task, []).append(weight)
        if broken:
            self.broken += 1
            self.touched.add(task)
        else:
            (self.unknown if unknown else self.known).add(task)


def left_out(*ratings: Ratings) -> set[str]:
    """The tasks that do not count: of which nobody knows how they ended, in none of ``ratings``.

    One that is known somewhere counts everywhere, and is not solved where it is not known: else a program would gain by
    what an environment cannot tell of it.
    """
    unknown: set[str] = set().union(*(each.unknown for each in ratings))
    return unknown.difference(*(each.known for each in ratings))


def rated_run(report: RunReport, into: Ratings | None = None) -> Ratings:
    """What a run says of its tasks, 1 for each that was solved, else 0; added to ``into`` where that is given."""
    ratings = Ratings() if into is None else into
    for result in report.results:
        ratings.add(result.task.id, float(bool(result.solved)), broken=bool(result.error), unknown=result.unscored)
    return ratings


def rated_example(example: Any, prediction: Any, score: float) -> Ratings | float:
    """What came of an example: of a stream the ratings of its tasks, of any other ``score``."""
    report = getattr(prediction, "report", None)
    if isinstance(report, RunReport):
        return rated_run(report)
    stream = example.get("stream")
    if stream is None:
        return score
    ratings = Ratings()  # nothing came of it, so all of its tasks broke
    for task in stream:
        ratings.add(task.id, 0.0, broken=True)
    return ratings
