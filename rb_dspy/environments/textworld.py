"""Text games of TextWorldExpress: putting things where they belong (``twc``), and cooking by a recipe (``cookingworld``)."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal

import pydantic

from rb_dspy.environments.engine import ENGINE, Engine, Frame, Game, NoSuchGame
from rb_dspy.environments.generate import chosen_templates, distinct, in_turn, mixed_seed
from rb_dspy.errors import InputError, RBError
from rb_dspy.protocols import Environment
from rb_dspy.schema import Outcome, Task, visible

FOLDS = ("train", "dev", "test")
"""The engine's folds: each has its own objects, or its own ingredients and preparations."""

MAX_ACTION = 200
"""Characters of an action that the engine is shown; the longest valid one has about 60."""

_TRIES = 8
"""The engine's solutions are random walks: the shortest of so many is taken."""

_TELLING = re.compile(r"(?:take|cook|slice|dice|chop) ")
_ROOM = re.compile(r"You are in (the [^.]+)\.")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One setting of a game: its parameters in the engine's words, the most steps, and what the agent is told of it."""

    name: str
    params: str
    step_limit: int
    told: str = ""


class _Args(pydantic.BaseModel):
    """``env_args``: everything that is needed to make the game again."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    params: str
    fold: Literal["train", "dev", "test"]
    seed: int = pydantic.Field(ge=0, lt=2**31)
    step_limit: int = pydantic.Field(ge=1)


@dataclasses.dataclass(frozen=True)
class TextWorld:
    """A family of one game; a template is ``<game>/<variant>/<fold>``.

    The instruction is the game's own task description, with the room the player starts in and the step limit. Reward is
    the engine's score, cut to [0, 1]; success is a game that is won. A game ends when it is won, lost, or at its step
    limit. Deterministic for a task, but for ``oracle``, whose way through several rooms differs from call to call. No
    game repeats within one stream. Source: textworld-express 1.1.0.
    """

    name: str
    domain: str
    action_rules: str
    variants: tuple[Variant, ...]
    engine: Engine = ENGINE

    def check(self) -> None:
        self.engine.check()

    def templates(self) -> Sequence[str]:
        return tuple(self._variants())

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        """See ``EnvironmentFamily``; the engine is asked for every game, so Java is needed here already."""
        self.check()
        chosen = chosen_templates(self.name, self.templates(), templates)
        return in_turn([distinct(self._draws(template, seed)) for template in chosen])

    def make(self, task: Task) -> Environment:
        self.check()
        return _Episode(self.engine, self.name, self.action_rules, _args(task))

    def oracle(self, task: Task) -> Sequence[str]:
        """The shortest of a few solutions that the engine finds."""
        args = _args(task)
        with self.engine.game() as game:
            return min((_solution(game, self.name, args) for _ in range(_TRIES)), key=len)

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        return rng.choice(environment.valid_actions() or [""])

    def _variants(self) -> dict[str, tuple[Variant, str]]:
        """Template -> its variant and fold."""
        pairs = itertools.product(self.variants, FOLDS)
        return {f"{self.name}/{variant.name}/{fold}": (variant, fold) for variant, fold in pairs}

    def _draws(self, template: str, seed: int) -> Iterator[tuple[Hashable, Task] | None]:
        """What tells a game from others, and its task; None for a seed that the engine makes no game of."""
        variant, fold = self._variants()[template]
        for number in itertools.count():
            args = _Args.model_validate(
                {
                    "params": variant.params,
                    "fold": fold,
                    "seed": mixed_seed("textworld", template, seed, number),
                    "step_limit": variant.step_limit,
                }
            )
            with self.engine.game() as game:
                try:
                    first = game.start(self.name, args.params, args.fold, args.seed, solve=True)
                except NoSuchGame:
                    yield None
                    continue
                told = [game.description(), variant.told, _start(first), f"You have {args.step_limit} steps."]
                # Where a solution walks is chance; what it takes and prepares is the task.
                wanted = frozenset(action for action in game.solution() if _TELLING.match(action))
            task = Task(
                id=f"{template}/{seed}-{number}",
                instruction=" ".join(filter(None, told)),
                env=self.name,
                env_args=args.model_dump(),
                domain=self.domain,
                template=template,
            )
            yield (first.observation, wanted), task


class _Episode:
    """One game, one player. An action is matched to the valid ones without regard to case, spaces and quotes around it."""

    def __init__(self, engine: Engine, name: str, action_rules: str, args: _Args) -> None:
        self.action_rules = action_rules
        self._engine = engine
        self._name = name
        self._args = args
        self._game: Game | None = None
        self._frame: Frame | None = None
        self._steps = 0

    def reset(self, task: Task) -> str:
        self._args = _args(task)
        if self._game is None:
            self._game = self._engine.open()
        self._steps = 0
        self._frame = self._game.start(self._name, self._args.params, self._args.fold, self._args.seed)
        return self._frame.observation

    def step(self, action: str) -> tuple[str, bool]:
        frame = self._current()
        assert self._game is not None
        if self._over(frame):
            return "The episode is over.", True
        self._frame = self._game.step(_matched(action, frame.valid_actions))
        self._steps += 1
        return self._frame.observation, self._over(self._frame)

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
        return frame.won or frame.lost or self._steps >= self._args.step_limit


def _matched(action: str, valid: Sequence[str]) -> str:
    """The valid action that is meant, else the action as the engine can take it: one line of visible characters."""
    text = " ".join(visible(action[:MAX_ACTION]).split()).strip("\"'` ").removesuffix(".")
    return {known.casefold(): known for known in valid}.get(text.casefold(), text)


def _start(frame: Frame) -> str:
    room = _ROOM.match(frame.observation)
    return f"You start in {room[1]}." if room else ""


def _solution(game: Game, name: str, args: _Args) -> list[str]:
    game.start(name, args.params, args.fold, args.seed, solve=True)
    return game.solution()


def _args(task: Task) -> _Args:
    try:
        return _Args.model_validate(task.env_args)
    except pydantic.ValidationError:
        raise InputError(
            f"task {task.id!r}: env_args do not describe a game; expected params, fold, seed and step_limit"
        ) from None


_TWC_RULES = (
    "An action is one command, copied from the valid actions. To put something away: take it, open the place where it"
    " belongs if that is closed, then put it there."
)
_COOKING_RULES = (
    "An action is one command, copied from the valid actions. The cookbook says what to take, how to cut it (with the"
    " knife in hand) and how to heat it; a wrong cut or a wrong heat loses the game. Then: prepare meal, eat meal."
)


def TWC(engine: Engine = ENGINE) -> TextWorld:
    """TextWorld Commonsense: take what lies about and put it where such things usually go.

    One object alone is left out: random play finds its place in 45 of 100 games.
    """
    variants = (
        Variant("1-location-2-objects", _twc(1, 2), 14, "There are 2 objects to put away."),
        Variant("1-location-3-objects", _twc(1, 3), 20, "There are 3 objects to put away."),
        Variant("2-locations-2-objects", _twc(2, 2), 25, "There are 2 objects to put away."),
        Variant("2-locations-2-objects-doors", _twc(2, 2, doors=1), 30, "There are 2 objects to put away."),
        Variant("3-locations-3-objects", _twc(3, 3), 45, "There are 3 objects to put away."),
        Variant("3-locations-4-objects-doors", _twc(3, 4, doors=1), 50, "There are 4 objects to put away."),
    )
    return TextWorld("twc", "household", _TWC_RULES, variants, engine)


def CookingWorld(engine: Engine = ENGINE) -> TextWorld:
    """CookingWorld: gather, cut and heat what the cookbook says, then prepare and eat the meal.

    One ingredient in one room is left out: there are only some 30 such games.
    """
    variants = (
        Variant("1-location-2-ingredients", _cooking(1, 2, 2), 25),
        Variant("1-location-3-ingredients", _cooking(1, 3, 5), 30),
        Variant("2-locations-2-ingredients", _cooking(2, 2, 2), 30),
        Variant("3-locations-2-ingredients", _cooking(3, 2, 2), 40),
        Variant("3-locations-2-ingredients-doors", _cooking(3, 2, 2, doors=1), 50),
    )
    return TextWorld("cookingworld", "cooking", _COOKING_RULES, variants, engine)


def _twc(locations: int, objects: int, doors: int = 0) -> str:
    return f"numLocations={locations},numItemsToPutAway={objects},includeDoors={doors},limitInventorySize=0"


def _cooking(locations: int, ingredients: int, others: int, doors: int = 0) -> str:
    """Doors come with an inventory of limited size: the harder setting."""
    return (
        f"numLocations={locations},numIngredients={ingredients},numDistractorItems={others},"
        f"includeDoors={doors},limitInventorySize={doors}"
    )
