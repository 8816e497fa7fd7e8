"""One environment from its making to its end, and what the agent saw, thought and did in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dspy

from rb_dspy.config import ActConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.protocols import Reopens
from rb_dspy.schema import Check, Step, StopReason, Task, Trajectory, Usage
from rb_dspy.steps.answered import check_has, words
from rb_dspy.steps.ask import Ask, ContextOverflow, Do, NoText, Overdue, Routine
from rb_dspy.steps.events import EpisodeStarted, StepTaken, emit
from rb_dspy.steps.memory import Memory
from rb_dspy.steps.opening import Opened
from rb_dspy.steps.seen import Seen, after, going_on, handed_in
from rb_dspy.steps.view import characters, cut, without_fields
from rb_dspy.text import visible


class Episode:
    """A rollout while it is under way.

    The prompt only grows at its end: task and lessons stand in the first turn, and ``dspy.History`` repeats earlier
    turns byte for byte, so every prefix cache holds from the second step on.

    Nothing that the environment says passes for a field of the prompt, such as the lessons: see ``without_fields``. Nor
    does one observation fill the context: a huge one is cut. The steps that are taken down, and what the environment is
    told, are as they were meant.
    """

    def __init__(
        self,
        task: Task,
        memory: Memory,
        fresh: Opened,
        predict: Any,
        config: ActConfig,
        rollout: int,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """``fresh`` is closed by the caller. ``over`` is called each time that no further action is taken, in one go
        with the last move, when all of it is taken down: what interrupts it later does not cost the rollout.
        ``predict`` is the agent's ``dspy.Predict``.
        """
        self._task = task
        self._memory = memory
        self._environment = fresh.environment
        self._opened = fresh.first
        self._rules = fresh.rules
        self._lane = fresh.lane
        self._over = over
        self._predict = predict
        self._config = config
        self._rollout = rollout
        self._first = ""
        self._steps: list[Step] = []
        self._turns: list[dict[str, Any]] = []
        self._turn: dict[str, Any] = {}
        self._meant: dict[str, str] = {}
        """The valid actions, by what the agent calls them, who may have been shown them otherwise than they are."""
        self._stop: StopReason = "max_steps"
        self._answer: str | None = None

    def begin(self, notes: str = "") -> None:
        """Look at what the environment shows first. ``notes`` are put under that. Raises what its reset raised."""
        if isinstance(self._opened, Exception):
            raise self._opened
        seen = self._opened
        self._first = visible("\n\n".join(filter(None, [seen.observation, notes])))
        emit(EpisodeStarted(self._task, self._first, str(self._rollout)))
        rules = without_fields(self._rules)
        first = {"task": self._task.instruction, "memory": self._memory.block, "action_rules": rules}
        self._turn = {**first, **self._shown(self._first, seen)}

    def play(self) -> Routine[None]:
        """Turn by turn until the environment ends, or something else does (``StopReason``)."""
        before, steps = self._stop, len(self._steps)
        for left in reversed(range(self._config.max_steps)):
            try:
                said = yield self._ask()
            except (ContextOverflow, UnparseableOutput, NoText) as exc:
                context = isinstance(exc, ContextOverflow)
                if not self._steps and not isinstance(exc, UnparseableOutput):
                    raise  # nothing fits, not even the task, or nobody answers: no other step would fare better
                # Work that had ended before, and goes on with nothing that can be read, stands as it was.
                self._stop = ("context" if context else "unreadable") if self._steps[steps:] or not steps else before
                yield Do("reading the answer", self._broken_off, self._lane)
                return
            check_has(said, "action", "the agent")  # a thought may be missing: an agent without one acts all the same
            moved = partial(self._moved, words(said, "thought"), words(said, "action"), not left)
            seen: Seen = yield Do("a step of the environment", moved, self._lane)
            emit(StepTaken(self._task, len(self._steps), self._steps[-1], str(self._rollout)))
            if seen.broken is not None:
                raise seen.broken
            if seen.done:
                return

    def reopened(self, notes: str) -> Routine[bool]:
        """Let the episode go on where it ended, with ``notes`` under what the agent sees; False where it cannot."""
        environment = self._environment
        if not isinstance(environment, Reopens) or self._stop in ("context", "unreadable"):
            return False
        seen: Seen | None = yield Do("going on in the environment", partial(going_on, environment), self._lane)
        if seen is None:
            return False
        turn = self._shown(visible("\n\n".join(filter(None, [seen.observation, notes]))), seen)
        told = [self._turn["observation"], turn["observation"]]  # as it was shown: an agent may have been asked already
        self._turn = {**self._turn, **turn, "observation": "\n\n".join(filter(None, told))}
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

    def _moved(self, thought: str, said: str, last: bool) -> Seen:
        """What the environment shows after a move, taken down."""
        action = self._meant.get(said, said)
        seen = after(self._environment, action, last)
        self._check_awaited()
        step = Step(thought=thought, action=action, observation=seen.observation)
        self._steps.append(step)
        # Visible, as the step holds it: dspy refuses a prompt with a lone surrogate, which ends more than this rollout.
        self._turns.append({**self._turn, "thought": step.thought, "action": without_fields(visible(said))})
        self._turn = self._shown(step.observation, seen)
        if seen.done or last:
            self._stop = "done" if seen.done else "max_steps"
            if seen.broken is None:
                self._answer = seen.answer
                self._over()
        return seen

    def _shown(self, observation: str, seen: Seen) -> dict[str, Any]:
        """What a turn shows of the environment, by the fields of the prompt."""
        observation = cut(observation, characters(self._config.observation_tokens))
        turn: dict[str, Any] = {"observation": without_fields(observation)}
        self._meant = {}
        if seen.valid is not None:
            turn["valid_actions"] = [without_fields(visible(action)) for action in seen.valid]
            for shown, action in zip(turn["valid_actions"], seen.valid, strict=True):
                self._meant.setdefault(shown.strip(), action)
            self._meant |= {action: action for action in seen.valid}
        return turn

    def _broken_off(self) -> None:
        answer = handed_in(self._environment)
        self._check_awaited()
        self._answer = answer
        self._over()

    def _check_awaited(self) -> None:
        if self._lane.lost:
            raise Overdue("the environment came back when nobody waited for it any more")

    def _ask(self) -> Ask:
        return Ask(
            role="agent",
            predict=self._predict,
            inputs={**self._turn, "history": dspy.History(messages=list(self._turns))},
            temperature=self._config.temperature,
            max_tokens=self._config.max_tokens,
            rollout=self._rollout,
        )
