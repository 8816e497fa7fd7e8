"""Act: one rollout of a task in its environment."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import metered
from rb_dspy.config import ActConfig
from rb_dspy.errors import InfrastructureError, UnparseableOutput
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Step, StopReason, Task, Trajectory
from rb_dspy.steps.ask import Ask, ContextOverflow, Do, Routine, adrive, drive
from rb_dspy.steps.events import EpisodeStarted, StepTaken, emit
from rb_dspy.steps.memory import Memory

log = logging.getLogger("rb_dspy")


class Act(dspy.Module):
    """ReAct (paper, section 3.1): a thought and an action a turn, until the environment ends or the cap is reached.

    The prompt of a rollout only grows at its end: task and lessons stand in the first turn, and ``dspy.History``
    repeats earlier turns byte for byte, so every prefix cache holds from the second step on.
    """

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

    def _routine(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, rollout: int
    ) -> Routine[Trajectory]:
        environment: Environment = yield Do("making the environment", lambda: environments(task, str(rollout)))
        with _closed(environment, task), metered() as ledger:
            first = _text((yield Do("the environment's reset", lambda: environment.reset(task))), "reset")
            emit(EpisodeStarted(task, first))
            steps: list[Step] = []
            turns: list[dict[str, Any]] = []
            turn: dict[str, Any] = {
                "task": task.instruction,
                "memory": memory.block,
                "action_rules": environment.action_rules,
                "observation": first,
            }
            stop: StopReason = "max_steps"
            while len(steps) < self.config.max_steps:
                valid = yield Do("listing the valid actions", environment.valid_actions)
                if valid is not None:
                    turn["valid_actions"] = list(valid)
                try:
                    said = yield self._ask(turn, turns, rollout)
                except ContextOverflow:
                    if not steps:
                        raise  # nothing fits, not even the task: no other step would fare better
                    stop = "context"
                    break
                except UnparseableOutput:
                    stop = "unreadable"
                    break
                thought, action = str(said.thought or "").strip(), str(said.action or "").strip()
                observation, done = yield Do("a step of the environment", partial(_step, environment, action))
                steps.append(Step(thought=thought, action=action, observation=observation))
                emit(StepTaken(task, len(steps), steps[-1]))
                if done:
                    stop = "done"
                    break
                turns.append({**turn, "thought": thought, "action": action})
                turn = {"observation": observation}
            answer = yield Do("reading the answer", environment.answer)
        return Trajectory(
            task_id=task.id,
            steps=tuple(steps),
            answer=answer,
            first_observation=first,
            rollout_id=str(rollout),
            stop_reason=stop,
            usage=ledger.usage(),
        )

    def _ask(self, turn: dict[str, Any], turns: list[dict[str, Any]], rollout: int) -> Ask:
        return Ask(
            role="agent",
            predict=self.predict,
            inputs={**turn, "history": dspy.History(messages=list(turns))},
            temperature=self.config.temperature,
            max_tokens=self.config.max_tokens,
            rollout=rollout,
        )


@contextmanager
def _closed(environment: Environment, task: Task) -> Iterator[None]:
    """Close the environment in the end. Failing at that costs a warning, not the rollout: its work is done."""
    try:
        yield
    finally:
        try:
            environment.close()
        except Exception as exc:  # noqa: BLE001 (whatever an environment may raise)
            log.warning("the environment of task %s did not close: %s: %s", task.id, type(exc).__name__, exc)


def _step(environment: Environment, action: str) -> tuple[str, bool]:
    result = environment.step(action)
    if not isinstance(result, tuple) or len(result) != 2:
        raise InfrastructureError(
            f"the environment's step gave {result!r}; expected an observation and whether it ended"
        )
    return _text(result[0], "step"), bool(result[1])


def _text(observation: object, method: str) -> str:
    if not isinstance(observation, str):
        raise InfrastructureError(f"the environment's {method} gave {observation!r} as observation; expected text")
    return observation
