"""Text games of TextWorldExpress: putting things where they belong, and cooking by a recipe."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pydantic

from rb_dspy.environments.answers import unquoted
from rb_dspy.environments.generated import TaskArgs, distinct, in_turn, mixed_seed, select_templates
from rb_dspy.environments.textworld_engine import ENGINE, Engine, Frame, Game, NoSuchGame
from rb_dspy.errors import RBError
from rb_dspy.protocols import Environment, Fold
from rb_dspy.schema import Outcome, Task

FOLDS: tuple[Fold, ...] = ("train", "dev", "test")
"""The engine's folds: each has its own objects to put away, or its own preparations of the same ingredients."""

MAX_ACTION = 1_000
"""Maximum characters of an action that the engine reads; the longest valid one has about 60."""

_SOLUTIONS = 8
"""The engine's solutions are random walks: the oracle takes the shortest of this many."""

_REQUIRED = re.compile(r"(?:take|cook|slice|dice|chop) ")
_ROOM = re.compile(r"You are in (the [^.]+)\.")


class GameArgs(TaskArgs):
    """The arguments to generate the game again."""

    params: str
    fold: Fold
    seed: int = pydantic.Field(ge=0, lt=2**31)
    step_limit: int = pydantic.Field(ge=1)


@dataclass(frozen=True)
class Variant:
    """One setting of a game: its parameters in the engine's syntax, the step limit, and a note for the agent."""

    name: str
    params: str
    step_limit: int
    note: str = ""


@dataclass(frozen=True)
class TextWorld:
    """A family of one game. A template is ``<game>/<variant>/<fold>``.

    The instruction is the game's own task description, with the room where the player starts and the step limit. Reward
    is the engine's score, cut to [0, 1]; success is a game that is won. A game ends when it is won, lost, or at its
    step limit. Deterministic for a task, except for ``oracle``, whose way through several rooms differs between calls.
    No game repeats within one stream. Source: textworld-express 1.1.0.
    """

    name: str
    domain: str
    variants: tuple[Variant, ...]
    engine: Engine = ENGINE
    instruction_is_unique: bool = False
    """What to cook or to put away is shown in the game, not in the instruction."""

    def check(self) -> None:
        self.engine.check()

    def templates(self) -> Sequence[str]:
        return tuple(self._templates())

    def fold_of(self, template: str) -> Fold | None:
        """The fold of a template; None if it is not one of this family."""
        return self._templates()[template][1] if template in self._templates() else None

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        """See ``EnvironmentFamily``. The engine generates every game, so this needs Java."""
        self.check()
        chosen = select_templates(self.name, self.templates(), templates)
        return in_turn(distinct(self._draws(template, seed)) for template in chosen)

    def make(self, task: Task) -> Environment:
        GameArgs.of(task)  # refuse a task of another family before an agent works on it
        return GameEpisode(self.engine, self.name)

    def oracle(self, task: Task) -> Sequence[str]:
        """The shortest of several solutions that the engine finds."""
        with closing(self.engine.open()) as game:
            return min((self._solution(game, GameArgs.of(task)) for _ in range(_SOLUTIONS)), key=len)

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        return rng.choice(environment.valid_actions() or [""])

    def _templates(self) -> dict[str, tuple[Variant, Fold]]:
        pairs = itertools.product(self.variants, FOLDS)
        return {f"{self.name}/{variant.name}/{fold}": (variant, fold) for variant, fold in pairs}

    def _draws(self, template: str, seed: int) -> Iterator[tuple[Hashable, Task] | None]:
        """Yield what distinguishes a game from others, and its task; None for a seed without a game."""
        variant, fold = self._templates()[template]
        for number in itertools.count():
            game_seed = mixed_seed("textworld", template, seed, number)
            args = GameArgs(params=variant.params, fold=fold, seed=game_seed, step_limit=variant.step_limit)
            with closing(self.engine.open()) as game:
                try:
                    first = game.start(self.name, args.params, args.fold, args.seed, solve=True)
                except NoSuchGame:
                    yield None
                    continue
                start = f"You start in {room[1]}." if (room := _ROOM.match(first.observation)) else ""
                parts = (game.description(), variant.note, start, f"You have {args.step_limit} steps.")
                # A solution is a random walk; its take and prepare actions are the task.
                required = frozenset(action for action in game.solution() if _REQUIRED.match(action))
            task = Task(
                id=f"{template}/{seed}-{number}",
                instruction=" ".join(filter(None, parts)),
                env=self.name,
                env_args=args.model_dump(),
                domain=self.domain,
                template=template,
                key=first.observation,
            )
            yield (first.observation, required), task

    def _solution(self, game: Game, args: GameArgs) -> list[str]:
        game.start(self.name, args.params, args.fold, args.seed, solve=True)
        return game.solution()


