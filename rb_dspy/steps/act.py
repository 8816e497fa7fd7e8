"""Act: one rollout of a task in its environment."""

from __future__ import annotations

from functools import partial

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import metered
from rb_dspy.config import ActConfig
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Task, Trajectory
from rb_dspy.steps.ask import Routine, adrive, drive
from rb_dspy.steps.episode import Episode
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.opening import Opened, within


class Act(dspy.Module):
    """ReAct (paper, section 3.1): a thought and an action a turn, until the environment ends or the cap is reached."""

    def __init__(self, config: ActConfig | None = None) -> None:
        super().__init__()
        self.config = config or ActConfig()
        self.predict = dspy.Predict(signatures.Act)

    def forward(self, task: Task, memory: Memory, environments: EnvironmentFactory, rollout: int = 0) -> Trajectory:
        """Roll out ``task`` in an environment of its own."""
        return drive(self._routine(task, memory, environments, rollout))

    async def aforward(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, rollout: int = 0
    ) -> Trajectory:
        """``forward`` for asyncio; the environment runs in threads, one call at a time."""
        return await adrive(self._routine(task, memory, environments, rollout))

    def episode(self, task: Task, memory: Memory, fresh: Opened, rollout: int = 0) -> Episode:
        """A rollout that has not begun, for who wants to go on after its end."""
        return Episode(task, memory, fresh, self.predict, self.config, rollout)

    def _routine(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, rollout: int
    ) -> Routine[Trajectory]:
        return (yield from within(task, environments, rollout, partial(self._played, task, memory, rollout)))

    def _played(self, task: Task, memory: Memory, rollout: int, fresh: Opened) -> Routine[Trajectory]:
        with metered() as ledger:
            episode = Episode(task, memory, fresh, self.predict, self.config, rollout, fresh.closing)
            episode.begin()
            yield from episode.play()
        return episode.trajectory(ledger.usage())
