"""The step ``act`` by an agent that you have: a function, an async function, an object, or a DSPy module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import dspy

from rb_dspy.backbones import lent
from rb_dspy.concurrency import guarded, resolve
from rb_dspy.errors import ConfigError, InfrastructureError, InvalidTrajectory
from rb_dspy.importers import to_trajectory
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Step, Task, Trajectory
from rb_dspy.steps import Memory
from rb_dspy.steps.act import open_environment

_LESSONS = ("lessons", "memory")
"""Names of an input of a DSPy module that takes the lessons."""


class Agent(Protocol):
    """An agent that you have. It may block, or be async; rollouts in parallel call it from several threads.

    While it runs, dspy's configured LM is that of the role agent. Its exceptions are infrastructure errors of the task.
    """

    def __call__(self, task: Task, lessons: str) -> Any:
        """Do ``task``.

        Args:
            task: Without ground truth: ``task.instruction`` has the text, ``task.id`` the name.
            lessons: For the prompt; empty if there are none.

        Returns:
            All that ``ReasoningBank.learn`` reads: messages of any common format, steps, a ``Trajectory``, the
            prediction of a DSPy agent; or only the answer, as text.
        """
        ...


class ExternalAct(dspy.Module):
    """An ``Agent`` as the step ``act``.

    A DSPy module, such as ``dspy.ReAct``, gets texts by the names of its inputs: ``lessons`` or ``memory`` takes the
    lessons, the other one the task; without an input for them, lessons follow the text of the task.

    Raises ``ConfigError`` if the agent cannot be called in this way.
    """

    def __init__(self, agent: Agent | dspy.Module, *, rules: bool = True) -> None:
        """``rules``: what the environment says about the form of an answer is added to the task."""
        super().__init__()
        self.agent = agent
        self._rules = rules
        self._inputs = _inputs(agent)

    def forward(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, rollout: int = 0, temperature: float = 0.0
    ) -> Trajectory:
        """Run one rollout of ``task``; its answer is the only action in the environment, which has the ground truth.

        Raises:
            InfrastructureError: The agent or the environment failed, or the result cannot be read as a rollout.
        """
        with open_environment(environments, task, rollout) as environment:
            parts = [task.instruction, guarded("the environment's reset", lambda: environment.reset(task))]
            parts += [guarded("the environment's action_rules", lambda: environment.action_rules)]
            text = "\n\n".join(map(str, filter(None, parts))) if self._rules else task.instruction
            given = task.without_ground_truth().model_copy(update={"instruction": text})
            with lent("agent", temperature=temperature, rollout=rollout) as ledger:
                trajectory = self._done(given, memory.block if memory else "")
            own = {"rollout_id": str(rollout), "usage": ledger.usage()}
            return _answered(environment, trajectory.model_copy(update=own))

    def _done(self, task: Task, lessons: str) -> Trajectory:
        """Call the agent, and read what it returns."""
        agent: Callable[..., Any] = self.agent
        named = self._inputs(task, lessons) if self._inputs else None
        result = guarded("the agent", lambda: resolve(agent(**named) if named else agent(task, lessons)))
        if isinstance(result, str):
            result = {"steps": [{"action": result}], "answer": result}
        try:
            stated = {"known_label": None, "feedback": ""}  # an agent does not judge itself
            return to_trajectory(task, result).model_copy(update=stated)
        except InvalidTrajectory as exc:
            raise InfrastructureError(f"what the agent returned cannot be read: {exc}") from exc


def _answered(environment: Environment, trajectory: Trajectory) -> Trajectory:
    """Submit the answer. What the environment says about it is the last observation."""
    answer = trajectory.answer
    if answer is None:
        return trajectory
    said, _ = guarded("the environment's step", lambda: environment.step(answer))
    *steps, last = trajectory.steps or (Step(action=answer),)
    seen = "\n\n".join(filter(None, [last.observation, str(said)]))
    return trajectory.model_copy(update={"steps": (*steps, last.model_copy(update={"observation": seen}))})


def _inputs(agent: Any) -> Callable[[Task, str], dict[str, str]] | None:
    """How a DSPy module is called; None for ``agent(task, lessons)``."""
    if not callable(agent):
        raise ConfigError(
            f"got {type(agent).__name__} for agent; expected a function (task, lessons), or a dspy.Module"
        )
    if not isinstance(agent, dspy.Module):
        try:
            inspect.signature(agent).bind(None, None)
        except TypeError:
            name = getattr(agent, "__name__", type(agent).__name__)
            raise ConfigError(f"the agent {name} cannot be called with (task, lessons); give it these two") from None
        except ValueError:  # a builtin, which has no signature
            pass
        return None
    signature = getattr(agent, "signature", None)
    if signature is None:
        parameters = inspect.signature(type(agent).forward).parameters.values()
        names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD][1:]
        if names == ["task", "lessons"]:
            return None
    else:
        names = list(signature.input_fields)
    lessons_name = next((name for name in names if name in _LESSONS), None)
    others = [name for name in names if name != lessons_name]
    if len(others) != 1:
        raise ConfigError(
            f"the agent {type(agent).__name__} has the inputs {', '.join(names) or 'none'}; expected one for the task,"
            " and optionally 'lessons'"
        )

    def inputs(task: Task, lessons: str) -> dict[str, str]:
        if lessons_name is not None:
            return {others[0]: task.instruction, lessons_name: lessons}
        return {others[0]: "\n\n".join(filter(None, [task.instruction, lessons]))}

    return inputs
