"""How near a lesson has to be: floors and shares of the best score, without a language model.

Run: ``python experiments/retrieval.py`` (a minute). Results are in ``LOG.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from rb_dspy.embedder import minilm
from rb_dspy.plugins import environment_family

TITLES = (
    "Who owns the service {service}?",
    "The service {service} is owned by team {owner}.",
    "Owner of the service {service}",
    "Service owner",
)
"""Titles as the 1.5b model writes them, in turn."""

Ranked = list[tuple[float, bool]]
"""The lessons in the bank when a task is done: score, and whether the task needs it."""


def directory(seeds: Iterable[int]) -> tuple[list[Ranked], list[Ranked]]:
    """Alerts 1 to 8 and 9 to 16 of each seed, with the facts of the alerts before them."""
    first, second = [], []
    for seed in seeds:
        tasks = list(itertools.islice(environment_family("directory").tasks(seed=seed), 16))
        facts = [task.env_args for task in tasks[:8]]
        notes = [
            (TITLES[(number + seed) % 4] + "\nThe service {service} is owned by team {owner}.").format(**fact)
            for number, fact in enumerate(facts)
        ]
        scores = minilm().embed([task.instruction for task in tasks]) @ minilm().embed(notes).T
        for number, task in enumerate(tasks):
            known = range(min(number, 8))
            ranked = [(float(scores[number, i]), facts[i]["service"] == task.env_args["service"]) for i in known]
            (first if number < 8 else second).append(ranked)
    return first, second


def sql(seeds: Iterable[int]) -> list[Ranked]:
    """24 questions of each seed, with the facts of the questions before them."""
    rows = []
    for seed in seeds:
        known: list[str] = []
        for task in itertools.islice(environment_family("sql").tasks(seed=seed), 24):
            needed = [fact.strip() for fact in str(task.env_args["evidence"]).split(";")]
            if known:
                notes = [f"{fact[:60]}\n{fact}." for fact in known]
                scores = minilm().embed(notes) @ minilm().embed([task.instruction])[0]
                rows.append([(float(score), fact in needed) for score, fact in zip(scores, known, strict=True)])
            known += [fact for fact in needed if fact not in known]
    return rows


def shown(tasks: list[Ranked], floor: float, share: float) -> tuple[int, int, int]:
    """Tasks with lessons, needed lessons shown, and others shown."""
    with_lessons = needed = others = 0
    for ranked in tasks:
        best = [each for each in sorted(ranked, reverse=True)[:4] if each[0] >= floor]
        best = [each for each in best if each[0] >= share * best[0][0]]
        with_lessons += bool(best)
        needed += sum(is_needed for _, is_needed in best)
        others += sum(not is_needed for _, is_needed in best)
    return with_lessons, needed, others


def main() -> None:
    first, second = directory(range(30, 60))
    questions = sql(range(1, 7))
    print("floor share | first half: with lessons | second half: right, others | sql: needed, others")
    for floor, share in itertools.product((0.25, 0.30, 0.35), (0.0, 0.65, 0.70, 0.75)):
        counts = [shown(tasks, floor, share) for tasks in (first, second, questions)]
        print(f"{floor:.2f} {share:.2f} | {counts[0][0]} | {counts[1][1:]} | {counts[2][1:]}")


if __name__ == "__main__":
    main()
