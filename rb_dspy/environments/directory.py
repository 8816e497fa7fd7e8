"""The environment ``directory``: which team owns the service of an alert. Only memory can answer it.

The owner is drawn from the seed and shown after the answer in plain words. So the first alert of a service can only be
guessed, and every later one can be solved by an agent that remembers the fact.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence

from rb_dspy.environments.answers import AcceptedAnswers
from rb_dspy.environments.generated import TaskArgs, mixed_seed, read_data, select_templates
from rb_dspy.environments.single_turn import SingleTurn
from rb_dspy.protocols import Environment, EnvironmentFamily
from rb_dspy.schema import MemoryDraft, Outcome, Task

SERVICES = 8
TEAMS = 8

_DATA = read_data("directory.json")
_SERVICES, _TEAMS, _PHRASINGS = _DATA["services"], _DATA["teams"], _DATA["phrasings"]
_DENIALS = {"incorrect", "wrong", "not", "false"}


class _Args(TaskArgs):
    """The ground truth of one alert."""

    service: str
    owner: str
    teams: tuple[str, ...]


class Directory(EnvironmentFamily):
    """Alerts about services; the action names the team that owns the service.

    A template is a phrasing. Each seed draws its own world: 8 services, 8 teams, and the owner of each service. Every 8
    tasks name each service once, so after the first 8 the same facts are needed again; the stream ends after 8 tasks
    per template. After its only action the agent is told the owner. Success is the right team: 1/8 for a random answer,
    0 for an empty one, 1 with ``lessons`` in memory.

    Args:
        flip: Every service changes its owner after 16 tasks, so earlier lessons become wrong: a test of how a memory
            handles stale facts, to be run in the order of the stream. No ``lessons`` are right before and after it.
    """

    def __init__(self, flip: bool = False) -> None:
        self.name = "directory-flip" if flip else "directory"
        self._flip = flip

    def templates(self) -> Sequence[str]:
        return tuple(_PHRASINGS)

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        return _alerts(seed, select_templates(self.name, self.templates(), templates), self.name, self._flip)

    def make(self, task: Task) -> Environment:
        return _Alert(_Args.of(task))

    def oracle(self, task: Task) -> Sequence[str]:
        return (_Args.of(task).owner,)

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        return rng.choice(_Args.of(task).teams)

    def lessons(self, tasks: Sequence[Task]) -> Sequence[MemoryDraft]:
        """Return the lessons of a perfect memory: one fact for each service of ``tasks``."""
        if self._flip:
            return []
        owners = {args.service: args.owner for args in map(_Args.of, tasks)}
        return [
            MemoryDraft(
                title=f"Owner of {service}",
                description=f"When a task is about the service {service}.",
                content=f"The service {service} is owned by team {owner}.",
            )
            for service, owner in owners.items()
        ]

    def keeps_fact(self, task: Task, lesson: str) -> bool:
        """Whether ``lesson`` says which team owns the service of ``task``, names no other team and denies nothing."""
        args, said = _Args.of(task), set(re.findall(r"\w+", lesson.casefold()))
        others = {team.casefold() for team in _TEAMS} - {args.owner.casefold()}
        return {args.service, args.owner.casefold()} <= said and not said & (others | _DENIALS)


def flipped() -> Directory:
    """The environment ``directory-flip``."""
    return Directory(flip=True)


def _alerts(seed: int, templates: Sequence[str], name: str, flip: bool) -> Iterator[Task]:
    """Yield tasks with templates in turn and services in turn. Each service meets each template once."""
    rng = random.Random(mixed_seed("directory", seed))
    services, teams = rng.sample(_SERVICES, SERVICES), sorted(rng.sample(_TEAMS, TEAMS))
    owners = dict(zip(services, rng.sample(teams * (SERVICES // TEAMS), SERVICES), strict=True))
    later = dict(zip(services, [*list(owners.values())[1:], owners[services[0]]], strict=True)) if flip else owners
    n = len(templates)
    for place in range(n * SERVICES):
        template = templates[place % n]
        # After each common multiple the same pairs would repeat; shifted by one service they are new.
        service = services[(place + place // math.lcm(n, SERVICES)) % SERVICES]
        owner = (owners if place < 2 * SERVICES else later)[service]
        yield Task(
            id=f"{name}/{seed}/{template}/{service}",
            instruction=_PHRASINGS[template].format(service),
            env=name,
            env_args={"service": service, "owner": owner, "teams": list(teams)},
            domain="operations",
            template=template,
        )


class _Alert(SingleTurn):
    """One alert and one action."""

    action_rules = (
        "Your action is the name of one team, copied from the list of valid actions. There is one turn; after it you"
        " are told which team owns the service."
    )

    def __init__(self, args: _Args) -> None:
        super().__init__(lambda _: AcceptedAnswers([args.owner]).outcome, self._told)
        self._args = args

    def reset(self, task: Task) -> str:
        super().reset(task)
        return f"Which team owns the service {self._args.service}?"

    def valid_actions(self) -> Sequence[str]:
        return self._args.teams

    def _told(self, outcome: Outcome) -> str:
        verdict = "Right" if outcome.success else "Wrong"
        # A sentence of its own: small models read "Wrong: the service ..." as if the owner were wrong.
        return f"{verdict}. The service {self._args.service} is owned by team {self._args.owner}."
