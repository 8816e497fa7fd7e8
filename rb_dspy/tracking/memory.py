"""What became of lessons in a run: whether they were shown, and whether any were learned."""

from __future__ import annotations

from typing import Any

from rb_dspy.stream import TaskResult
from rb_dspy.tracking.run import Run


class Lessons:
    """Says it of a run, once: as the parameter ``memory``, and in the run's name where it is not ``on``.

    ``said``: what the caller has said of it among the parameters. ``titled``: the name that the run has; empty where
    the caller chose it, since then it is left as it is.
    """

    def __init__(self, run: Run, program: Any, said: Any, titled: str) -> None:
        self._run = run
        self._titled = titled
        config = getattr(getattr(program, "retrieve", None), "config", None)
        self._shown = getattr(config, "k", None) != 0
        self.memory = ""
        """``on``, ``frozen``, ``unshown`` or ``off``; empty while nobody knows."""
        if said is not None:
            self._be(str(said))

    def see(self, result: TaskResult) -> None:
        """Nothing but a task that came to its end tells whether the run learns: it is an option of ``run_stream``."""
        if self.memory or result.prediction is None:
            return
        learns = result.prediction.get("experience") is not None
        memory = ("on" if self._shown else "unshown") if learns else ("frozen" if self._shown else "off")
        self._run.params({"memory": memory})
        self._be(memory)

    def _be(self, memory: str) -> None:
        self.memory = memory
        if self._titled and memory != "on":  # else runs that are to be compared would have one name in MLflow's list
            self._run.rename(f"{self._titled}, memory {memory}")
