"""How well lessons keep facts from the environment, and how well later tasks retrieve them.

Run: ``python experiments/facts.py --model local/qwen2.5-coder-1.5b`` (about an hour on two cores; resumable), and
``--compile`` to compile the distiller's prompts with GEPA on the first half and compare on the second.

60 trajectories are recorded without a language model, from seeds: owners (``directory``), codes (``sql``), corrections
(``question`` with ``reveal``), preconditions (``bfcl``). The judge gives its verdict, the distiller writes lessons with
both sets of prompts. A fact is kept if some lesson has all its words; it is found if a later task that needs the same
fact retrieves such a lesson among four. Results: ``experiments/evidence/facts.jsonl``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dspy

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task
from rb_dspy.config import DistillConfig, RetrieveConfig
from rb_dspy.environments import make_environment
from rb_dspy.plugins import environment_family
from rb_dspy.schema import MemoryDraft, Step, Trajectory, Verdict
from rb_dspy.steps import Distill, Judge, Retrieve

FOLDER = Path(__file__).parent / "evidence"
SEED = 20261123
Prompts = Literal["facts", "general"]

RULES = (
    ("In which format do we send invoices to town halls?", "XRechnung", "A town hall wants its invoice. Which format?"),
    (
        "What is the limit of attachments in a ticket, in megabytes?",
        "12",
        "How many megabytes may a ticket's files have?",
    ),
    ("How many days may a trial account stay idle?", "21", "After how many idle days is a trial account closed?"),
    ("Which queue gets complaints about broken screens?", "Q-GLASS", "A screen arrived broken. Which queue?"),
    ("Where do we store signed contracts?", "vault-north", "A contract was signed. Where does it go?"),
    ("Which tax rate do we use for books, in percent?", "7", "A customer buys books. Which rate of tax, in percent?"),
    ("At which hour does the warehouse stop packing?", "16", "Until which hour does the warehouse pack?"),
    ("Which form does a customer need for a return from Norway?", "CN23", "A Norwegian sends goods back. Which form?"),
)
"""House rules: a question, its answer, and a later question with the same answer."""

CONDITIONS = {"startEngine": ("lock", "brake"), "cd": ("one", "folder"), "mv": ("path",), "find": ("path",)}


@dataclass(frozen=True)
class Record:
    """A trajectory, the words of the fact that it shows, and a later task that needs the fact."""

    kind: str
    task: Task
    trajectory: Trajectory
    success: bool
    facts: tuple[tuple[str, ...], ...]
    later: Task

    def kept_in(self, drafts: Sequence[Any]) -> bool:
        """Whether some lesson has all words of some fact."""
        return any(_has(f"{draft.title} {draft.content}", words) for draft in drafts for words in self.facts)


def _has(text: str, words: Sequence[str]) -> bool:
    have = set(re.findall(r"[\w-]+", text.casefold()))
    return all(any(each.startswith(word.casefold()) for each in have) for word in words)


def played(task: Task, actions: Sequence[str]) -> tuple[Trajectory, bool]:
    """The rollout of these actions, and whether it succeeded."""
    environment = make_environment(task, "0")
    first, steps = environment.reset(task), []
    for action in actions:
        observation, done = environment.step(action)
        steps.append(Step(action=action, observation=observation))
        if done:
            break
    outcome = environment.outcome()
    assert outcome is not None
    answer = environment.answer()
    environment.close()
    trajectory = Trajectory(task_id=task.id, steps=tuple(steps), answer=answer, first_observation=first)
    return trajectory, outcome.success


def records() -> list[Record]:
    """The 60 trajectories, the kinds in turn; a third are successes."""
    kinds = (_owners(), _codes(), _rules(), _conditions())
    return [each for group in itertools.zip_longest(*kinds) for each in group if each is not None]


def _owners() -> Iterator[Record]:
    family = environment_family("directory")
    tasks = list(itertools.islice(family.tasks(seed=SEED), 36))
    for number in range(18):
        task = tasks[number]
        args = task.env_args
        later = next(each for each in tasks[number + 1 :] if each.env_args["service"] == args["service"])
        action = family.oracle(task)[0] if number % 3 == 0 else next(t for t in args["teams"] if t != args["owner"])
        yield Record("owner", task, *played(task, [action]), ((args["service"], args["owner"]),), later)


def _codes() -> Iterator[Record]:
    family = environment_family("sql")
    tasks = list(family.tasks(seed=SEED))
    number = 0
    for place, task in enumerate(tasks):
        facts = tuple(re.findall(r"(\w+)'? means (\w+)", task.env_args["evidence"]))
        later = [
            each
            for each in tasks[place + 1 :]
            if any(f"means {fact[1]}" in each.env_args["evidence"] for fact in facts)
        ]
        if number < 18 and facts and later:
            action = family.oracle(task)[0] if number % 3 == 0 else "SELECT count(*) FROM orders WHERE state = 'x'"
            yield Record("code", task, *played(task, [action]), facts, later[0])
            number += 1


def _rules() -> Iterator[Record]:
    """Wrong answers only: the environment reveals nothing new after a right one."""
    for number, (question, answer, question_later) in enumerate(RULES):
        task = Task(id=f"rule/{number}", instruction=question, env_args={"answer": answer, "reveal": "answer"})
        later = Task(id=f"rule/{number}/later", instruction=question_later, env_args={"answer": answer})
        yield Record("rule", task, *played(task, ["It depends on the case."]), ((answer,),), later)


def _conditions() -> Iterator[Record]:
    """Gold calls without the conditions first, then with them: the errors state the conditions."""
    family = environment_family("bfcl")
    tasks = list(family.tasks(seed=SEED, templates=["VehicleControlAPI", "GorillaFileSystem"]))
    rng = random.Random(SEED)
    rng.shuffle(tasks)
    count = 0
    for place, task in enumerate(tasks):
        gold = family.oracle(task)
        hard = [each for each in gold if each.startswith("startEngine")]
        later = [
            each for each in tasks[place + 1 :] if any(call.startswith("startEngine") for call in family.oracle(each))
        ]
        if hard and later and count < 16:
            wrong = hard if count % 2 else [*hard, "pressBrakePedal(pedalPosition=0.5)", *hard]
            actions = [*wrong, "ANSWER: done"] if count % 3 else [*wrong, *gold]
            trajectory, success = played(task, actions)
            if any("error" in step.observation for step in trajectory.steps):
                yield Record(
                    "condition", task, trajectory, success, (("engine", "lock"), ("engine", "brake")), later[0]
                )
                count += 1


def distilled(distill: Distill, record: Record) -> list[MemoryDraft]:
    """The lessons of a record under its true verdict, so that prompts are compared and not judges."""
    verdict = Verdict(label="success" if record.success else "failure", reasons="")
    try:
        return list(distill(record.task, record.trajectory, verdict).drafts)
    except Exception as exc:  # noqa: BLE001 (an answer that cannot be parsed teaches nothing, and counts)
        print(f"  {record.task.id}: {exc}", flush=True)
        return []


def measured(name: str, distill: Distill, every: Sequence[Record], path: Path) -> list[dict[str, Any]]:
    """One row per record: facts kept, and found by the later task in a bank of all lessons of this arm."""
    done = {row["task"]: row for row in _rows(path) if row["arm"] == name}
    for record in every:
        if record.task.id not in done:
            drafts = distilled(distill, record)
            row = {"arm": name, "kind": record.kind, "task": record.task.id, "kept": record.kept_in(drafts)}
            row["lessons"] = [draft.model_dump() for draft in drafts]
            _append(path, row)
            done[record.task.id] = row
            print(f"{name}: {len(done)} of {len(every)}: {record.task.id}: kept {row['kept']}", flush=True)
    rows = [done[record.task.id] for record in every]
    with MemoryBank.open(None, scope="facts") as bank:
        for record, row in zip(every, rows, strict=True):
            drafts = [MemoryDraft(**each) for each in row["lessons"]]
            verdict = Verdict(label="success" if record.success else "failure", reasons="")
            bank.append(record.task, record.trajectory, verdict, drafts)
        retrieve = Retrieve(RetrieveConfig())
        return [
            {**row, "found": rec.kept_in(retrieve(rec.later, bank).items)} for rec, row in zip(every, rows, strict=True)
        ]


def judged(judge: Judge, every: Sequence[Record], path: Path) -> list[dict[str, Any]]:
    """One row per record: the verdict and the ground truth."""
    done = {row["task"]: row for row in _rows(path) if row["arm"] == "judge"}
    for record in every:
        if record.task.id not in done:
            label = judge(record.task, record.trajectory).label
            row = {"arm": "judge", "kind": record.kind, "task": record.task.id, "label": label, "truth": record.success}
            _append(path, row)
            done[record.task.id] = row
    return [done[record.task.id] for record in every]


def compiled(distill: Distill, train: Sequence[Record], budget: int, reflection: Any, path: Path) -> Distill:
    """The distiller with prompts that GEPA wrote, by whether the fact was kept; read from ``path`` if it exists."""
    if path.exists():
        distill.load(path)
        return distill
    examples = [
        dspy.Example(
            task=each.task,
            trajectory=each.trajectory,
            verdict=Verdict(label="success" if each.success else "failure", reasons=""),
            record=each,
        ).with_inputs("task", "trajectory", "verdict")
        for each in train
    ]

    def metric(example: Any, said: Any, *_: Any) -> Any:
        kept = example.record.kept_in(said.drafts)
        fact = " or ".join(" ... ".join(words) for words in example.record.facts)
        notes = " | ".join(draft.content for draft in said.drafts) or "nothing"
        feedback = "The fact was kept." if kept else f"The notes must say, in these words: {fact}. They say: {notes}"
        return dspy.Prediction(score=float(kept), feedback=feedback)

    optimizer = dspy.GEPA(
        metric=metric, max_metric_calls=budget, reflection_lm=reflection, num_threads=1, failure_score=0.0
    )
    half = len(examples) // 2
    made: Distill = optimizer.compile(distill, trainset=examples[:half], valset=examples[half:])
    made.save(path)
    return made


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps(row), file=file)


def _table(rows: Sequence[dict[str, Any]], key: str) -> str:
    kinds = sorted({row["kind"] for row in rows})
    parts = [(kind, [bool(row[key]) for row in rows if row["kind"] == kind]) for kind in kinds]
    return "; ".join(
        f"{kind} {sum(each)} of {len(each)}" for kind, each in [*parts, ("all", [bool(r[key]) for r in rows])]
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    parser.add_argument(
        "--compile", type=int, default=0, metavar="BUDGET", help="metric calls of GEPA; 0: do not compile"
    )
    options = parser.parse_args()
    every = records()
    path = FOLDER / "facts.jsonl"
    print(f"{len(every)} trajectories, {sum(each.success for each in every)} successes")
    program = ReasoningBank(backbones=Backbones(agent=options.model))
    with program.backbones.use():
        rows = judged(program.judge, every, path)
        print(
            "judge right:",
            _table([{**row, "right": (row["label"] == "success") == row["truth"]} for row in rows], "right"),
        )
        arms = {name: Distill(DistillConfig(prompts=name)) for name in ("facts", "general")}
        held_out = every[1::2]
        if options.compile:
            reflection = program.backbones.lm("distiller").copy(temperature=1.0)
            for name in list(arms):
                distill = Distill(DistillConfig(prompts=name))
                state = FOLDER / f"facts-{name}-compiled.json"
                arms[f"{name}, compiled"] = compiled(distill, every[::2], options.compile, reflection, state)
        for name, distill in arms.items():
            rows = measured(name, distill, held_out if "compiled" in name else every, path)
            print(f"{name}: kept: {_table(rows, 'kept')}")
            print(f"{name}: found: {_table(rows, 'found')}")
            if options.compile:
                halves = [row for row in rows if row["task"] in {each.task.id for each in held_out}]
                print(f"{name}, held out: kept: {_table(halves, 'kept')}", flush=True)


if __name__ == "__main__":
    main()
