"""What held-out tasks of the text games share with those that prompts are compiled on: their folds, and their things.

    python experiments/folds/folds.py [--tasks 300] [--seed 0]

Things are, in ``twc``, what the engine's solutions put away; in ``cookingworld`` the ingredients of the recipes, and
the ingredients with all that is to be done to them ("red apple: dice, fry"; salt and the like, to which nothing is
done, left out). Both ways to split: the splits of the named stream, and ``split_streams`` of the whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rb_dspy import Task, TaskStream, split_streams
from rb_dspy.environments.textworld import TWC, CookingWorld


def objects(task: Task) -> set[str]:
    puts = (action.removeprefix("put ") for action in TWC().oracle(task) if action.startswith("put "))
    return {put.partition(" in ")[0] for put in puts}


def ingredients(task: Task) -> set[str]:
    return set(_recipe(task))


def preparations(task: Task) -> set[str]:
    return {f"{thing}: {', '.join(done)}" for thing, done in _recipe(task).items() if done}


def _recipe(task: Task) -> dict[str, list[str]]:
    """Ingredient -> what is done to it. The cookbook is in the kitchen, so the engine's solution is walked that far."""
    family = CookingWorld()
    walk = family.oracle(task)
    environment = family.make(task)
    try:
        environment.reset(task)
        for action in walk[: walk.index("read cookbook") + 1]:
            seen, _ = environment.step(action)
    finally:
        environment.close()
    listed, _, told = seen.partition("Ingredients:")[2].partition("Directions:")
    found: dict[str, list[str]] = {line.strip(): [] for line in listed.splitlines() if line.strip()}
    for line in told.splitlines():
        done, the, thing = line.strip().partition(" the ")
        if the:
            found[thing].append(done)
    return found


KINDS = {"twc": {"objects": objects}, "cookingworld": {"ingredients": ingredients, "preparations": preparations}}


def _rows(name: str, how: str, compiled: Iterable[Task], held_out: Iterable[Task]) -> None:
    compiled, held_out = list(compiled), list(held_out)
    told = " | ".join(
        f"{' '.join(sorted({str(task.env_args['fold']) for task in part}))} ({len(part)})"
        for part in (compiled, held_out)
    )
    for kind, things_of in KINDS[name].items():
        known = set().union(*map(things_of, compiled))
        asked = [things_of(task) for task in held_out]
        every = set().union(*asked)
        share = len(every & known) / len(every)
        tasks = sum(bool(things & known) for things in asked) / len(asked)
        print(f"| {name}, {how} | {told} | {kind} | {len(every & known)} of {len(every)} ({share:.0%}) | {tasks:.0%} |")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    head = ("stream", "compile: folds (tasks)", "held out: folds (tasks)", "things", "known of them", "tasks with one")
    print(f"| {' | '.join(head)} |")
    print("|---|---|---|---|---|---|")
    for name in KINDS:
        compiled = TaskStream.named(name, n=chosen.tasks // 2, seed=chosen.seed, split="compile")
        held_out = TaskStream.named(name, n=chosen.tasks // 2, seed=chosen.seed, split="held-out")
        _rows(name, "named", compiled, held_out)
        streams = split_streams(TaskStream.named(name, n=chosen.tasks, seed=chosen.seed), seed=chosen.seed)
        _rows(name, "split_streams", streams.compile, streams.held_out)
