"""What the reflection model reads about each predictor, by the values in it; and the scores beside it."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import MaTTS, ReasoningBank, Task, TaskStream
from rb_dspy.compile import Metric
from rb_dspy.compile.feedback import MAX_CHARS, decisive_step, stream_feedback
from rb_dspy.compile.search import Budgeted
from rb_dspy.compile.steps import STEPS
from rb_dspy.config import MattsMode, ProgramConfig, RetrieveConfig
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Step, Trajectory, Verdict
from rb_dspy.steps import Memory, Selection
from rb_dspy.stream import RunReport, StreamProgram, stream_example
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, hall, lock, locksmith, scripted_program, toys
from rb_dspy.testing.locks import attempts, lessons, worked


def locks(*codes: str) -> TaskStream:
    return TaskStream("locks", tuple(lock("Abus", number, code) for number, code in enumerate(codes)))


def halls(number: int, right: str) -> TaskStream:
    return TaskStream("halls", tuple(hall("Elm", n, right) for n in range(number)))


def simple(script: Any = locksmith) -> ReasoningBank:
    return scripted_program(script)


def scaled(script: Any = locksmith, environments: Any = toys, k_lessons: int = 4, **options: Any) -> MaTTS:
    config = ProgramConfig(retrieve=RetrieveConfig(k=k_lessons))
    return MaTTS(scripted_program(script, config, environments=environments), **{"k": 3, **options})


def run(program: Any, stream: TaskStream) -> RunReport:
    report: RunReport = StreamProgram(program, embedder=HashEmbedder())(stream=stream).report
    return report


def feedback(program: Any, stream: TaskStream, predictor: str, task: str = "") -> str:
    mode: MattsMode | None = program.config.mode if isinstance(program, MaTTS) else None
    return stream_feedback(run(program, stream), predictor, mode=mode, task=task)


def gullible(prompt: Prompt) -> Reply:
    if "label" in prompt.wants:
        return {"reasons": "It sounds sure of itself.", "label": "success"}
    return locksmith(prompt)


def worst(prompt: Prompt) -> Reply:
    """Chooses the first attempt that failed."""
    if "choice" not in prompt.wants:
        return locksmith(prompt)
    failed = [number for number, text in enumerate(attempts(prompt["candidates"]), 1) if not worked(text)]
    return {"analysis": "It is short.", "choice": failed[0]}


class Silent(Lock):
    """A lock without ground truth."""

    def outcome(self) -> Outcome | None:  # type: ignore[override]
        return None


class Quiet(Lock):
    """A lock that does not say whether it opened, and takes another code."""

    def step(self, action: str) -> tuple[str, bool]:
        return "The code was taken.", super().step(action)[1]

    def reopen(self) -> str:
        return "Another code?"


def lines_with(text: str, *values: str) -> list[str]:
    return [line for line in text.splitlines() if all(value in line for value in values)]


def test_the_judge_reads_which_verdicts_were_wrong_and_what_decided_the_rollout() -> None:
    text = feedback(simple(gullible), locks("4711", "0000"), "judge.predict")
    assert lines_with(text, "1 right, 1 wrong")
    assert lines_with(text, "serial 0", "success", "failure", "0000", "It stays shut.", "It sounds sure of itself.")
    assert not lines_with(text, "serial 1")
    assert lines_with(feedback(simple(), locks("4711", "0000"), "judge.predict"), "2 right, 0 wrong")


def test_the_decisive_step_is_where_rollouts_part_that_ended_the_other_way() -> None:
    def walk(*actions: str) -> Trajectory:
        return Trajectory(task_id="t", steps=tuple(Step(action=action) for action in actions))

    mine = walk("a", "b", "c", "d")
    early, late, same = walk("x", "b", "c", "d"), walk("a", "b", "x", "d"), walk("a", "b", "c", "x")
    assert decisive_step(mine, False, [(early, True), (late, True), (same, False)]) == 3
    assert decisive_step(mine, False, [(early, True)]) == 1
    assert decisive_step(mine, True, [(early, True), (same, False)]) == 4
    assert decisive_step(mine, False, [(walk("a", "b"), True)]) == 3
    assert decisive_step(mine, False, [(same, False)]) == 4
    assert decisive_step(walk(), False, [(mine, True)]) is None


def test_lessons_are_listed_by_what_became_of_the_tasks_that_were_shown_them() -> None:
    program, stream = simple(), locks("0000", "0000", "4711")
    text = feedback(program, stream, "distill.success")
    assert lines_with(text, "Use what worked", "Shown for 2 tasks, 1 solved", "serial 1", "serial 2", "It stays shut.")
    assert lines_with(text, "without any lesson", "1 of 1 solved")
    assert "Do not guess" not in text, "the lesson of another predictor"
    failures = feedback(program, stream, "distill.failure")
    assert lines_with(failures, "Do not guess")
    assert lines_with(failures, "no later task")
    assert "Use what worked" not in failures


def test_one_call_reads_about_its_verdicts_and_its_lessons() -> None:
    def script(prompt: Prompt) -> Reply:
        said = gullible(prompt)
        return said if "label" not in prompt.wants else {**said, **lessons(("Look", "Look at the lock."))}

    program = scripted_program(script, ProgramConfig(learn="one_call"))
    text = feedback(program, locks("4711", "4711"), "review.predict")
    assert lines_with(text, "0 right, 2 wrong")
    assert lines_with(text, "serial 0", "success", "failure", "It sounds sure of itself.")
    assert lines_with(text, "Look at the lock.", "Shown for 1 task, 0 solved")


def test_a_lesson_that_was_dropped_is_named() -> None:
    def script(prompt: Prompt) -> Reply:
        if "memory_items" not in prompt.wants:
            return locksmith(prompt)
        return lessons(("Mind the maker", "Look at it."), ("", ""))

    text = feedback(simple(script), locks("4711"), "distill.failure")
    assert lines_with(text, "dropped: one without title or content")


@pytest.mark.parametrize(
    ("mode", "author"),
    [
        ("parallel", "contrast.predict"),
        ("vanilla", "distill.success"),
        ("best_of_n", "distill.success"),
        ("sequential", "distill.success"),
    ],
)
def test_lessons_are_shown_to_the_predictor_that_wrote_them(mode: Any, author: str) -> None:
    program = scaled(mode=mode)
    report = run(program, halls(2, "red"))
    for name in ("contrast.predict", "distill.success", "distill.failure"):
        text = stream_feedback(report, name, mode=mode)
        assert bool(lines_with(text, "Shown for 1 task")) is (name == author)


def test_a_lesson_that_is_learned_again_is_listed_once() -> None:
    text = feedback(scaled(), halls(4, "yellow"), "contrast.predict")
    assert text.count("'Use what worked'") == 1
    assert lines_with(text, "Shown for 3 tasks, 3 solved")


def test_tasks_without_ground_truth_are_neither_solved_nor_failed() -> None:
    first, *later = locks("0000", "4711", "4711")

    def make(task: Task, rollout: str) -> Lock:
        return (Lock if task.id == first.id else Silent).make(task, rollout)

    program = scripted_program(environments=make)
    report = run(program, TaskStream("s", (first, *later)))
    text = stream_feedback(report, "distill.success")
    assert lines_with(text, "3 tasks, 1 of 1 solved")
    assert "Failed" not in text
    assert lines_with(text, "no later task with ground truth")
    assert lines_with(stream_feedback(report, "act.predict"), "with lessons: 0 of 0 solved", "without: 1 of 1")
    assert lines_with(stream_feedback(report, "judge.predict"), "1 right, 0 wrong")


def test_the_agent_reads_how_it_failed_with_which_lessons_and_what_another_rollout_did() -> None:
    def deaf(prompt: Prompt) -> Reply:
        return {"thought": "I guess.", "action": "1234"} if "action" in prompt.wants else gullible(prompt)

    text = feedback(simple(deaf), locks("1234", "4711"), "act.predict")
    assert lines_with(text, "with lessons: 0 of 1 solved", "without: 1 of 1")
    assert lines_with(text, "serial 1", "1234", "It stays shut.", "Use what worked", "opens with 1234")
    text = feedback(scaled(worst), halls(1, "yellow"), "act.predict")
    assert lines_with(text, "Another rollout solved it", "'open the yellow door'")
    text = feedback(scaled(), halls(1, "yellow"), "act.predict")
    assert text.split("not by every rollout")[1].count("Another rollout solved it") == 1


def test_the_selector_reads_which_better_attempt_it_passed_over() -> None:
    text = feedback(scaled(worst), halls(1, "yellow"), "select.predict")
    assert lines_with(text, "1 choice", "0 took the best")
    assert lines_with(text, "It stays shut.'", "It opens.'", "succeeded", "It is short.")
    assert lines_with(feedback(scaled(), halls(1, "yellow"), "select.predict"), "1 took the best")


def test_checks_are_listed_by_what_they_confirmed_and_changed() -> None:
    def script(prompt: Prompt) -> Reply:
        if "decision" in prompt.wants:
            again = "earlier_checks" in prompt
            return {"findings": "Once more." if again else "Fine.", "decision": "revise" if again else "confirm"}
        if "action" in prompt.wants and "found:" in prompt["observation"]:
            return {"thought": "Another one.", "action": "4711"}
        return locksmith(prompt)

    program = scaled(script, Quiet.make, k_lessons=0, mode="sequential")
    stream = TaskStream("s", (lock("Abus", 0, "4711"), lock("Yale", 1, "0000"), lock("Basta", 2, "1")))
    report = run(program, stream)
    first = stream_feedback(report, "refine.first", mode="sequential")
    assert lines_with(first, "Right work was confirmed 1 time")
    wrong = first.split("Wrong work that was confirmed:\n")[1]
    assert [number for number in "012" if f"serial {number}" in wrong] == ["0", "2"]
    assert "Fine." in first
    again = stream_feedback(report, "refine.again", mode="sequential")
    right, wrong = again.split("Right work that was changed:\n")[1].split("Wrong work that was changed")
    assert lines_with(right, "serial 1", "It is wrong now.")
    assert lines_with(wrong, "serial 0", "It is right now.")
    assert "Fine." not in again


def test_the_task_whose_call_is_shown_comes_first() -> None:
    stream = locks("4711", "4711", "4711")
    text = feedback(simple(gullible), stream, "judge.predict", task=stream.tasks[2].instruction)
    entries = [line for line in text.splitlines() if line.startswith("- ")]
    assert "the call shown here" in entries[0]
    assert "serial 2" in entries[0]
    assert len(entries) == 3


def test_an_unknown_predictor_reads_how_the_stream_went_and_what_broke() -> None:
    def script(prompt: Prompt) -> Reply:
        if "serial 1" in prompt.text:
            raise lm15.ServerError("overloaded")
        return locksmith(prompt)

    text = feedback(simple(script), locks("0000", "0000", "4711"), "rerank.predict")
    assert lines_with(text, "3 tasks, 1 of 3 solved, 1 broke", "overloaded")
    assert len(text.splitlines()) == 1


def test_a_long_stream_makes_no_long_text() -> None:
    def windy(prompt: Prompt) -> Reply:
        if "memory_items" in prompt.wants:
            return lessons(*((f"{word} " * 20, f"{word} it is. " * 30) for word in ("Long", "Longer", "Longest")))
        reply = gullible(prompt)
        return {**reply, "reasons": "So it is. " * 500} if isinstance(reply, dict) and "reasons" in reply else reply

    report = run(simple(windy), locks(*["4711"] * 30))
    texts = {name: stream_feedback(report, name) for name in ("judge.predict", "distill.success", "act.predict")}
    assert all(len(text) <= MAX_CHARS for text in texts.values())
    assert "and 25 more" in texts["judge.predict"]


# The metric of every step.


def rollout(task: Task, action: str, *, opens: bool, number: int = 0) -> Trajectory:
    step = Step(action=action, observation="It opens." if opens else "It stays shut.")
    return Trajectory(task_id=task.id, steps=(step,), answer=action, rollout_id=str(number))


def rated(
    metric: Metric, gold: Any, pred: Any, name: str = "program.judge.predict", call: Any = None
) -> tuple[float, str]:
    """Score and feedback; the score is the same without a predictor."""
    result = metric(gold, pred, None, name, call)
    assert result.score == metric(gold, pred)
    return result.score, result.feedback


def test_streams_are_scored_by_solved_tasks_and_explained_for_each_predictor() -> None:
    program, stream = scaled(), halls(2, "yellow")
    metric, gold = Metric("all", program), stream_example(stream)
    module = StreamProgram(program, embedder=HashEmbedder())
    with dspy.context(trace=[]):
        pred = module(**gold.inputs())
        calls = list(dspy.settings.trace)
    for name, predictor in module.named_predictors():
        mine = [call for call in calls if call[0] is predictor]
        score, text = rated(metric, gold, pred, name, mine[-1:])
        assert score == 1.0
        assert text.startswith("The stream had 2 tasks, 2 of 2 solved.")
    assert "6 right" in rated(metric, gold, pred)[1]


@pytest.mark.parametrize("history", [True, False])
def test_the_call_that_is_shown_is_recognized(history: bool) -> None:
    program, stream = simple(gullible), locks("4711", "4711")
    pred = StreamProgram(program, embedder=HashEmbedder())(stream=stream)
    turn = {"task": stream.tasks[1].instruction}
    inputs = {"task": None, "history": dspy.History(messages=[turn])} if history else turn
    _, text = rated(Metric("all", program), stream_example(stream), pred, "program.act.predict", [(None, inputs, None)])
    assert lines_with(text, "(the call shown here)", "serial 1")


def test_verdicts_are_right_wrong_or_missing() -> None:
    metric, task = Metric("judge", simple()), lock("Abus", 0)
    fields = {"task": task, "trajectory": rollout(task, "0000", opens=False), "decisive": 1}
    gold = dspy.Example(**fields, success=False, reward=0.0)
    for label, score, values in (
        ("failure", 1.0, ("Right", "failure")),
        ("success", 0.0, ("Wrong", "step 1 of 1", "0000", "Because.")),
        ("unknown", 0.0, ("no label", "Because.")),
    ):
        verdict = Verdict(label=label, reasons="Because.")  # type: ignore[arg-type]
        result = rated(metric, gold, dspy.Prediction(verdict=verdict))
        assert result[0] == score
        assert all(value.casefold() in result[1].casefold() for value in values)


def test_choices_are_scored_between_the_worst_and_the_best() -> None:
    metric, task = Metric("select", scaled()), lock("Abus", 0)
    rollouts = [rollout(task, str(number), opens=number == 2, number=number) for number in range(3)]
    gold = dspy.Example(task=task, trajectories=rollouts, rewards=[0.2, 0.4, 1.0])
    results = [rated(metric, gold, dspy.Prediction(selection=Selection(index))) for index in range(3)]
    assert [score for score, _ in results] == [0.0, pytest.approx(0.25), 1.0]
    assert lines_with(results[0][1], "'0' gave 'It stays shut.'", "Better was", "'2' gave 'It opens.'")
    assert results[2][1].startswith("Right")


def test_a_rollout_is_scored_by_the_environment() -> None:
    program, task = simple(), lock("Abus", 0)
    metric, done = Metric("agent", program), rollout(task, "0000", opens=False)
    (known,) = run(program, locks("0000")).results[0].prediction.memory_items  # type: ignore[union-attr]
    gold = dspy.Example(task=task, memory=Memory(items=(known,), block="x"))
    for outcome, score, values in (
        (Outcome(reward=0, success=False), 0.0, ("Failed", "It stays shut.", "Use what worked")),
        (Outcome(reward=1, success=True), 1.0, ("Solved",)),
        (None, 0.0, ("does not say",)),
    ):
        result = rated(metric, gold, dspy.Prediction(trajectory=done, outcome=outcome))
        assert result[0] == score
        assert all(value in result[1] for value in values)


@pytest.mark.parametrize("step", STEPS)
def test_an_example_that_failed_scores_0_and_says_why(step: Any) -> None:
    metric = Metric(step, scaled())
    assert rated(metric, stream_example(locks("1")), dspy.Prediction(score=1.0, error="lost connection")) == (
        0.0,
        "The program failed on this example: lost connection",
    )
    assert metric(stream_example(locks("1")), None) == 0.0


def test_there_is_no_metric_for_an_unknown_step() -> None:
    with pytest.raises(InputError, match="unknown step 'act'"):
        Metric("act", simple())  # type: ignore[arg-type]


def test_optimizers_see_the_predictors_under_these_names() -> None:
    names = {name for name, _ in Budgeted(scaled(), None).named_predictors()}  # type: ignore[arg-type]
    assert names == {
        f"program.{name}"
        for name in (
            "act.predict", "judge.predict", "distill.success", "distill.failure",
            "contrast.predict", "select.predict", "refine.first", "refine.again",
        )
    }  # fmt: skip
