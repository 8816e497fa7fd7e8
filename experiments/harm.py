"""Whether memory does harm: the same notes shown in today's way and in the way before, and no notes at all.

Run: ``python experiments/harm.py directory sql tickets`` (hours on two cores; resumable). Nothing is learned while
tasks are answered, so all arms of a task see the same notes. Rows: ``experiments/evidence/harm.jsonl``.

- ``directory``, ten seeds: notes are distilled from alerts 1 to 8, each answered wrong; alerts 9 to 16 are answered.
- ``sql``, three seeds, 24 questions: a question is answered with the notes of all questions before it.
- ``tickets``, 20 of them: as in the README's example, five kinds in four wordings; no statement names its subject. A
  ticket is answered with the notes of all tickets before it.

Arms: ``none``; ``before``: the distiller's words, four notes above a cosine of 0.25; ``now``: the defaults.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rb_dspy import Backbones, MemoryBank, Task
from rb_dspy.concurrency import run_parallel
from rb_dspy.config import DistillConfig, RetrieveConfig
from rb_dspy.environments import make_environment
from rb_dspy.errors import UnparseableOutput
from rb_dspy.plugins import environment_family
from rb_dspy.schema import MemoryDraft, Step, Trajectory, Verdict
from rb_dspy.steps import Act, Distill, Memory, Retrieve

ROWS = Path(__file__).parent / "evidence" / "harm.jsonl"
SEEDS = {"directory": range(111, 121), "sql": range(111, 114), "tickets": range(1)}
"""Chosen before any run. Seeds 101 and 102 of ``directory`` were looked at while the defaults were chosen."""
ARMS = {
    "none": RetrieveConfig(k=0),
    "before": RetrieveConfig(min_score=0.25, min_share=0.0),
    "now": RetrieveConfig(),
}
KINDS = {
    "Q-REFUND": (
        "I was charged twice for order {}.",
        "My card was billed two times, order {}.",
        "Order {} was paid double, give me the money back.",
        "You took the money for order {} twice.",
    ),
    "Q-LOGIN": (
        "My password does not work any more.",
        "I forgot my password and cannot sign in.",
        "The page says that my password is invalid.",
        "How do I set a new password?",
    ),
    "Q-SHIP": (
        "Where is my parcel with order {}?",
        "Order {} has not arrived yet.",
        "The tracking of order {} has not moved for a week.",
        "When will order {} be delivered?",
    ),
    "Q-BROKEN": (
        "The lamp arrived with a broken glass.",
        "My chair came damaged.",
        "The screen of my tablet was cracked in the box.",
        "A leg of the table was broken when I opened it.",
    ),
    "Q-CANCEL": (
        "Please cancel my subscription.",
        "I want to end my plan.",
        "Stop my membership at the end of the month.",
        "How can I quit the subscription?",
    ),
}


def tickets() -> list[Task]:
    """Four rounds of five tickets. Each round has every queue once."""
    return [
        Task(
            id=f"ticket/{number}/{queue}",
            instruction=f"{wordings[number].format(64115 + 7 * number)} Which queue? Answer with its code only.",
            env_args={"answer": queue, "reveal": "answer"},
        )
        for number in range(4)
        for queue, wordings in KINDS.items()
    ]


def tasks_of(stream: str, seed: int) -> list[Task]:
    if stream == "tickets":
        return tickets()
    number = {"directory": 16, "sql": 24}[stream]
    return list(itertools.islice(environment_family(stream).tasks(seed=seed), number))


def wrong_rollout(task: Task) -> Trajectory:
    """A wrong answer to ``task``, and what the environment said to it."""
    args: dict[str, Any] = task.env_args
    answer = {"sql": "SELECT count(*) FROM orders WHERE state = 'x'"}.get(task.env, "I do not know.")
    if task.env == "directory":
        answer = next(team for team in args["teams"] if team != args["owner"])
    environment = make_environment(task, "0")
    first = environment.reset(task)
    observation, _ = environment.step(answer)
    environment.close()
    steps = (Step(action=answer, observation=observation),)
    return Trajectory(task_id=task.id, steps=steps, answer=answer, first_observation=first)


def measure(stream: str, seed: int, arm: str, done: set[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Answer the tasks of one arm that are not done, four at once, and return a row for each."""
    tasks = tasks_of(stream, seed)
    first = 8 if stream == "directory" else 0
    todo = [number for number in range(first, len(tasks)) if (stream, str(seed), tasks[number].id, arm) not in done]
    if not todo:
        return []
    taught = [] if arm == "none" else tasks[:8] if stream == "directory" else tasks
    distill = Distill(DistillConfig(own_words=arm == "now"))
    lessons = _together([partial(learn, distill, task) for task in taught])
    retrieve, memories = Retrieve(ARMS[arm]), []
    with MemoryBank.open(None, scope=arm) as bank:
        for number, task in enumerate(tasks):
            memories.append(retrieve(task, bank))
            for draft in lessons[number] if number < len(lessons) else ():
                bank.add(draft.title, draft.content, draft.description)
    rows = _together([partial(answered, tasks[number], memories[number]) for number in todo])
    return [{"stream": stream, "seed": seed, "arm": arm, **row} for row in rows]


