"""A run as people read it, told by hand."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from rb_dspy import Task
from rb_dspy.backbones.stop import stopping
from rb_dspy.cli.display import Display
from rb_dspy.schema import Step
from rb_dspy.steps import Memory
from rb_dspy.steps.events import EpisodeStarted, Event, MemoryRetrieved, Selected, StepTaken
from rb_dspy.stream import TaskResult

TASK = Task(id="t/1", instruction="Open the chest.")


def shown(*events: Event, several: bool = True) -> list[str]:
    out = io.StringIO()
    display = Display(Console(file=out, width=100, emoji=False, highlight=False), 2, several=several)
    for event in events:
        display.on_event(event)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_what_every_rollout_sees_is_shown_once_and_then_only_what_is_new() -> None:
    lines = shown(
        EpisodeStarted(TASK, "A hall.", "0"),
        EpisodeStarted(TASK, "A hall.", "1"),
        EpisodeStarted(TASK, "A hall.\n\nYou checked your work.", "2"),
    )
    assert [line for line in lines if "sees" in line] == ["sees A hall.", "2·sees You checked your work."]


def test_what_the_task_says_already_is_not_shown_again() -> None:
    assert not any("sees" in line for line in shown(EpisodeStarted(TASK, "Open the chest."), several=False))


def test_a_task_has_one_heading_whatever_is_heard_of_it_first() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=100), 2)
    display.on_event(MemoryRetrieved(TASK, Memory()))
    display.on_event(EpisodeStarted(TASK, "A hall."))
    display.on_result(TaskResult(TASK, error="cut [/x]"))
    display.on_result(TaskResult(TASK.model_copy(update={"id": "t/2"}), error="retrieval broke"))
    headings = [line.split("─")[0].strip() for line in out.getvalue().splitlines() if "─" in line]
    assert headings == ["1/2  t/1", "2/2  t/2"]
    assert "cut [/x]" in out.getvalue()


def test_what_was_given_up_is_told_no_more() -> None:
    stop = threading.Event()
    with stopping(stop):
        assert any("handed in" in line for line in shown(Selected(TASK, "1", "It did.")))
        stop.set()
        assert shown(Selected(TASK, "0", "selector: stopped")) == []


def test_the_lines_of_a_step_stay_together_when_rollouts_come_at_once() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=100), 1, several=True)
    step = Step(thought="Hm.", action="open", observation="It creaks.")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: display.on_event(StepTaken(TASK, 1, step, str(n))), range(40)))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()][2:]
    blocks = [lines[n : n + 3] for n in range(0, len(lines), 3)]
    assert sorted(block[0] for block in blocks) == sorted(f"{n}·step 1 Hm." for n in range(40))
    assert {tuple(block[1:]) for block in blocks} == {("→ open", "It creaks.")}
