"""What a compile says before it starts, and what its result keeps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Compiled, Streams, Task, TaskStream, split_streams
from rb_dspy.compile import measure_compile, plan_compile
from rb_dspy.errors import InputError
from rb_dspy.prompts import load_program, prompts_of
from rb_dspy.stream import fingerprint
from rb_dspy.testing import scripted_lm
from tests.compile.helpers import EVIDENCE, apprentice, compiled_step, locks, program, scaled, streams


def test_the_plan_says_what_is_run_and_what_it_can_show() -> None:
    lm = scripted_lm(apprentice)
    parts = Streams(
        TaskStream("a", locks(2, 9)), TaskStream("b", locks(2, 6, first=2)), TaskStream("c", locks(2, 8, first=4))
    )
    plan = plan_compile(program(lm), parts, budget=60)
    assert lm.engine.prompts == []
    assert (plan.tasks, plan.window) == ({"compile": 18, "dev": 12, "held_out": 16}, 3)
    assert (plan.train, plan.dev) == (6, 4)
    assert plan.detectable == pytest.approx(0.21, abs=0.02)
    text = str(plan)
    assert "6 windows of 3 tasks, 4 of dev" in text
    assert "16 held-out tasks x 8 orders can show a gain of 21 points; 30 tasks: 15" in text
    fewer = plan_compile(program(lm), parts, budget=60, orders=3)
    assert (plan.runs, fewer.runs) == (60 * 3 + 2 * 8 * 28, 60 * 3 + 2 * 3 * 28)
    assert (plan.calls, plan.tokens, plan.cost) == (None, None, None)
    assert "calls and cost are measured on the first 2 tasks" in text
    assert fewer.detectable is not None
    assert fewer.detectable > 0.5
    assert plan_compile(program(lm), parts, budget=60, orders=2).detectable is None
    assert "can show no gain" in str(plan_compile(program(lm), parts, budget=60, orders=2))


def test_a_single_step_costs_less_and_is_scored_in_one_order() -> None:
    whole, judge = (plan_compile(scaled(), streams(), step=step, budget=60) for step in ("all", "judge"))  # type: ignore[arg-type]
    assert judge.runs < whole.runs / 2
    assert (judge.window, judge.train) == (1, 24)
    assert "12 held-out tasks can show" in str(judge)


def test_calls_and_cost_are_measured() -> None:
    lm = scripted_lm(apprentice, model="openai/gpt-4o-mini")
    student, parts = program(lm), streams()
    plan = plan_compile(student, parts)
    measured = measure_compile(plan, student, parts)
    assert (plan.runs, measured.calls) == (measured.runs, round(plan.runs / 2 * len(lm.engine.prompts)))
    assert measured.tokens is not None
    assert measured.tokens > 0
    assert f"{measured.calls:,} calls, {measured.tokens:,} tokens{measured.price}." in str(measured)


def test_the_default_split_of_forty_tasks_can_show_twenty_one_points() -> None:
    tasks = [
        Task(id=f"t{n}", instruction=f"{chr(97 + n % 26)}{n} is what to add to {n * 37}?", env_args={"answer": str(n)})
        for n in range(40)
    ]
    parts = split_streams(TaskStream("forty", tuple(tasks)))
    assert (len(parts.compile), len(parts.dev), len(parts.held_out)) == (16, 8, 16)


def test_progress_goes_through_all_phases_and_only_forward() -> None:
    result, reports = compiled_step("judge")
    phases = list(dict.fromkeys(progress.phase for progress in reports))
    running = [f"running the {part} part" for part in ("compile", "dev", "held_out")]
    assert phases == [*running, "gepa", "scoring dev", "scoring held_out"]
    assert all(a.seconds <= b.seconds and a.metric_calls <= b.metric_calls for a, b in pairwise(reports))
    for phase in phases:
        last = [progress for progress in reports if progress.phase == phase][-1]
        assert last.done == last.total
    assert reports[-1].best == max(candidate.score for candidate in result.candidates) == 1.0
    assert reports[-1].usage["judge"].calls > 0


def test_the_result_comes_back_from_its_file(tmp_path: Path) -> None:
    result, _ = compiled_step("judge")
    result.save(tmp_path / "made.json")
    back = Compiled.load(tmp_path / "made.json")
    assert back == result.model_copy(update={"program": None, "reflection": ""})
    assert back.program is None
    assert back.diff() == result.diff()
    assert f"+{EVIDENCE}" in back.diff()
    assert back.improved is result.improved is True
    assert not result.model_copy(update={"held_out": result.held_out.model_copy(update={"verdict": "NULL"})}).improved
    fresh = program()
    assert back.apply(fresh) is fresh
    assert prompts_of(fresh) == prompts_of(result.program)
    other = program()
    load_program(other, tmp_path / "made.json")
    assert prompts_of(other) == prompts_of(result.program)
    assert "scripted/lm" not in (tmp_path / "made.json").read_text()


def test_the_result_knows_what_each_task_was_used_for() -> None:
    (result, _), parts = compiled_step("judge"), streams()
    renamed = parts.held_out.tasks[0].model_copy(update={"id": "another"})
    assert result.task_parts[fingerprint(renamed)] == "held_out"
    assert result.task_parts[fingerprint(parts.dev.tasks[0])] == "dev"
    assert fingerprint(locks(1, 1, first=20)[0]) not in result.task_parts
    assert result.streams == {
        "compile": parts.compile.digest,
        "dev": parts.dev.digest,
        "held_out": parts.held_out.digest,
    }


@pytest.mark.parametrize("content", [None, "{}", "[1]", "{", '{"format": "rb_dspy compiled", "version": 2}'])
def test_another_file_is_refused(tmp_path: Path, content: Any) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=r"x\.json"):
        Compiled.load(tmp_path / "x.json")
