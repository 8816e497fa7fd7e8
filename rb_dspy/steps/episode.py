"""One environment from its making to its end, and what the agent saw, thought and did in it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dspy

from rb_dspy.config import ActConfig
from rb_dspy.errors import InfrastructureError, UnparseableOutput
from rb_dspy.protocols import Environment, EnvironmentFactory, Reopens
from rb_dspy.schema import Check, Step, StopReason, Task, Trajectory, Usage
from rb_dspy.steps.ask import Ask, ContextOverflow, Do, Routine, Wanted
from rb_dspy.steps.events import EpisodeStarted, StepTaken, emit
from rb_dspy.steps.memory import Memory

log = logging.getLogger("rb_dspy")

T = TypeVar("T")


class Episode:
    """A rollout while it is under way.

    The prompt only grows at its end: task and lessons stand in the first turn, and ``dspy.History`` repeats earlier
    turns byte for byte, so every prefix cache holds from the second step on.
    """

    def __init__(
        self, task: Task, memory: Memory, environment: Environment, predict: Any, config: ActConfig, rollout: int
    ) -> None:
        """``environment`` is a fresh one, which the caller closes; ``predict`` is the agent's ``dspy.Predict``."""
        self._task = task
        self._memory = memory
        self._environment = environment
        self._predict = predict
        self._config = config
        self._rollout = rollout
        self._first = ""
        self._steps: list[Step] = []
        self._turns: list[dict[str, Any]] = []
        self._turn: dict[str, Any] = {}
        self._stop: StopReason = "max_steps"
        self._answer: str | None = None

    def begin(self, notes: str = "") -> Routine[None]:
        """Reset the environment. ``notes`` are put under what it shows first."""
        observation = yield Do("the environment's reset", partial(self._environment.reset, self._task))
        self._first = "\n\n".join(filter(None, [_text(observation, "reset"), notes]))
        emit(EpisodeStarted(self._task, self._first, str(self._rollout)))
        self._turn = {
            "task": self._task.instruction,
            "memory": self._memory.block,
            "action_rules": self._environment.action_rules,
            "observation": self._first,
        }

    def play(self) -> Routine[None]:
        """Turn by turn until the environment ends, or something else does (``StopReason``)."""
        before, steps = self._stop, len(self._steps)
        for _ in range(self._config.max_steps):
            valid = yield Do("listing the valid actions", self._environment.valid_actions)
            if valid is not None:
                self._turn["valid_actions"] = list(valid)
            try:
                said = yield self._ask()
            except ContextOverflow:
                if not self._steps:
                    raise  # nothing fits, not even the task: no other step would fare better
                self._stop = "context" if self._steps[steps:] or not steps else before
                break
            except UnparseableOutput:
                # Work that had ended before, and goes on with nothing that can be read, stands as it was.
                self._stop = "unreadable" if self._steps[steps:] or not steps else before
                break
            thought, action = str(said.thought or "").strip(), str(said.action or "").strip()
            observation, done = yield Do("a step of the environment", partial(_step, self._environment, action))
            self._steps.append(Step(thought=thought, action=action, observation=observation))
            emit(StepTaken(self._task, len(self._steps), self._steps[-1], str(self._rollout)))
            self._turns.append({**self._turn, "thought": thought, "action": action})
            self._turn = {"observation": observation}
            if done:
                self._stop = "done"
                break
        else:
            self._stop = "max_steps"
        self._answer = yield Do("reading the answer", self._environment.answer)

    def reopened(self, notes: str) -> Routine[bool]:
        """Let the episode go on where it ended, with ``notes`` under what the agent sees; False where it cannot."""
        environment = self._environment
        if not isinstance(environment, Reopens) or self._stop in ("context", "unreadable"):
            return False
        observation = yield Do("going on in the environment", environment.reopen)
        if observation is None:
            return False
        seen = [self._turn["observation"], _text(observation, "reopen"), notes]
        self._turn = {**self._turn, "observation": "\n\n".join(filter(None, seen))}
        return True

    def trajectory(self, usage: Usage, checks: tuple[Check, ...] = ()) -> Trajectory:
        """What happened so far."""
        return Trajectory(
            task_id=self._task.id,
            steps=tuple(self._steps),
            answer=self._answer,
            first_observation=self._first,
            rollout_id=str(self._rollout),
            stop_reason=self._stop,
            checks=checks,
            usage=usage,
        )

    def _ask(self) -> Ask:
        return Ask(
            role="agent",
            predict=self._predict,
            inputs={**self._turn, "history": dspy.History(messages=list(self._turns))},
            temperature=self._config.temperature,
            max_tokens=self._config.max_tokens,
            rollout=self._rollout,
        )


def opened(task: Task, environments: EnvironmentFactory, rollout: int) -> Wanted:
    """Wanted: a fresh environment for a rollout, which whoever asked for it closes."""
    return _Opening(task, environments, rollout)


@dataclass(frozen=True)
class _Opening:
    task: Task
    environments: EnvironmentFactory
    rollout: int

    def run(self) -> Environment:
        environment: Environment = self._made([]).run()
        return environment

    async def arun(self) -> Environment:
        """``run`` in a thread. When cancelled, what was made meanwhile is closed, since nobody gets it."""
        made: list[Environment] = []
        try:
            environment: Environment = await self._made(made).arun()
        except asyncio.CancelledError:
            for orphan in made:
                await _closed(_Closing(orphan, self.task)).arun()
            raise
        return environment

    def _made(self, made: list[Environment]) -> Do:
        def make() -> Environment:
            made.append(self.environments(self.task, str(self.rollout)))
            return made[-1]

        return Do("making the environment", make)


def then_closed(environment: Environment, task: Task, work: Routine[T]) -> Routine[T]:
    """``work``, and the environment is closed in the end, by whoever runs its steps."""
    closing = _Closing(environment, task)
    closed = _closed(closing)
    try:
        try:
            result = yield from work
        except (Exception, asyncio.CancelledError):
            yield closed
            raise
        yield closed
        return result
    finally:
        closing()  # given up or interrupted: then nobody ran what was yielded


def _closed(closing: _Closing) -> Do:
    return Do("closing the environment", closing)


class _Closing:
    """Closes an environment, once. Failing at that costs a warning, not the rollout: its work is done."""

    def __init__(self, environment: Environment, task: Task) -> None:
        self._environment = environment
        self._task = task
        self._done = False

    def __call__(self) -> None:
        if self._done:
            return
        self._done = True
        try:
            self._environment.close()
        except Exception as exc:  # noqa: BLE001 (whatever an environment may raise)
            log.warning("the environment of task %s did not close: %s: %s", self._task.id, type(exc).__name__, exc)


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
