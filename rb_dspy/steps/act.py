"""Act: one rollout of a task in its environment."""

from __future__ import annotations

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import metered
from rb_dspy.config import ActConfig
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Task, Trajectory
from rb_dspy.steps.ask import Routine, adrive, drive
from rb_dspy.steps.episode import Episode, opened, then_closed
from rb_dspy.steps.memory import Memory


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

    def episode(self, task: Task, memory: Memory, environment: Environment, rollout: int = 0) -> Episode:
        """A rollout that has not begun, for who wants to go on after its end."""
        return Episode(task, memory, environment, self.predict, self.config, rollout)

    def _routine(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, rollout: int
    ) -> Routine[Trajectory]:
        environment = yield opened(task, environments, rollout)
        return (yield from then_closed(environment, task, self._played(task, memory, environment, rollout)))

    def _played(self, task: Task, memory: Memory, environment: Environment, rollout: int) -> Routine[Trajectory]:
        with metered() as ledger:
            episode = self.episode(task, memory, environment, rollout)
            yield from episode.begin()
            yield from episode.play()
        return episode.trajectory(ledger.usage())
