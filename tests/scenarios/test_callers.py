"""An agent that breaks on a quarter of its tasks counts the same for everyone who runs tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest

from rb_dspy import (
    Backbones,
    MemoryBank,
    ProgramConfig,
    ReasoningBank,
    StreamProgram,
    Streams,
    TaskStream,
    compile_program,
    evaluate,
    run_stream,
    save_program,
)
from rb_dspy.schema import Task
from rb_dspy.testing import HashEmbedder, scripted_lm
from rb_dspy.tracking.served import ServedProgram, TaskIn
from tests.served import Served, cli as cli, served as served


def sums(*numbers: int) -> list[Task]:
    return [
        Task(id=f"sum/{n}", template=f"t{n}", instruction=f"What is {n} and 5?", env_args={"answer": str(n + 5)})
        for n in numbers
    ]


TASKS = sums(*range(1, 9))
COUNTED = (6, 8, 2)
"""Solved, scored, broke: the server refuses the agent's call for two of eight tasks."""


class Callers:
    """Each method runs the tasks in its own way, and returns solved, scored and broke."""

    def __init__(self, cli: Any, served: Served) -> None:
        self.cli = cli
        agent = dspy.LM("openai/scripted", api_base=f"http://127.0.0.1:{served.port}/v1", api_key="a-key", cache=False)
        self.program = ReasoningBank(backbones=Backbones(agent=agent))
        Path("eight.jsonl").write_text("".join(f"{task.model_dump_json()}\n" for task in TASKS))

    def stream(self) -> tuple[int, ...]:
        return run_stream(self.program, TASKS, MemoryBank.open(None, scope="s", embedder=HashEmbedder())).score()

    def journal(self) -> tuple[int, ...]:
        bank = MemoryBank.open(None, scope="s", embedder=HashEmbedder())
        return run_stream(self.program, TASKS, bank, run_id="one", journal="runs").score()

    def evaluation(self) -> tuple[int, ...]:
        report = evaluate(["none", "bank"], TASKS, program=self.program, orders=1, embedder=HashEmbedder())
        found = {(arm.success.mean, arm.runs, arm.errors) for arm in report.arms.values() if arm.success is not None}
        [(success, runs, errors)] = found
        return round(success * runs), runs, errors

    def command(self) -> tuple[int, ...]:
        summary = self._last("run", "eight.jsonl", "--json")["summary"]
        return summary["solved"], summary["scored"], summary["broke"]

    def both(self) -> tuple[int, ...]:
        found = self._last("run", "eight.jsonl", "--memory", "both", "--json")["comparison"]
        assert [found[name] for name in ("without", "scored", "without_broke")] == list(COUNTED)
        return found["with"], found["scored"], found["with_broke"]

    def stream_program(self) -> tuple[int, ...]:
        done = StreamProgram(self.program, embedder=HashEmbedder())(stream=TaskStream("eight", TASKS))
        assert done.score == 0.75
        score: tuple[int, ...] = done.report.score()
        return score

    def compiled(self) -> tuple[int, ...]:
        """The held-out part is the eight tasks; nothing is improved."""
        others = TaskStream("a", sums(13, 14, 15)), TaskStream("b", sums(23, 24, 25))
        parts = Streams(*others, TaskStream("eight", TASKS), check=False)
        found = compile_program(
            self.program, parts, step="all", budget=9, orders=1, window=1, embedder=HashEmbedder(),
            reflection=scripted_lm(lambda prompt: dict.fromkeys(prompt.wants, "Add.")),
        ).held_out  # fmt: skip
        return round(found.before * found.tasks), found.tasks, found.errors_before

    def served(self) -> tuple[int, ...]:
        save_program(self.program, "state.json")
        config = {"program": ProgramConfig().model_dump(mode="json"), "matts": None, "environments": None}
        model = ServedProgram()
        place = {"scope": "s", "embedder": "hash", "backbones": {}}
        model.load_context(SimpleNamespace(model_config=config | place, artifacts={"state": "state.json"}))
        assert self.program.backbones is not None
        model.use(self.program.backbones)
        answers = model.predict([TaskIn(instruction=task.instruction, id=task.id) for task in TASKS])
        right = sum(each.answer == task.env_args["answer"] for each, task in zip(answers, TASKS, strict=True))
        return right, len(answers), sum(bool(each.error) for each in answers)

    def _last(self, *args: str) -> dict[str, Any]:
        _, out, _ = self.cli(*args)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


@pytest.mark.parametrize(
    "caller",
    [each for name, each in vars(Callers).items() if not name.startswith("_")],
    ids=lambda each: each.__name__,
)
def test_a_broken_task_is_a_task_not_solved(
    caller: Callable[[Callers], tuple[int, ...]], cli: Any, served: Served
) -> None:
    breaks = ("What is 2 and", "What is 6 and")
    served.refuse = lambda prompt: 400 if "action" in prompt.wants and any(b in prompt.text for b in breaks) else None
    assert caller(Callers(cli, served)) == COUNTED
