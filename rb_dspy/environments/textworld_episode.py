"""One game of TextWorldExpress, as an environment."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic

from rb_dspy.environments.engine import Engine, Frame, Game
from rb_dspy.errors import InputError, RBError
from rb_dspy.protocols import Fold
from rb_dspy.schema import Outcome, Task
from rb_dspy.text import visible

MAX_ACTION = 1_000
"""Characters of an action that the engine is shown; the longest valid one has about 60."""


class GameArgs(pydantic.BaseModel):
    """``env_args``: everything that is needed to make the game again."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    params: str
    fold: Fold
    seed: int = pydantic.Field(ge=0, lt=2**31)
    step_limit: int = pydantic.Field(ge=1)

    @classmethod
    def of(cls, task: Task) -> GameArgs:
        """Those of ``task``; ``InputError`` where they describe no game."""
        try:
            return cls.model_validate(task.env_args)
        except pydantic.ValidationError:
            raise InputError(
                f"task {task.id!r}: env_args do not describe a game; expected params, fold, seed and step_limit"
            ) from None


class GameEpisode:
    """One game and one player.

    An action is matched to the valid ones without regard to case and to quotes, spaces or a full stop around it; any
    other text goes to the engine, whose message is the observation.
    """

    def __init__(self, engine: Engine, name: str, action_rules: str) -> None:
        self.action_rules = action_rules
        self._engine = engine
        self._name = name
        self._game: Game | None = None
        self._frame: Frame | None = None
        self._steps = 0
        self._limit = 0

    def reset(self, task: Task) -> str:
        args = GameArgs.of(task)
        if self._game is None:
            self._game = self._engine.open()
        self._steps = 0
        self._limit = args.step_limit
        self._frame = self._game.start(self._name, args.params, args.fold, args.seed)
        return self._frame.observation

    def step(self, action: str) -> tuple[str, bool]:
        frame = self._current()
        assert self._game is not None
        if self._over(frame):
            return "The episode is over.", True
        self._frame = self._game.step(_matched(action, frame.valid_actions))
        self._steps += 1
        return self._frame.observation, self._over(self._frame)

    def reopen(self) -> str | None:
        """A game goes on that is neither won nor lost nor out of steps."""
        frame = self._current()
        return None if self._over(frame) else "The game goes on."

    def valid_actions(self) -> Sequence[str]:
        return self._current().valid_actions

    def answer(self) -> None:
        return None

    def outcome(self) -> Outcome:
        frame = self._current()
        reward = min(max(frame.score, 0.0), 1.0)
        info: dict[str, pydantic.JsonValue] = {"score": frame.score, "steps": self._steps, "lost": frame.lost}
        return Outcome(reward=reward, success=frame.won, info=info)

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None

    def _current(self) -> Frame:
        if self._frame is None:
            raise RBError("the episode has not begun; call reset(task) first")
        return self._frame

    def _over(self, frame: Frame) -> bool:
        return frame.won or frame.lost or self._steps >= self._limit


def _matched(action: str, valid: Sequence[str]) -> str:
    """The valid action that is meant, else the action as the engine can take it: one line of visible characters."""
    shown = visible(action, limit=MAX_ACTION)  # py4j cannot send a lone surrogate
    text = " ".join(shown.split()).strip("\"'`. ")
    return {known.casefold(): known for known in valid}.get(text.casefold(), text)
