"""Text games of TextWorldExpress: putting things where they belong, and cooking by a recipe."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence

from rb_dspy.environments.engine import ENGINE, Engine, Frame, Game, NoSuchGame
from rb_dspy.environments.generate import chosen_templates, distinct, in_turn, mixed_seed
from rb_dspy.environments.textworld_episode import GameArgs, GameEpisode
from rb_dspy.protocols import Environment, Fold
from rb_dspy.schema import Task

FOLDS: tuple[Fold, ...] = ("train", "dev", "test")
"""The engine's folds: each has its own objects to put away, or its own preparations of the same ingredients."""

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


@dataclasses.dataclass(frozen=True)
class TextWorld:
    """A family of one game; a template is ``<game>/<variant>/<fold>``; splits keep folds whole.

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
    instruction_tells_all: bool = False
    """What there is to cook, or to put away, is to be seen in the game."""

    def check(self) -> None:
        self.engine.check()

    def templates(self) -> Sequence[str]:
        return tuple(self._variants())

    def folds(self) -> Mapping[str, Fold]:
        return {template: fold for template, (_, fold) in self._variants().items()}

    def fold(self, task: Task) -> Fold | None:
        """That which the game is made with, and not what the template says: a file may have its own."""
        return next((fold for fold in FOLDS if fold == task.env_args.get("fold")), None)

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        """See ``EnvironmentFamily``; the engine is asked for every game, so Java is needed here already."""
        self.check()
        chosen = chosen_templates(self.name, self.templates(), templates)
        return in_turn([distinct(self._draws(template, seed)) for template in chosen])

    def make(self, task: Task) -> Environment:
        GameArgs.of(task)  # a task of another family is refused before an agent works on it
        return GameEpisode(self.engine, self.name, self.action_rules)

    def oracle(self, task: Task) -> Sequence[str]:
        """The shortest of a few solutions that the engine finds."""
        args = GameArgs.of(task)
        with self.engine.game() as game:
            return min((_solution(game, self.name, args) for _ in range(_TRIES)), key=len)

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        return rng.choice(environment.valid_actions() or [""])

    def _variants(self) -> dict[str, tuple[Variant, Fold]]:
        """Template -> its variant and fold."""
        pairs = itertools.product(self.variants, FOLDS)
        return {f"{self.name}/{variant.name}/{fold}": (variant, fold) for variant, fold in pairs}

    def _draws(self, template: str, seed: int) -> Iterator[tuple[Hashable, Task] | None]:
        """What tells a game from others, and its task; None for a seed that the engine makes no game of."""
        variant, fold = self._variants()[template]
        for number in itertools.count():
            args = GameArgs.model_validate(
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


def _start(frame: Frame) -> str:
    room = _ROOM.match(frame.observation)
    return f"You start in {room[1]}." if room else ""


def _solution(game: Game, name: str, args: GameArgs) -> list[str]:
    game.start(name, args.params, args.fold, args.seed, solve=True)
    return game.solution()


# No hint of how to play: what the games ask for is what an agent is to learn, and a bank to keep.
_ACTION_RULES = "An action is one command, copied from the list of valid actions; for example: look around"


def TWC(engine: Engine = ENGINE) -> TextWorld:
    """TextWorld Commonsense: take what lies about and put it where such things usually go.

    One object alone is left out: random play puts it away in a third of the games.
    """
    variants = (
        Variant("1-location-2-objects", _twc(1, 2), 14, "There are 2 objects to put away."),
        Variant("1-location-3-objects", _twc(1, 3), 20, "There are 3 objects to put away."),
        Variant("2-locations-2-objects", _twc(2, 2), 25, "There are 2 objects to put away."),
        Variant("2-locations-2-objects-doors", _twc(2, 2, doors=1), 30, "There are 2 objects to put away."),
        Variant("3-locations-3-objects", _twc(3, 3), 45, "There are 3 objects to put away."),
        Variant("3-locations-4-objects-doors", _twc(3, 4, doors=1), 50, "There are 4 objects to put away."),
    )
    return TextWorld("twc", "household", _ACTION_RULES, variants, engine)


def CookingWorld(engine: Engine = ENGINE) -> TextWorld:
    """CookingWorld: gather, cut and heat what the cookbook says, then prepare and eat the meal.

    One ingredient in one room is left out: 40 seeds give only about 10 different kitchens.
    """
    variants = (
        Variant("1-location-2-ingredients", _cooking(1, 2, 2), 25),
        Variant("1-location-3-ingredients", _cooking(1, 3, 5), 30),
        Variant("2-locations-2-ingredients", _cooking(2, 2, 2), 30),
        Variant("3-locations-2-ingredients", _cooking(3, 2, 2), 40),
        Variant("3-locations-2-ingredients-doors", _cooking(3, 2, 2, doors=1), 50),
    )
    return TextWorld("cookingworld", "cooking", _ACTION_RULES, variants, engine)


def _twc(locations: int, objects: int, doors: int = 0) -> str:
    return f"numLocations={locations},numItemsToPutAway={objects},includeDoors={doors},limitInventorySize=0"


def _cooking(locations: int, ingredients: int, others: int, doors: int = 0) -> str:
    """Doors come with an inventory of limited size: the harder setting."""
    return (
        f"numLocations={locations},numIngredients={ingredients},numDistractorItems={others},"
        f"includeDoors={doors},limitInventorySize={doors}"
    )
