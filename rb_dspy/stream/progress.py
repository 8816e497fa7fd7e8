"""The progress of a run over a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rb_dspy.pace import in_notebook
from rb_dspy.stream.report import TaskResult
from rb_dspy.text import counted


@dataclass(frozen=True)
class Progress:
    """The progress of a run, after a task."""

    done: int
    """Tasks that are done, with those of earlier calls."""
    total: int
    task: str
    """Id of the task that was just done."""
    solved: int
    """Tasks that this call solved, of the ``scored`` ones."""
    scored: int
    """Tasks of this call whose outcome is known."""
    errors: int
    tokens: int
    """Tokens of all roles, for the tasks of this call."""

    @property
    def about(self) -> str:
        """The outcomes and the errors, in a few words."""
        solved = f"{self.solved} of {self.scored} solved" if self.scored else self.task
        return solved + (f", {counted(self.errors, 'error')}" if self.errors else "")


class Counter:
    """Counts the results of a run, and reports after each."""

    def __init__(self, total: int, done: int, on_progress: Callable[[Progress], object] | None) -> None:
        """``done``: tasks of earlier calls."""
        self._on_progress = on_progress or in_notebook()
        self._now = Progress(done, total, "", 0, 0, 0, 0)

    def add(self, result: TaskResult) -> None:
        """Count a result, and report it."""
        if self._on_progress is None:
            return
        now = self._now
        self._now = Progress(
            done=now.done + 1,
            total=now.total,
            task=result.task.id,
            solved=now.solved + (result.solved is True),
            scored=now.scored + (result.solved is not None),
            errors=now.errors + bool(result.error),
            tokens=now.tokens + sum(used.prompt_tokens + used.completion_tokens for used in result.usage.values()),
        )
        self._on_progress(self._now)
