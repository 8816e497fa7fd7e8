"""A run as people read it: what each step shows, and the summary."""

from __future__ import annotations

import io
from collections.abc import Sequence

import dspy
import pytest
from rich.text import Text

from rb_dspy import MaTTS, MemoryBank, Outcome, Task, TaskResult, Trajectory, Verdict, run_stream
from rb_dspy.cli.common import SafeConsole
from rb_dspy.cli.display import Display
from rb_dspy.cli.summary import print_summary
from rb_dspy.schema import Label, StopReason
from rb_dspy.stream import RunReport
from rb_dspy.testing import HashEmbedder
from tests.scenarios.world import keypad_rooms, keypads, program

TASK = Task(id="t/1", instruction="Open the chest.")


def printed(out: io.StringIO) -> list[str]:
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def displayed(tasks: Sequence[Task], *, k: int = 1, breaks: tuple[int, ...] = ()) -> list[str]:
    """What a run over ``tasks`` shows."""
    out = io.StringIO()
    display = Display(SafeConsole(file=out, width=100), len(tasks), several=k > 1)
    learner = program(environments=keypad_rooms(breaks))
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank, display.listening():
        run_stream(MaTTS(learner, k=k) if k > 1 else learner, tasks, bank, on_result=display.on_result)
    return printed(out)


def test_every_step_of_a_task_is_shown_under_its_heading() -> None:
    lines = displayed(keypads(2))
    assert [line.split("─")[0].strip() for line in lines if "─" in line] == ["1/2 keypad/Abus/0", "2/2 keypad/Abus/1"]
    second = lines[next(n for n, line in enumerate(lines) if line.startswith("2/2")) :]
    names = ("task", "recalled", "step 1", "verdict success", "learned", "truth solved")
    places = [next(n for n, line in enumerate(second) if line.startswith(name)) for name in names]
    assert places == sorted(places)
    assert "→ 0000" in second
    assert any("the judge agrees" in line for line in second)


def test_steps_of_several_rollouts_have_their_number_and_a_lost_one_says_why() -> None:
    lines = displayed(keypads(1), k=3, breaks=(3,))
    done = [number for number in "012" if any(line.startswith(f"{number}·verdict") for line in lines)]
    assert len(done) == 2
    (lost,) = [line for line in lines if "·lost" in line]
    assert lost[0] not in done
    assert "the keypad has no power" in lost


def test_a_failed_task_shows_its_error_under_its_heading() -> None:
    out = io.StringIO()
    display = Display(SafeConsole(file=out, width=100), 2)
    display.on_result(TaskResult(TASK, error="cut [/x]"))
    display.on_result(TaskResult(TASK.model_copy(update={"id": "t/2"}), error="broken"))
    lines = printed(out)
    assert [line.split("─")[0].strip() for line in lines if "─" in line] == ["1/2 t/1", "2/2 t/2"]
    assert "failed cut [/x]" in lines


@pytest.mark.parametrize(
    ("reason", "shown"), [("max_steps", True), ("context", True), ("unparseable", True), ("done", False)]
)
def test_a_rollout_that_ended_early_says_so(reason: StopReason, shown: bool) -> None:
    out = io.StringIO()
    display = Display(SafeConsole(file=out, width=100), 1)
    task, trajectory = keypads(1)[0], Trajectory(task_id="keypad/Abus/0", stop_reason=reason)
    learner = program()
    learner.act.forward = lambda *args, **kwargs: trajectory
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank, display.listening():
        learner(task=task, bank=bank)
    assert any(line.startswith("ended") for line in printed(out)) == shown


def summed_up(*cases: tuple[Label | None, bool | None], error: str = "") -> list[str]:
    """The summary of tasks of which the judge said this, and the environment that; None: not judged, not known."""
    results = [TaskResult(TASK, error=error)] if error else []
    for label, truth in cases:
        verdict = None if label is None else Verdict(label=label)
        done = dspy.Prediction(trajectory=Trajectory(task_id="t"), verdict=verdict, memory_items=())
        results.append(TaskResult(TASK, done, None if truth is None else Outcome(reward=truth, success=truth)))
    out = io.StringIO()
    print_summary(SafeConsole(file=out, width=100), RunReport("r", results))
    return printed(out)


def test_a_summary_counts_only_what_has_ground_truth() -> None:
    assert not any(line.startswith("solved 0") for line in summed_up(("success", None)))
    assert any(line.startswith("solved 1 of 1") for line in summed_up(("success", True), ("success", None)))


def test_a_summary_says_what_a_judge_that_always_says_the_same_would_reach() -> None:
    lines = summed_up(*[("failure", False)] * 9, ("failure", True))
    assert any(line.startswith("judge agreement 9 of 10") for line in lines)
    assert any("always says the same: 90%" in line for line in lines)
    assert any(line.startswith("unknown verdicts 1") for line in summed_up(("unknown", True)))


def test_a_summary_counts_failed_tasks() -> None:
    lines = summed_up(("success", True), error="no server")
    assert any(line.startswith("solved 1 of 1") for line in lines)
    assert any(line.startswith("failed 1 task") for line in lines)


def test_what_a_terminal_would_execute_is_shown_as_escapes() -> None:
    out = io.StringIO()
    SafeConsole(file=out, width=40, force_terminal=True).print(Text("a\x1b[31m\x9b2J\u202eb \u200dc", "bold"))
    assert "a\\x1b[31m\\x9b2J\\u202eb \u200dc" in out.getvalue()
    assert out.getvalue().startswith("\x1b[1m"), "the console's own codes stay"
