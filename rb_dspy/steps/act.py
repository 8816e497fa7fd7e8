"""Act: one rollout of a task in its environment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dspy

from rb_dspy import signatures
from rb_dspy.backbones import call, metered, value
from rb_dspy.concurrency import check_cancelled, guarded
from rb_dspy.config import ActConfig
from rb_dspy.content import observation_text
from rb_dspy.errors import ContextOverflow, InfrastructureError, UnparseableOutput
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Check, Shown, Step, StopReason, Task, Trajectory, Usage
from rb_dspy.steps.context import Window
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.transcript import escape_fields, escape_markers
from rb_dspy.steps.working import ContextEdit, Moment
from rb_dspy.text import cut, estimate_tokens, normalize, summary_line

_log = logging.getLogger("rb_dspy")


class Act(dspy.Module):
    """ReAct (paper, section 3.1): one thought and action per turn, until the episode ends or reaches the step limit."""

    def __init__(self, config: ActConfig | None = None) -> None:
        super().__init__()
        self.config = config or ActConfig()
        self.predict = dspy.Predict(signatures.ActDiscussing if self.config.discuss else signatures.Act)

    def forward(
        self, task: Task, memory: Memory, environments: EnvironmentFactory, rollout: int = 0, temperature: float = 0.0
    ) -> Trajectory:
        """Run one rollout of ``task`` in its own environment.

        Args:
            task: The environment gets the whole task, the agent only the instruction.
            memory: The lessons, shown where ``memory.position`` says; ``memory.working`` is called before each action.
            environments: Makes the environment.
            rollout: Number of the rollout, from 0; distinguishes samples of one prompt.
            temperature: Used if neither ``ActConfig`` nor the language model sets one.

        Raises:
            InfrastructureError: The environment or a call of the language model failed. An answer that cannot be
                parsed does not raise: the rollout ends with the stop reason ``unparseable``.
        """
        with open_environment(environments, task, rollout) as environment, metered() as ledger:
            episode = Episode(self, task, memory, environment, rollout, temperature)
            episode.play()
            return episode.trajectory(ledger.usage())


@contextmanager
def open_environment(environments: EnvironmentFactory, task: Task, rollout: int) -> Iterator[Environment]:
    """Make the environment of a rollout and close it after the block.

    Raises:
        InfrastructureError: The factory failed. If ``close`` fails, only a warning is logged.
    """
    environment = guarded("the environment's factory", lambda: environments(task, str(rollout)))
    try:
        yield environment
    finally:
        try:
            environment.close()
        except Exception as exc:  # noqa: BLE001 (a user's environment may raise anything)
            _log.warning("task %s: closing the environment failed: %s", task.id, summary_line(exc, 300))


class Episode:
    """A running rollout, which ``Refine`` can continue after its end. It begins with the reset of the environment.

    Markers in texts of the task and the environment are escaped, long observations are cut, and working memory makes
    its changes, in prompts only (see ``Window``): steps are stored whole.
    """

    def __init__(
        self,
        act: Act,
        task: Task,
        memory: Memory,
        environment: Environment,
        rollout: int = 0,
        temperature: float = 0.0,
    ) -> None:
        self._act, self._task, self._environment, self._rollout = act, task, environment, rollout
        if act.config.discuss and memory.position == "first_turn":
            memory = replace(memory, position="system")
        self._working = memory.working
        self._before = {item.id for item in memory.items}
        self._brought = dict[str, None]()
        self._tokens = 0
        self._temperature = temperature if act.config.temperature is None else act.config.temperature
        self._steps: list[Step] = []
        self._stop: StopReason = "max_steps"
        self._first_observation = _text(guarded("the environment's reset", lambda: environment.reset(task)), "reset")
        rules = _text(guarded("the environment's action_rules", lambda: environment.action_rules), "rules")
        first = {"task": escape_markers(task.instruction), "action_rules": escape_markers(rules)}
        turns = memory.turns if memory.position == "messages" else ()
        examples = [{"observation": self._observation(normalize(seen)), **_said("", action)} for seen, action in turns]
        self._window = Window(memory, first, self._shown(self._first_observation), examples)

    def play(self) -> None:
        """Take turns until the episode ends, the step limit is reached, or an answer cannot be used."""
        first, stop_before = len(self._steps), self._stop
        self._stop = "max_steps"
        for _ in range(self._act.config.max_steps):
            try:
                self._edit()
                said = self._ask()
                action = str(value(said, "action", "agent"))
            except (ContextOverflow, UnparseableOutput) as exc:
                if not self._steps and isinstance(exc, ContextOverflow):
                    raise  # not even the task fits
                self._stop = "context" if isinstance(exc, ContextOverflow) else "unparseable"
                if first and len(self._steps) == first:
                    self._stop = stop_before  # the attempt had already ended: keep its stop reason
                return
            check_cancelled()
            if self._step(str(said.get("thought") or ""), action):
                self._stop = "done"
                return

    def reopen(self, notes: str) -> bool:
        """Continue the episode after its end, with ``notes`` below the observation; return False if it cannot."""
        reopen: Callable[[], str | None] | None = getattr(self._environment, "reopen", None)
        if reopen is None or self._stop in ("context", "unparseable"):
            return False
        observation = guarded("the environment's reopen", reopen)
        if observation is None:
            return False
        earlier = self._window.turn
        turn = self._shown("\n\n".join(filter(None, [_text(observation, "reopen"), notes])))
        both = "\n\n".join(filter(None, [earlier["observation"], turn["observation"]]))
        self._window.turn = {**earlier, **turn, "observation": both}
        return True

    def trajectory(self, usage: Usage, checks: Sequence[Check] = ()) -> Trajectory:
        """Return the trajectory so far."""
        return Trajectory(
            task_id=self._task.id,
            steps=tuple(self._steps),
            answer=_answer(guarded("the environment's answer", lambda: self._environment.answer())),
            first_observation=self._first_observation,
            rollout_id=str(self._rollout),
            stop_reason=self._stop,
            checks=tuple(checks),
            shown=Shown(ids=tuple(self._brought), tokens=self._tokens),
            usage=usage,
        )

    def _edit(self) -> None:
        """Let working memory change the prompt."""
        if (working := self._working) is None:
            return
        seen = self._steps[-1].observation if self._steps else self._first_observation
        moment = Moment(self._task.without_ground_truth(), tuple(self._steps), seen)
        edits = guarded("the working memory", lambda: list(working(moment, self._window.context())))
        if not all(isinstance(each, ContextEdit) for each in edits):
            raise InfrastructureError(f"the working memory returned {edits!r:.200}; expected ContextEdit objects")
        self._window.edit(edits)
        for edit in edits:
            if edit.kind == "show" and edit.ids:
                self._brought |= dict.fromkeys(id for id in edit.ids if id not in self._before)
                self._tokens += estimate_tokens(edit.text)

    def _ask(self) -> dspy.Prediction:
        while True:
            try:
                return call(
                    self._act.predict,
                    "agent",
                    temperature=self._temperature,
                    max_tokens=self._act.config.max_tokens,
                    rollout=self._rollout,
                    **self._window.inputs(self._act.predict),
                )
            except ContextOverflow:
                if not self._window.shorten():
                    raise

    def _step(self, thought: str, shown_action: str) -> bool:
        action = self._actions.get(shown_action.strip(), shown_action)
        result = guarded("the environment's step", lambda: self._environment.step(action))
        # numpy's bools are valid too, and 0 and 1
        if not (isinstance(result, tuple) and len(result) == 2 and str(result[1]) in ("True", "False", "0", "1")):
            raise InfrastructureError(
                f"the environment's step returned {result!r:.200}; expected (observation, done), with done a bool"
            )
        observation, done = _text(result[0], "step"), str(result[1]) in ("True", "1")
        step = Step(thought=thought, action=action, observation=observation)
        self._steps.append(step)
        turn = {"observation": self._observation(observation)} if done else self._shown(observation)
        self._window.add(_said(step.thought, shown_action), turn)
        return done

    def _shown(self, observation: str) -> dict[str, Any]:
        """Return the input fields of a turn that come from the environment."""
        turn: dict[str, Any] = {"observation": self._observation(observation)}
        pattern = getattr(self._environment, "action_pattern", None)
        if pattern:
            turn["action_pattern"] = pattern
        valid = guarded("the environment's valid_actions", self._valid_actions)
        self._actions: dict[str, str] = {}
        if valid is not None:
            if isinstance(valid, str) or not all(isinstance(action, str) for action in valid):
                raise InfrastructureError(f"the environment's valid_actions returned {valid!r:.200}; expected texts")
            turn["valid_actions"] = [escape_fields(normalize(action)) for action in valid]
            self._actions = dict(zip((each.strip() for each in turn["valid_actions"]), valid, strict=True))
        return turn

    def _valid_actions(self) -> Sequence[str] | None:
        valid = self._environment.valid_actions()
        return valid if valid is None or isinstance(valid, str) else list(valid)

    def _observation(self, observation: str) -> str:
        return escape_markers(cut(observation, self._act.config.observation_tokens))


def _said(thought: str, action: str) -> dict[str, str]:
    return {"thought": escape_fields(thought), "action": escape_fields(normalize(action))}


def _answer(answer: object) -> str | None:
    if answer is not None and not isinstance(answer, str):
        raise InfrastructureError(f"the environment's answer returned {answer!r:.200}; expected text, or None")
    return answer


def _text(observation: object, what: str) -> str:
    if observation is None or (what == "rules" and not isinstance(observation, str)):
        raise InfrastructureError(f"the environment's {what} returned {type(observation).__name__}; expected text")
    return normalize(observation if isinstance(observation, str) else observation_text(observation))
