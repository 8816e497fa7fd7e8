"""The environment ``bfcl``: single turns of the Berkeley function-calling leaderboard's multi-turn tasks.

Data, simulators and checker come from the package ``bfcl-eval``, which ``make bfcl`` installs without its pins. The
tools' errors state conditions that no signature shows: an engine starts only with locked doors and the brake pressed.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rb_dspy.environments.functions import ANSWER, Functions, parse_call
from rb_dspy.environments.generated import TaskArgs, in_turn, mixed_seed, read_data, select_templates
from rb_dspy.errors import MissingDependency
from rb_dspy.jsonl import read_objects
from rb_dspy.protocols import Environment
from rb_dspy.schema import MemoryDraft, Outcome, Task

APIS = (
    *("GorillaFileSystem", "MathAPI", "MessageAPI", "TicketAPI"),
    *("TradingBot", "TravelAPI", "TwitterAPI", "VehicleControlAPI"),
)

MAX_CALLS = 10

_LESSONS = read_data("bfcl.json")
"""Class -> lessons of a perfect memory, written by hand from the simulators' errors."""


class _Args(TaskArgs):
    """One turn of one entry of the benchmark."""

    entry: str
    turn: int


class Bfcl:
    """Turns of the benchmark's 200 base tasks: the 731 that need a call, each after the gold calls of earlier turns.

    A template is the API that most gold calls of the turn belong to. The agent reads the signatures of the entry's
    functions, without their documentation, and makes one call per step. Success is the benchmark's own check: the state
    of all APIs and the results of the calls equal those of the gold calls. The agent is not told whether it was right.
    """

    name = "bfcl"
    instruction_is_unique = False

    def check(self) -> None:
        _folder()

    def templates(self) -> Sequence[str]:
        return APIS

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        """Yield all turns of the templates, in an order drawn from the seed; the stream ends."""
        chosen = select_templates(self.name, self.templates(), templates)
        turns: dict[str, list[Task]] = {name: [] for name in chosen}
        for entry in _entries().values():
            for turn, calls in enumerate(entry["gold"]):
                name = _main_api(entry, calls)
                if name in turns:
                    turns[name].append(_task(entry, turn, name))
        rng = random.Random(mixed_seed("bfcl", seed))
        return in_turn(iter(rng.sample(each, len(each))) for each in turns.values())

    def make(self, task: Task) -> Environment:
        args = _Args.of(task)
        return _turn(_entries()[args.entry], args.turn)

    def oracle(self, task: Task) -> Sequence[str]:
        args = _Args.of(task)
        return (*_entries()[args.entry]["gold"][args.turn], f"{ANSWER} done")

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        """Return a call of a random function without arguments."""
        entry = _entries()[_Args.of(task).entry]
        return f"{rng.choice(sorted(_methods(_instances(entry['id']))))}()"

    def lessons(self, tasks: Sequence[Task]) -> Sequence[MemoryDraft]:
        """Return the lessons of a perfect memory; they exist only for the two APIs in ``_LESSONS``."""
        used = dict.fromkeys(task.template for task in tasks)
        return [
            MemoryDraft(title=text.partition(" ")[0], description=f"When using {api}.", content=text)
            for api, texts in _LESSONS.items()
            if api in used
            for text in texts
        ]


def _turn(entry: dict[str, Any], turn: int) -> Environment:
    """The environment of one turn: the agent's copy of the APIs, and a gold copy to compare with."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker

    own: dict[str, Any] = {}
    gold = copy.deepcopy(_instances(entry["id"]))
    results: list[str] = []
    for calls in entry["gold"][:turn]:
        _run(gold, calls)

    def restart() -> None:
        own.update(copy.deepcopy(_instances(entry["id"])))
        results[:] = [result for calls in entry["gold"][:turn] for result in _run(own, calls)]

    def score(_: str | None, calls: Sequence[str]) -> Outcome:
        after = copy.deepcopy(gold)
        found = _run(after, entry["gold"][turn])
        checks = state_checker(own, after), response_checker(results, found, turn)
        success = bool(calls) and all(check["valid"] for check in checks)
        errors = "; ".join(check["error_message"] for check in checks if not check["valid"])
        return Outcome(reward=float(success), success=success, info={"error": errors} if errors else {})

    def tool(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            results.append(_text(_methods(own)[name], args, named))
            return results[-1]

        return call

    restart()
    methods = _methods(own, entry.get("excluded_function", ()))
    functions = [tool(name, method) for name, method in methods.items()]
    earlier = [
        f"Earlier: {question}\nDone: {', '.join(calls)}"
        for question, calls in zip(entry["questions"][:turn], entry["gold"], strict=False)
    ]
    first = "\n".join([*earlier, f"Do now: {entry['questions'][turn]}"])
    return Functions(functions, score, max_calls=MAX_CALLS, describe=False, first=first, restart=restart)


def _task(entry: dict[str, Any], turn: int, api: str) -> Task:
    return Task(
        id=f"bfcl/{entry['id'].removeprefix('multi_turn_')}/{turn + 1}",
        instruction=entry["questions"][turn],
        env="bfcl",
        env_args={"entry": entry["id"], "turn": turn},
        domain="tools",
        template=api,
    )


@functools.cache
def _folder() -> Path:
    """The folder of the package."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency("the environment 'bfcl' needs the package bfcl-eval; install it with: make bfcl")
    return Path(spec.submodule_search_locations[0])


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    """Id -> entry of the base category, with its questions and gold calls by turn."""
    data, name = _folder() / "data", "BFCL_v4_multi_turn_base.json"
    gold = {each["id"]: each["ground_truth"] for _, each in read_objects(data / "possible_answer" / name)}
    entries = {}
    for _, entry in read_objects(data / name):
        questions = ["\n".join(message["content"] for message in turn) for turn in entry["question"]]
        entries[entry["id"]] = {**entry, "questions": questions, "gold": gold[entry["id"]]}
    return entries


@functools.cache
def _instances(id: str) -> dict[str, Any]:
    """Class -> its simulator at the start of the entry. Copy it before use."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

    entry = _entries()[id]
    made: dict[str, Any] = execute_multi_turn_func_call(
        [], entry["initial_config"], entry["involved_classes"], "rb_dspy", id
    )[1]
    return made


def _methods(instances: dict[str, Any], excluded: Sequence[str] = ()) -> dict[str, Callable[..., Any]]:
    """Name -> function of these APIs."""
    return {
        name: method
        for instance in instances.values()
        for name, method in inspect.getmembers(instance, inspect.ismethod)
        if not name.startswith("_") and name not in excluded
    }


def _main_api(entry: dict[str, Any], calls: Sequence[str]) -> str | None:
    """Return the class that most of these calls belong to; None if there are no calls."""
    owners = Counter(
        name
        for call in calls
        for name, instance in _instances(entry["id"]).items()
        if hasattr(instance, parse_call(call)[0])
    )
    return owners.most_common(1)[0][0] if owners else None


def _run(instances: dict[str, Any], calls: Sequence[str]) -> list[str]:
    """Make gold calls and return their results."""
    methods = _methods(instances)
    return [_text(methods[name], args, named) for name, args, named in map(parse_call, calls)]


def _text(method: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]) -> str:
    """Return the result of a call, or its exception, as the benchmark writes it."""
    try:
        result = method(*args, **named)
    except Exception as exc:  # noqa: BLE001 (bugs in the simulators may raise anything)
        return f"Error during execution: {exc}"
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except TypeError:
            return str(result)
    return str(result)