def learn(distill: Distill, task: Task) -> Sequence[MemoryDraft]:
    """The notes from a wrong answer to ``task``; none if the distiller's answer cannot be parsed."""
    try:
        drafts: Sequence[MemoryDraft] = distill(
            task.without_ground_truth(), wrong_rollout(task), Verdict(label="failure")
        ).drafts
    except UnparseableOutput:
        return ()
    return drafts


def answered(task: Task, memory: Memory) -> dict[str, Any]:
    """Run the agent on ``task``, and score it."""
    rollout = Act()(task, memory, make_environment)
    tokens = sum(each.prompt_tokens for each in rollout.usage.values())
    shown = [f"{item.title}: {item.content}" for item in memory.items]
    return {"task": task.id, "solved": solved(task, rollout.answer), "answer": rollout.answer, "shown": shown} | {
        "prompt_tokens": tokens
    }


def _together(jobs: list[Callable[[], Any]]) -> list[Any]:
    results = run_parallel(jobs, 4)
    for each in results:
        if isinstance(each, Exception):
            raise each
    return results


def solved(task: Task, answer: str | None) -> bool:
    """Whether the environment accepts ``answer``."""
    environment = make_environment(task, "0")
    environment.reset(task)
    environment.step(answer or "")
    outcome = environment.outcome()
    environment.close()
    return outcome is not None and outcome.success


def table(rows: list[dict[str, Any]]) -> str:
    """Solved tasks per seed and arm."""
    counts: Counter[tuple[str, int, str]] = Counter()
    asked: Counter[tuple[str, int]] = Counter()
    for row in rows:
        counts[row["stream"], row["seed"], row["arm"]] += row["solved"]
        asked[row["stream"], row["seed"]] += row["arm"] == "now"
    lines = [f"| stream | seed | tasks | {' | '.join(ARMS)} |", f"|---|---|---|{'---|' * len(ARMS)}"]
    for (stream, seed), number in sorted(asked.items()):
        numbers = " | ".join(str(counts[stream, seed, arm]) for arm in ARMS)
        lines.append(f"| {stream} | {seed} | {number} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+", choices=SEEDS)
    parser.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    parser.add_argument("--seeds", type=int, nargs="*", help="instead of those that were chosen")
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.exists() else []
    done = {(row["stream"], str(row["seed"]), row["task"], row["arm"]) for row in rows}
    with Backbones(agent=options.model).use(), options.rows.open("a") as file:
        for stream in options.streams:
            for seed in options.seeds or SEEDS[stream]:
                for arm in ARMS:
                    for row in measure(stream, seed, arm, done):
                        rows.append(row)
                        print(json.dumps(row), file=file, flush=True)
                print(table(rows), flush=True)


if __name__ == "__main__":
    main()
