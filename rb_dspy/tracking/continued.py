"""What of a stream was done before its run began, and which run in MLflow did it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.schema import Experience
from rb_dspy.stream import TaskStream
from rb_dspy.tracking.run import Run

CONTINUES = "rb.continues"
"""The tag that names the run which learned last from a task that this one left out, or left a rollout of one that this
one learned from."""
_MOST = 100
"""Runs of one name that are looked at."""


@dataclass(frozen=True)
class Before:
    """Tasks that had been learned from when a run began."""

    known: frozenset[str] = frozenset()
    """Those of the stream that the run of this name has learned from: ``run_stream`` skips them."""
    left_out: int = 0
    """Those that the caller left out of the stream."""
    last: Experience | None = None
    """The newest of what was learned from any of them."""
    waiting: Mapping[str, Pending] = field(default_factory=dict)
    """By the ids of their tasks, the rollouts of this run that waited: ``run_stream`` resumes them."""

    @classmethod
    def of(cls, bank: MemoryBank, stream: TaskStream, run_id: str, left_out: Collection[str]) -> Self:
        """As ``bank`` is now."""
        known: set[str] = set()
        last: Experience | None = None
        for id, run in [*((task.id, run_id) for task in stream), *((id, None) for id in left_out)]:
            found = bank.experience_of(id, run)
            if found is None:
                continue
            if run is not None:
                known.add(id)
            if last is None or found.seq > last.seq:  # one at a time: each holds all that happened
                last = found
        return cls(frozenset(known), len(left_out), last, {each.task.id: each for each in bank.pending(run_id=run_id)})

    def run(self, now: Run, scope: str, resumed: Collection[str]) -> str:
        """MLflow's id of the run that came before, whose rollouts of the tasks ``resumed`` may have waited; empty where
        none is found, or more than one.

        A bank has no name in MLflow, and others may have a run of this name: so it is the one run of this name and
        scope in this experiment that was under way when the lesson was learned, or the rollout was kept.
        """
        left = [self.last, *(self.waiting.get(id) for id in resumed)]
        last = max((each for each in left if each is not None and each.created_at), key=_second, default=None)
        if last is None or not last.run_id or {"'", '"'} <= {*last.run_id}:  # no way to quote it
            return ""
        quote, at = '"' if "'" in last.run_id else "'", _second(last)
        wanted = f"params.run_id = {quote}{last.run_id}{quote}"
        runs = now.place.client.search_runs([now.place.experiment_id], wanted, max_results=_MOST)
        found = [
            each.info.run_id
            for each in runs
            if each.data.params.get("bank.scope") == scope
            and each.info.run_id != now.id
            and each.info.start_time // 1000 <= at <= (each.info.end_time // 1000 if each.info.end_time else at)
        ]
        return str(found[0]) if len(found) == 1 else ""


def _second(left: Experience | Pending) -> int:
    """When it came to be: a bank tells time to the second."""
    return int(datetime.fromisoformat(left.created_at).timestamp())
