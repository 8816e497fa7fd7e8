"""Act: one rollout of a task in its environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import metered
from rb_dspy.config import ActConfig
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Task, Trajectory
from rb_dspy.steps.ask import Overdue, Routine, adrive, drive
from rb_dspy.steps.episode import Episode
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.opening import Opened, within
from rb_dspy.steps.place import Place
from rb_dspy.steps.predict import Predict


class Act(dspy.Module):
    """ReAct (paper, section 3.1): a thought and an action a turn, until the environment ends or the cap is reached."""

    predict = Place()

    def __init__(self, config: ActConfig | None = None) -> None:
        super().__init__()
        self.config = config or ActConfig()
        self.predict = Predict(signatures.Act)

    def forward(
        self,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        rollout: int = 0,
        ended: Callable[[Trajectory], object] = lambda trajectory: None,
    ) -> Trajectory:
        """Roll out ``task`` in an environment of its own.

        ``ended`` is given the trajectory as soon as there is no more to come, before the environment is closed, for who
        is interrupted then; it must not raise.
        """
        return drive(self._routine(task, memory, environments, rollout, ended))

    async def aforward(
        self,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        rollout: int = 0,
        ended: Callable[[Trajectory], object] = lambda trajectory: None,
    ) -> Trajectory:
        """``forward`` for asyncio; the environment runs in a thread of its own, one call at a time."""
        return await adrive(self._routine(task, memory, environments, rollout, ended))

    def episode(
        self,
        task: Task,
        memory: Memory,
        fresh: Opened,
        rollout: int = 0,
        over: Callable[[], None] = lambda: None,
    ) -> Episode:
        """A rollout that has not begun, for who wants to go on after its end; ``over``: see there."""
        return Episode(task, memory, fresh, self.predict, self.config, rollout, over)

    def _routine(
        self,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        rollout: int,
        ended: Callable[[Trajectory], object],
    ) -> Routine[Trajectory]:
        played = partial(self._played, task, memory, rollout, ended)
        return (yield from within(task, environments, rollout, played, self.config.step_seconds))

    def _played(
        self, task: Task, memory: Memory, rollout: int, ended: Callable[[Trajectory], object], fresh: Opened
    ) -> Routine[Trajectory]:
        trajectory: Trajectory | None = None
        with metered() as ledger:

            def over() -> None:
                nonlocal trajectory
                trajectory = episode.trajectory(ledger.usage())
                ended(trajectory)
                fresh.closing()

            episode = self.episode(task, memory, fresh, rollout, over)
            episode.begin()
            try:
                yield from episode.play()
            except Overdue:
                if trajectory is None:
                    raise  # else it had ended, and only its closing takes so long
        assert trajectory is not None, "an episode that was played is over"
        return trajectory
