"""What learning from a task costs: two calls, one call, and no distiller where nothing new was said.

Run: ``python experiments/cost.py`` (about an hour on two cores; an arm that is complete is not run again). Rows:
``experiments/evidence/cost.jsonl``; ``--table`` only prints them. Temperature 0; one arm after another, with a bank
of its own each, over the same order of tasks.

Streams: ``directory`` and ``again`` (another seed), 16 alerts each; ``steps``, 6 questions of ``sql`` with up to three
queries each; ``sql``, 24 of one query each. Arms: ``none``, the bare agent; ``two_calls``, judge, then distiller;
``one_call``; ``skip_known``, two calls, but no distiller after a success that said nothing new.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task, TaskResult, TaskStream, run_stream
from rb_dspy.config import ProgramConfig, RetrieveConfig
from rb_dspy.plugins import environment_family, family_attribute

ROWS = Path(__file__).parent / "evidence" / "cost.jsonl"
SIZES = {"directory": 16, "steps": 6, "sql": 24, "again": 16}
SEEDS = {"directory": 461, "steps": 462, "sql": 463, "again": 464}
"""Chosen, as the sizes, before any run; no other experiment used them."""
ARMS = {
    "none": ProgramConfig(retrieve=RetrieveConfig(k=0)),
    "two_calls": ProgramConfig(),
    "one_call": ProgramConfig(learn="one_call"),
    "skip_known": ProgramConfig(skip_known=True),
}


def tasks_of(stream: str, number: int | None) -> list[Task]:
    family = environment_family("directory" if stream in ("directory", "again") else "sql")
    tasks = list(itertools.islice(family.tasks(seed=SEEDS[stream]), number or SIZES[stream]))
    if stream == "steps":
        tasks = [task.model_copy(update={"env_args": {**task.env_args, "queries": 3}}) for task in tasks]
    return tasks


def measure(stream: str, arm: str, model: Any, number: int | None, path: Path) -> list[dict[str, Any]]:
    """Run one arm over a stream, and append one row a task to ``path``."""
    rows: list[dict[str, Any]] = []
    program = ReasoningBank(ARMS[arm], backbones=Backbones(agent=model))
    with MemoryBank.open(None, scope=arm) as bank:

        def add(result: TaskResult) -> None:
            rows.append({"stream": stream, "arm": arm, **row(result, bank)})
            print(json.dumps(rows[-1]), flush=True)

        tasks = TaskStream(stream, tasks_of(stream, number))
        run_stream(program, tasks, bank, learn=arm != "none", on_result=add, stop_after=None)
    with path.open("a") as file:
        file.write("".join(f"{json.dumps(each)}\n" for each in rows))
    return rows


def row(result: TaskResult, bank: MemoryBank) -> dict[str, Any]:
    """``kept``: whether the bank holds the fact of the task after it, by ``keeps_fact`` of its family."""
    keeps = family_attribute(result.task.env, "keeps_fact", None)
    experience = result.prediction.experience if result.prediction is not None else None
    texts = [f"{item.title} {item.content}" for item in bank.items()]
    tokens = {role: used.prompt_tokens + used.completion_tokens for role, used in result.usage.items()}
    every = result.row()
    return {name: every[name] for name in ("task", "solved", "judge_agrees", "steps", "answer", "error")} | {
        "kept": any(keeps(result.task, text) for text in texts),
        "lessons": [item.content for item in experience.items] if experience else [],
        "note": experience.note if experience else "",
        "calls": {role: used.calls for role, used in result.usage.items()},
        "seconds": round(sum(used.seconds for used in result.usage.values()), 1),
        "tokens": tokens,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| stream | arm | solved | judge right | facts kept | not distilled | tokens a task | agent, judge, distiller"
        " | of the bare agent |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for stream in SIZES:
        of_stream = {arm: [each for each in rows if (each["stream"], each["arm"]) == (stream, arm)] for arm in ARMS}
        for arm, each in of_stream.items():
            if each:
                roles = [_mean(each, role) for role in ("agent", "judge", "distiller")]
                judged = [one["judge_agrees"] for one in each if one["judge_agrees"] is not None]
                skipped = sum(one["note"].startswith("nothing new") for one in each)
                bare = _mean(of_stream["none"], "agent")
                lines.append(
                    f"| {stream} | {arm} | {_of([one['solved'] for one in each])} | {_of(judged)}"
                    f" | {_of([one['kept'] for one in each])} | {skipped} | {sum(roles):,.0f}"
                    f" | {', '.join(f'{role:,.0f}' for role in roles)} | {sum(roles) / bare if bare else 0:.2f} |"
                )
    return "\n".join(lines)


def _mean(rows: Sequence[dict[str, Any]], role: str) -> float:
    return sum(each["tokens"].get(role, 0) for each in rows) / max(1, len(rows))


def _of(values: Sequence[bool | None]) -> str:
    return f"{sum(map(bool, values))} of {len(values)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="*", help=f"of {', '.join(SIZES)}; all, if none is given")
    parser.add_argument("--arms", default=",".join(ARMS), help="of these, with commas between")
    parser.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    parser.add_argument("--number", type=int, help="tasks of a stream, instead of the number that was chosen")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.exists() else []
    done = {(each["stream"], each["arm"]) for each in rows}
    for stream in () if options.table else options.streams or SIZES:
        for arm in options.arms.split(","):
            if (stream, arm) not in done:
                rows += measure(stream, arm, options.model, options.number, options.rows)
        print(table(rows), flush=True)
    if options.table:
        print(table(rows))


if __name__ == "__main__":
    main()
