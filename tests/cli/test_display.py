"""A run as people read it, told by hand."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from rich.console import Console

from rb_dspy import Task
from rb_dspy.backbones.stop import stopping
from rb_dspy.cli.display import Display
from rb_dspy.cli.summary import print_summary
from rb_dspy.cli.work.results import as_json
from rb_dspy.schema import Experience, Label, MemoryItem, Outcome, Provenance, Step, StopReason, Trajectory, Verdict
from rb_dspy.steps import Memory
from rb_dspy.steps.events import EpisodeStarted, Event, Judged, MemoryRetrieved, Selected, StepTaken
from rb_dspy.steps.memory import shown_before
from rb_dspy.stream import RunReport, TaskResult, TaskStream

PROVENANCES = (Provenance(experience_id="e", task_id="t"),)

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


def test_what_is_loaded_before_the_first_task_is_the_embedder() -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=100, force_terminal=True), 1):
        pass
    assert "loading the embedder, then looking for lessons" in out.getvalue()


LESSON = {"scope": "s", "seq": 1, "title": "Look", "description": "Always.", "content": "Look.", "polarity": "success"}


def summed_up(*givers: tuple[str, ...], outcome: Outcome | None = None) -> dict[str, str]:
    """The summary of tasks, each of which gave lessons that were learned from these experiences first, by name."""
    results = []
    for number, those in enumerate(givers):
        items = tuple(
            MemoryItem(id=f"m{n}", provenances=(Provenance(experience_id=giver, task_id="t"),), **LESSON)
            for n, giver in enumerate(those)
        )
        done = dspy.Prediction(
            trajectory=Trajectory(task_id="t"),
            verdict=Verdict(label="success"),
            memory_items=items,
            experience=Experience(id=f"e{number}", scope="s", seq=1, task=TASK, trajectories=(), verdicts=()),
        )
        results.append(TaskResult(TASK, done, outcome))
    out = io.StringIO()
    print_summary(Console(file=out, width=100), RunReport("r", results))
    rows = (line.split("  ", 1) for line in out.getvalue().splitlines() if "  " in line)
    return {name: told.strip() for name, told in rows}


def test_a_summary_says_which_lessons_were_known() -> None:
    assert summed_up(("e0",), ("e1", "e1"))["lessons learned"] == "3"
    assert summed_up(("e0",), ("e0", "e1"))["lessons learned"] == "3, of which 1 was known"
    assert summed_up(("before", "before"), ("e1",))["lessons learned"] == "3, of which 2 were known"


def test_a_summary_without_ground_truth_says_so() -> None:
    told = summed_up(("e0",))
    assert told["solved"] == "not known: no task was scored by ground truth"
    assert told["judge agreement"] == "not known: no verdict on a task that was scored"
    told = summed_up(("e0",), outcome=Outcome(reward=1, success=True))
    assert told["solved"] == "1 of 1 task, by ground truth (100%)"


def test_a_summary_tells_the_steps_of_what_was_solved_beside_all() -> None:
    assert summed_up(("e0",))["mean steps"] == "0.0"
    assert summed_up(("e0",), outcome=Outcome(reward=0, success=False))["mean steps"] == "0.0"
    assert summed_up(("e0",), outcome=Outcome(reward=1, success=True))["mean steps"] == "0.0, of the 1 solved 0.0"


def told_of_judge(*cases: tuple[Label, bool | None]) -> list[str]:
    """The summary of tasks of which the judge said this, and the environment that; None: nobody knows."""
    results = []
    for label, truth in cases:
        done = dspy.Prediction(trajectory=Trajectory(task_id="t"), verdict=Verdict(label=label), memory_items=())
        results.append(TaskResult(TASK, done, None if truth is None else Outcome(reward=truth, success=truth)))
    out = io.StringIO()
    print_summary(Console(file=out, width=100), RunReport("r", results))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_a_summary_says_what_a_judge_that_does_not_look_would_reach() -> None:
    told = told_of_judge(*[("failure", False)] * 9, ("failure", True))
    assert "judge agreement 9 of 10 verdicts agree with ground truth (90%)" in told
    assert "always failure: 90%; of successes: precision -, recall 0%" in told
    assert not any(line.startswith("unknown verdicts") for line in told)
    told = told_of_judge(*[("success", True)] * 2, ("success", False), *[("unknown", False)] * 7, ("unknown", None))
    assert "always success: 67%; of successes: precision 67%, recall 100%" in told
    assert "unknown verdicts 8, on 7 of 10 scored tasks" in told
    told = told_of_judge(("unknown", None))
    assert "unknown verdicts 1" in told
    assert not any("always" in line for line in told)


def test_a_summary_says_how_many_lessons_were_dropped_and_why() -> None:
    def told(*results: TaskResult) -> list[str]:
        out = io.StringIO()
        print_summary(Console(file=out, width=100), RunReport("r", [*results]))
        return [" ".join(line.split()) for line in out.getvalue().splitlines()]

    results = (TaskResult(TASK, proposed=9, dropped={"quote": 2}), TaskResult(TASK, proposed=3, dropped={"overlap": 1}))
    assert "lessons dropped 3 of 12 proposed (2 quoted the task, 1 much like another)" in told(*results)
    assert not any("dropped" in line for line in told(TaskResult(TASK, proposed=3)))


def test_one_of_a_thing_is_not_several() -> None:
    told = told_of_judge(("success", True))
    assert "judge agreement 1 of 1 verdict agrees with ground truth (100%)" in told
    assert "unknown verdicts 1, on 1 of 1 scored task" in told_of_judge(("unknown", True))
    done = dspy.Prediction(trajectory=Trajectory(task_id="t"), verdict=Verdict(label="success"), memory_items=())
    report = RunReport("r", [TaskResult(TASK, done, Outcome(reward=1, success=True))])
    assert repr(report) == "RunReport('r': 1 task, solved 1 of 1 scored)"
    assert repr(TaskStream("s", (TASK,))).startswith("TaskStream('s', 1 task, ")


def test_what_was_handed_in_is_shown_where_it_is_not_what_the_last_pass_left() -> None:
    attempts = tuple(Trajectory(task_id="t", rollout_id=str(n)) for n in range(2))
    solved, failed = Outcome(reward=1, success=True), Outcome(reward=0, success=False)

    def told(handed_in: int) -> list[str]:
        done = dspy.Prediction(
            trajectory=attempts[handed_in],
            trajectories=attempts,
            verdict=Verdict(label="success"),
            memory_items=(),
            launched=2,
            lost=(),
            saved=0,
        )
        result = TaskResult(TASK, done, (solved, failed)[handed_in], outcomes=(solved, failed), passes=(solved, failed))
        out = io.StringIO()
        print_summary(Console(file=out, width=100), RunReport("r", [result]), refined=True)
        lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
        return lines[lines.index("after the first pass 1 of 1 task, by ground truth (100%)") + 1 : -1]

    last, after_any = (f"after {which} of 1 task, by ground truth" for which in ("the last pass 0", "any pass 1"))
    assert told(1) == [f"{last} (0%)", f"{after_any} (100%)"]
    assert told(0) == [f"{last} (0%)", "handed in 1 of 1 task, by ground truth (100%)", f"{after_any} (100%)"]


def test_what_waited_and_what_could_not_be_read_is_said() -> None:
    cut = Trajectory(task_id=TASK.id, stop_reason="unreadable")
    done = dspy.Prediction(
        trajectory=cut,
        verdict=Verdict(label="failure"),
        memory=shown_before([MemoryItem(id="m", provenances=PROVENANCES, **{**LESSON, "title": "Open it first"})]),
        memory_items=(),
        experience=Experience(id="e", scope="s", seq=1, task=TASK, trajectories=(cut,), verdicts=()),
    )
    out = io.StringIO()
    console = Console(file=out, width=140)
    results = [TaskResult(TASK, done, Outcome(reward=0, success=False)), TaskResult(TASK, done, resumed=True)]
    with Display(console, 2) as display:
        display.on_event(Judged(TASK, cut, done.verdict))
        for result in results:
            display.on_result(result)
    print_summary(console, RunReport("r", results))
    told = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "ended the agent's answer could not be read" in told
    assert told.count("recalled • Open it first") == 1, "of what was resumed; else it was said when it was retrieved"
    assert any(line.startswith("resumed the rollout waited in the bank; ") for line in told)
    assert "resumed 1, not scored: what waited in the bank was learned from" in told
    assert "unreadable answers 2 rollouts ended with one" in told


@pytest.mark.parametrize(
    ("why", "told", "counted"),
    [
        ("max_steps", "ended the step limit was reached", "cut off 2 rollouts at the step limit"),
        (
            "context",
            "ended nothing more fits into the model",
            "cut off 2 rollouts when nothing more fitted into the model",
        ),
        ("done", None, None),
    ],
)
def test_what_cut_a_rollout_off_is_said_once_whether_it_was_judged_or_not(
    why: StopReason, told: str | None, counted: str | None
) -> None:
    cut = Trajectory(task_id=TASK.id, stop_reason=why)
    fields = {"answer": None, "trajectory": cut, "memory": Memory(), "memory_items": (), "experience": None}
    judged, frozen = (dspy.Prediction(verdict=verdict, **fields) for verdict in (Verdict(label="failure"), None))
    results = [TaskResult(TASK, judged), TaskResult(TASK.model_copy(update={"id": "t/2"}), frozen)]
    out = io.StringIO()
    console = Console(file=out, width=140)
    with Display(console, 2) as display:
        display.on_event(Judged(TASK, cut, judged.verdict))
        for result in results:
            display.on_result(result)
    print_summary(console, RunReport("r", results))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("ended")] == ([told] * 2 if told else [])
    assert [line for line in lines if line.startswith("cut off")] == ([counted] if counted else [])
    assert as_json(results[0])["stop_reason"] == why


def test_a_summary_counts_what_broke_as_failures_beside_the_rate() -> None:
    done = dspy.Prediction(trajectory=Trajectory(task_id="t"), verdict=Verdict(label="success"), memory_items=())
    done.trajectories, done.launched, done.lost, done.saved = (done.trajectory,), 1, (), 0
    out = io.StringIO()
    results = [TaskResult(TASK, done, Outcome(reward=1, success=True)), TaskResult(TASK, error="no server")]
    print_summary(Console(file=out, width=110), RunReport("r", results))
    told = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "solved 1 of 1 task, by ground truth (100%); 50% with the 1 that broke as failures" in told
    assert any(line.startswith("rollouts 1 begun, 0 lost, 0 saved, without those of the 1 task that") for line in told)


def test_a_task_of_which_another_rollouts_scoring_broke_still_counts() -> None:
    out = io.StringIO()
    done = dspy.Prediction(trajectory=Trajectory(task_id="t"), verdict=Verdict(label="success"))
    result = TaskResult(TASK, done, Outcome(reward=1, success=True), error="the environment's outcome broke: x")
    Display(Console(file=out, width=140), 1).on_result(result)
    assert "(what was handed in counts; learned from all the same)" in out.getvalue()
    assert "solved  reward 1.00  the judge agrees" in out.getvalue()


def test_a_judge_that_was_not_asked_has_not_abstained() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=140), 2)
    for verdict in (None, Verdict(label="unknown")):
        done = dspy.Prediction(trajectory=Trajectory(task_id="t"), verdict=verdict)
        display.on_result(TaskResult(TASK, done, Outcome(reward=1, success=True)))
    rows = [line.split("reward 1.00")[1].strip() for line in out.getvalue().splitlines() if "reward" in line]
    assert rows == ["nobody judged", "the judge abstained"]


def test_a_task_whose_scoring_broke_was_learned_from() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=140), 1)
    display.on_result(
        TaskResult(
            TASK, dspy.Prediction(trajectory=Trajectory(task_id=TASK.id)), error="the environment's outcome broke: x"
        )
    )
    assert "(neither success nor failure; learned from all the same)" in out.getvalue()


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