class GameEpisode(Environment):
    """One game and one player.

    An action is matched to the valid ones regardless of case, white space, outer quotes and a full stop at its end.
    Any other text goes to the engine, whose message is the observation.
    """

    # No hint of how to play: that is what an agent has to learn.
    action_rules = "An action is one command, copied from the list of valid actions; for example: look around"

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._game: Game | None = None
        self._frame: Frame | None = None
        self._steps = 0
        self._step_limit = 0

    def reset(self, task: Task) -> str:
        args = GameArgs.of(task)
        self._game = self._game or self._engine.open()
        self._frame = self._game.start(self._name, args.params, args.fold, args.seed)
        self._steps, self._step_limit = 0, args.step_limit
        return self._frame.observation

    def step(self, action: str) -> tuple[str, bool]:
        game, frame = self._current()
        if self._is_over(frame):
            return "The episode is over.", True
        line = " ".join(action[:MAX_ACTION].encode("utf-8", "replace").decode().split())  # py4j sends no surrogates
        by_text = {valid.casefold(): valid for valid in frame.valid_actions}
        self._frame = game.step(by_text.get(unquoted(unquoted(line).removesuffix(".")).casefold(), line))
        self._steps += 1
        return self._frame.observation, self._is_over(self._frame)

    def reopen(self) -> str | None:
        """Reopen a game that is neither won nor lost nor out of steps."""
        return None if self._is_over(self._current()[1]) else "The game goes on."

    def valid_actions(self) -> Sequence[str]:
        return self._current()[1].valid_actions

    def outcome(self) -> Outcome:
        frame = self._current()[1]
        info: dict[str, pydantic.JsonValue] = {"score": frame.score, "steps": self._steps, "lost": frame.lost}
        return Outcome(reward=min(max(frame.score, 0.0), 1.0), success=frame.won, info=info)

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
        self._game = None

    def _current(self) -> tuple[Game, Frame]:
        if self._game is None or self._frame is None:
            raise RBError("no episode is open; call reset(task) first")
        return self._game, self._frame

    def _is_over(self, frame: Frame) -> bool:
        return frame.won or frame.lost or self._steps >= self._step_limit


def TWC(engine: Engine = ENGINE) -> TextWorld:
    """TextWorld Commonsense: take objects that lie around and put them where they usually belong.

    Games with one object are left out: random play solves a third of them.
    """
    games = ((1, 2, 0, 14), (1, 3, 0, 20), (2, 2, 0, 25), (2, 2, 1, 30), (3, 3, 0, 45), (3, 4, 1, 50))
    variants = (
        Variant(
            _variant_name(locations, f"{objects}-objects", doors),
            f"numLocations={locations},numItemsToPutAway={objects},includeDoors={doors},limitInventorySize=0",
            step_limit,
            f"There are {objects} objects to put away.",
        )
        for locations, objects, doors, step_limit in games
    )
    return TextWorld("twc", "household", tuple(variants), engine)


def CookingWorld(engine: Engine = ENGINE) -> TextWorld:
    """CookingWorld: gather, cut and heat what the cookbook says, then prepare and eat the meal.

    Games with one ingredient in one room are left out: 40 seeds give only about 10 different kitchens. Doors come with
    an inventory of limited size: the harder setting.
    """
    games = ((1, 2, 2, 0, 25), (1, 3, 5, 0, 30), (2, 2, 2, 0, 30), (3, 2, 2, 0, 40), (3, 2, 2, 1, 50))
    variants = (
        Variant(
            _variant_name(locations, f"{ingredients}-ingredients", doors),
            f"numLocations={locations},numIngredients={ingredients},numDistractorItems={others},"
            f"includeDoors={doors},limitInventorySize={doors}",
            step_limit,
        )
        for locations, ingredients, others, doors, step_limit in games
    )
    return TextWorld("cookingworld", "cooking", tuple(variants), engine)


def _variant_name(locations: int, things: str, doors: int) -> str:
    return f"{locations}-location{'s' * (locations > 1)}-{things}{'-doors' * doors}"
