"""What optimizers are told about each predictor, and the scores beside it."""

from __future__ import annotations

import inspect
import math
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import ReasoningBank, Task, TaskStream
from rb_dspy.compile.evidence import decisive_step
from rb_dspy.compile.examples import agent_example, judge_example, select_example
from rb_dspy.compile.feedback import MOST, stream_feedback
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.stages import STAGES, stage_module
from rb_dspy.config import MattsMode, ProgramConfig, RetrieveConfig
from rb_dspy.errors import InputError
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Outcome, Step, Trajectory, Verdict
from rb_dspy.steps import Memory, Selection
from rb_dspy.steps.memory import render
from rb_dspy.stream import RunReport
from rb_dspy.stream.program import StreamProgram, stream_example
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply
from tests.compile.school import Hushed, hushed
from tests.worlds import Doors, answers, attempts, backbones, hall, item, lock, openers, worked

GOOD, BAD = Outcome(reward=1, success=True), Outcome(reward=0, success=False)


def locks(*codes: str, maker: str = "Abus") -> TaskStream:
    return TaskStream("locks", tuple(lock(maker, number, code) for number, code in enumerate(codes)))


def simple(script: Any = answers) -> ReasoningBank:
    return ReasoningBank(backbones=backbones(script), environments=Lock.make)


def scaled(
    script: Any = openers, environments: Any = Doors.make, retrieve: RetrieveConfig | None = None, **given: Any
) -> MaTTS:
    config = ProgramConfig(retrieve=retrieve or RetrieveConfig())
    return MaTTS(ReasoningBank(config, backbones=backbones(script), environments=environments), **{"k": 3, **given})


def run(program: Any, stream: TaskStream) -> RunReport:
    report: RunReport = StreamProgram(program, embedder=HashEmbedder())(stream=stream).report
    return report


def told(program: Any, stream: TaskStream, predictor: str, **given: Any) -> str:
    mode: MattsMode | None = program.config.mode if isinstance(program, MaTTS) else None
    return stream_feedback(run(program, stream), predictor, mode=mode, **given)


def gullible(prompt: Prompt) -> Reply:
    if "label" in prompt.wants:
        return {"reasons": "It sounds sure of itself.", "label": "success"}
    return openers(prompt) if "valid_actions" in prompt else answers(prompt)


def worst(prompt: Prompt) -> Reply:
    """Chooses the first attempt that failed."""
    if "choice" not in prompt.wants:
        return openers(prompt)
    failed = [number for number, text in enumerate(attempts(prompt["candidates"]), 1) if not worked(text)]
    return {"analysis": "It is short.", "choice": failed[0]}


def test_the_judge_is_told_what_it_misjudged_by_step_and_the_environments_word() -> None:
    text = told(simple(gullible), locks("4711", "0000"), "judge.predict")
    assert "Verdicts: 1 right, 1 wrong." in text
    (line,) = [line for line in text.splitlines() if line.startswith("- ")]
    assert "serial 0" in line
    assert "you said success, the environment says failure (reward 0)" in line
    assert "step 1 of 1: '0000' gave 'It stays shut.'" in line
    assert "It sounds sure of itself." in line
    assert "Misjudged" not in told(simple(), locks("4711", "0000"), "judge.predict")


def test_the_decisive_step_is_where_rollouts_part_that_ended_otherwise() -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" not in prompt.wants:
            return gullible(prompt)
        second = "open the yellow door" if prompt.seed else "open the green door"
        shut = "open the red door" if not prompt.turns else second
        return {"thought": "So.", "action": shut if prompt.seed != 2 or prompt.turns else "open the blue door"}

    text = told(scaled(script, mode="vanilla"), TaskStream("s", (hall("Elm", 0, "yellow"),)), "judge.predict")
    assert "step 2 of 2: 'open the green door'" in text


def test_of_several_rollouts_that_ended_otherwise_the_one_that_parts_last_counts() -> None:
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


def test_an_answer_that_cannot_be_parsed_is_no_wrong_verdict_and_the_judge_is_told() -> None:
    def script(prompt: Prompt) -> Reply:
        return "???" if "label" in prompt.wants and "serial 0" in prompt["task"] else answers(prompt)

    program = simple(script)
    text = told(program, locks("4711", "0000"), "judge.predict")
    assert "1 broke" in text
    assert "judge" in text.splitlines()[0]
    assert "1 right, 0 wrong" in text
    task = lock("Abus", 0)
    gold = judge_example(task, rollout(task, "0000", opens=False), BAD)
    pred = stage_module(program, "judge")(**gold.inputs())
    rated = metric_for("judge", program)(gold, pred, None, "judge.predict", None)
    assert (rated.score, rated.feedback.startswith("No label")) == (0.0, True)  # type: ignore[union-attr]


def test_the_distiller_is_told_whom_its_lessons_helped_and_misled() -> None:
    program, stream = simple(), locks("0000", "0000", "4711")
    text = told(program, stream, "distill.success")
    assert "'Use what worked'" in text
    assert "Shown for 2 tasks, 1 solved." in text
    assert 'Helped or did no harm on "Open the lock that Abus made, serial 1."' in text
    assert 'Misled, being taken up, on "Open the lock that Abus made, serial 2."' in text
    assert "'0000' gave 'It stays shut.'" in text
    assert "tasks that were shown no lesson: 1 of 1 solved" in text
    assert "Do not guess" not in text
    failures = told(program, stream, "distill.failure")
    assert "no later task was shown" in failures
    assert "'Do not guess'" in failures
    assert "Use what worked" not in failures


def test_the_distiller_is_told_of_lessons_that_belong_to_one_task_and_of_those_that_were_dropped() -> None:
    def script(prompt: Prompt) -> Reply:
        if "memory_items" not in prompt.wants:
            return answers(prompt)
        found = [item("Mind the maker", "A lock by Abus with serial 17 opens with the code it has."), item("", "")]
        return {"analysis": "So.", "memory_items": found}

    stream = TaskStream("s", (lock("Abus", 17), lock("Abus", 5), lock("Basta", 6)))
    text = told(simple(script), stream, "distill.failure")
    assert "belongs to its own task only (17)" in text
    assert "dropped: one without title or content" in text
    assert "were not kept, and why" in text


@pytest.mark.parametrize(
    ("mode", "maker"),
    [("parallel", "contrast.predict"), ("vanilla", "distill.success"), ("best_of_n", "distill.success")],
)
def test_lessons_are_told_to_whoever_wrote_them(mode: str, maker: str) -> None:
    program = scaled(mode=mode)
    report = run(program, TaskStream("s", tuple(hall("Elm", number, "red") for number in range(2))))
    names = ["contrast.predict", "distill.success", "distill.failure"]
    texts = {name: stream_feedback(report, name, mode=program.config.mode) for name in names}
    assert "Shown for 1 task" in texts.pop(maker)
    assert all("None of the lessons of this stream is yours" in text for text in texts.values())


def test_one_lesson_that_is_learned_again_and_again_is_told_once() -> None:
    text = told(scaled(), TaskStream("s", tuple(hall("Elm", n, "yellow") for n in range(4))), "contrast.predict")
    assert text.count("'Open the door that decides'") == 1
    assert "Shown for 3 tasks, 3 solved." in text


def test_nothing_is_made_of_tasks_that_nobody_knows_the_outcome_of() -> None:
    """Only the first task is known: a lesson of it did no harm as far as anybody knows."""
    program = ReasoningBank(backbones=backbones(answers), environments=Hushed.of)
    first, *later = locks("0000", "4711", "4711")
    report = run(program, TaskStream("s", (first, *map(hushed, later))))
    head, *told = stream_feedback(report, "distill.success").splitlines()
    assert head == "The stream had 3 tasks, 1 solved; of 2 nobody knows how they ended."
    assert "Lessons of yours of which nobody knows what came of them:" in told
    assert any("Shown for 2 tasks that nobody knows the outcome of." in line for line in told)
    assert told[-1] == "For comparison, tasks that were shown no lesson: 1 of 1 solved."
    assert not any(word in "\n".join(told) for word in ("failed", "Misled", "Ignored", "no later task"))
    agent = stream_feedback(report, "act.predict").splitlines()
    assert agent[1:] == ["Tasks with lessons: 0 of 0 solved; without: 1 of 1."]
    assert stream_feedback(report, "judge.predict").splitlines()[1:] == ["Verdicts: 1 right, 0 wrong."]


def test_a_lesson_is_told_by_the_tasks_that_somebody_knows_the_outcome_of() -> None:
    program = ReasoningBank(backbones=backbones(answers), environments=Hushed.of)
    first, second, third, fourth = locks("0000", "0000", "4711", "0000")
    report = run(program, TaskStream("s", (first, second, hushed(third), hushed(fourth))))
    told = stream_feedback(report, "distill.success")
    assert "after which every task was solved" in told
    assert "Shown for 1 task, 1 solved. Shown for 2 other tasks that nobody knows the outcome of." in told
    assert "Tasks with lessons: 1 of 1 solved; without: 1 of 1." in stream_feedback(report, "act.predict")


def test_words_that_agents_use_without_a_lesson_are_no_evidence_for_it() -> None:
    """Every command has its name: a lesson that has it too is not taken up by that."""

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            heard = "serial 2" in prompt["task"]
            return {"thought": "Roll it back." if heard else "Hm.", "action": "restart it"}
        if "memory_items" in prompt.wants:
            lesson = item("After a change", "Roll the change back, then restart what is left.")
            return {"analysis": "So.", "memory_items": [lesson]}
        return answers(prompt)

    agent = told(simple(script), locks("1", "1", "1"), "act.predict")
    lesson = "It was shown the lesson 'After a change' (Roll the change back, then restart what is left.)"
    assert "Tasks with lessons: 0 of 2 solved; without: 0 of 1." in agent
    assert f"serial 1.\" ended after 1 step; last, 'restart it' gave 'It stays shut.'. {lesson}; nothing tells" in agent
    assert f"serial 2.\" ended after 1 step; last, 'restart it' gave 'It stays shut.'. {lesson} and took it up" in agent
    distiller = told(simple(script), locks("1", "1", "1"), "distill.failure")
    assert 'Shown on "Open the lock that Abus made, serial 1."' in distiller
    assert 'Misled, being taken up, on "Open the lock that Abus made, serial 2."' in distiller


def test_a_rollout_that_failed_beside_one_that_nobody_knows_is_told_as_such() -> None:
    class Dim(Doors):
        def outcome(self) -> Any:
            found = super().outcome()
            return None if found.success else found

    text = told(scaled(environments=Dim.make), TaskStream("s", (hall("Elm", 0, "yellow"),)), "act.predict")
    assert "The stream had 1 task, 0 solved; of 1 nobody knows how they ended." in text
    assert "Tasks with lessons: 0 of 0 solved; without: 0 of 0." in text
    assert "Nobody knows how the rollout ended that was handed in; another failed:" in text
    assert "\nFailed:" not in text


def test_the_agent_is_told_which_lessons_it_took_up_and_which_it_ignored() -> None:
    def deaf(prompt: Prompt) -> Reply:
        return {"thought": "I guess.", "action": "1234"} if "action" in prompt.wants else gullible(prompt)

    text = told(simple(deaf), locks("1234", "4711"), "act.predict")
    assert "the code is 1234.) and took it up" in text

    def script(prompt: Prompt) -> Reply:
        if "memory_items" in prompt.wants:
            return {"analysis": "So.", "memory_items": [item("Look underneath", "Turn locks over before typing.")]}
        return deaf(prompt)

    text = told(simple(script), locks("1234", "4711"), "act.predict")
    assert "'Look underneath' (Turn locks over before typing.) and ignored it" in text
    assert "Tasks with lessons: 0 of 1 solved; without: 1 of 1." in text
    assert "'1234' gave 'It stays shut.'" in text


def test_the_agent_is_told_what_another_rollout_did_better() -> None:
    text = told(scaled(worst), TaskStream("s", (hall("Elm", 0, "yellow"),)), "act.predict")
    assert "Another rollout solved it; there, 'open the yellow door' gave" in text
    assert "not by every rollout" not in text
    text = told(scaled(), TaskStream("s", (hall("Elm", 0, "yellow"),)), "act.predict")
    lost = text.split("Solved, but not by every rollout; one that failed:\n")[1]
    assert "The chest stays locked.'. Another rollout solved it; there, 'open the yellow door' gave" in lost


def test_the_selector_is_told_which_better_rollout_it_passed_over() -> None:
    stream = TaskStream("s", (hall("Elm", 0, "yellow"),))
    text = told(scaled(worst), stream, "select.predict")
    assert "Of 1 choice among attempts that differed in truth, 0 took the best." in text
    assert "stays locked.'. Better was the one that" in text
    assert "springs open.'; the environment says it succeeded. Your analysis was: It is short." in text
    assert "passed over" not in told(scaled(), stream, "select.predict")


def test_checks_are_told_what_they_confirmed_and_changed_and_what_came_of_it() -> None:
    def script(prompt: Prompt) -> Reply:
        if "decision" in prompt.wants:
            again = "earlier_checks" in prompt
            return {"findings": "Once more." if again else "Fine.", "decision": "revise" if again else "confirm"}
        if "action" in prompt.wants and "found:" in prompt["observation"]:
            return {"thought": "Another one.", "action": "4711"}
        return answers(prompt)

    program = scaled(script, Lock.make, mode="sequential", retrieve=RetrieveConfig(k=0))
    stream = TaskStream("s", (lock("Abus", 0, "4711"), lock("Yale", 1, "0000"), lock("Basta", 2, "1")))
    report = run(program, stream)
    first = stream_feedback(report, "refine.first", mode="sequential")
    assert "Right work was confirmed 1 time." in first
    wrong = first.split("Wrong work that was confirmed:\n")[1]
    assert "serial 0" in wrong
    assert "serial 2" in wrong
    assert "serial 1" not in wrong
    again = stream_feedback(report, "refine.again", mode="sequential")
    changed_right, changed_wrong = again.split("Right work that was changed:\n")[1].split("Wrong work that was")
    assert "serial 1" in changed_right
    assert "It is wrong now." in changed_right
    assert "serial 0" in changed_wrong
    assert "It is right now." in changed_wrong
    assert "Fine." in first
    assert "Fine." not in again


def test_the_task_whose_call_is_shown_stands_first() -> None:
    stream = locks("4711", "4711", "4711")
    wanted = stream.tasks[2].instruction
    lines = told(simple(gullible), stream, "judge.predict", task=wanted).splitlines()
    (first,) = [line for line in lines if "the call shown here" in line]
    assert lines.index(first) == lines.index("Misjudged:") + 1
    assert "serial 2" in first


def test_an_unknown_predictor_is_told_how_the_stream_went() -> None:
    def script(prompt: Prompt) -> Reply:
        if "serial 1" in prompt.text:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    text = told(simple(script), locks("0000", "0000", "4711"), "rerank.predict")
    assert text.startswith("The stream had 3 tasks, 1 solved; 1 broke, the first: ")
    assert "overloaded" in text


def test_a_long_stream_makes_no_long_text() -> None:
    def windy(prompt: Prompt) -> Reply:
        if "memory_items" in prompt.wants:
            found = [item(f"{word} " * 20, f"{word} it is. " * 30) for word in ("Long", "Longer", "Longest")]
            return {"analysis": "So.", "memory_items": found}
        reply = gullible(prompt)
        return {**reply, "reasons": "So it is. " * 500} if isinstance(reply, dict) and "reasons" in reply else reply

    report = run(simple(windy), locks(*["4711"] * 30))
    texts = {name: stream_feedback(report, name) for name in ("judge.predict", "distill.success", "act.predict")}
    assert all(len(text) <= MOST for text in texts.values())
    assert "and 25 more" in texts["judge.predict"]
    assert len(texts["act.predict"]) == MOST
    assert texts["act.predict"].endswith("…")


# The metrics of all stages.


def rollout(task: Task, action: str, *, opens: bool, number: int = 0) -> Trajectory:
    step = Step(action=action, observation="It opens." if opens else "It stays shut.")
    return Trajectory(task_id=task.id, steps=(step,), answer=action, rollout_id=str(number))


def test_each_metric_gives_the_same_score_with_and_without_a_predictor() -> None:
    program = scaled()
    stream = TaskStream("s", tuple(hall("Elm", number, "yellow") for number in range(2)))
    module = StreamProgram(program, embedder=HashEmbedder())
    metric, gold = metric_for("all", program), stream_example(stream)
    with dspy.context(trace=[]):
        pred = module(**gold.inputs())
        trace = list(dspy.settings.trace)
    for name, predictor in module.named_predictors():
        mine = [call for call in trace if call[0] is predictor]
        rated = metric(gold, pred, trace, name, mine[-1:])
        assert isinstance(rated, dspy.Prediction)
        assert rated.score == metric(gold, pred) == metric(gold, pred, trace) == 1.0
        assert rated.feedback.startswith("The stream had 2 tasks, 2 solved.")
    assert "Verdicts: 6 right" in metric(gold, pred, trace, "program.judge.predict", None).feedback  # type: ignore[union-attr]


def test_the_call_that_is_shown_is_found_in_inputs_and_in_histories() -> None:
    program = simple(gullible)
    stream = locks("4711", "4711")
    metric, gold = metric_for("all", program), stream_example(stream)
    pred = StreamProgram(program, embedder=HashEmbedder())(stream=stream)
    inputs = {"task": stream.tasks[1].instruction}
    for given in (inputs, {"task": None, "history": dspy.History(messages=[inputs])}):
        for name in ("program.judge.predict", "program.act.predict"):
            rated = metric(gold, pred, None, name, [(None, given, None)])
            assert '(the call shown here) "Open the lock that Abus made, serial 1."' in rated.feedback  # type: ignore[union-attr]


def test_judges_are_right_wrong_or_unread() -> None:
    metric, task = metric_for("judge", simple()), lock("Abus", 0)
    gold = judge_example(task, rollout(task, "0000", opens=False), BAD)
    for label, score, said in (("failure", 1, "Right"), ("success", 0, "Wrong"), ("unknown", 0, "No label")):
        pred = dspy.Prediction(verdict=Verdict(label=label, reasons="Because."))  # type: ignore[arg-type]
        rated = metric(gold, pred, None, "judge.predict", None)
        assert (metric(gold, pred), rated.score) == (score, score)  # type: ignore[union-attr]
        assert rated.feedback.startswith(said)  # type: ignore[union-attr]
    assert "step 1 of 1" in metric(gold, dspy.Prediction(verdict=Verdict(label="success")), None, "j", None).feedback  # type: ignore[union-attr]


def test_choices_are_rated_between_the_worst_and_the_best() -> None:
    metric, task = metric_for("select", scaled()), lock("Abus", 0)
    rollouts = [rollout(task, str(number), opens=number == 2, number=number) for number in range(3)]
    gold = select_example(task, rollouts, [], [0.2, 0.4, 1.0])
    scores = [metric(gold, dspy.Prediction(selection=Selection(index))) for index in range(3)]
    assert scores == [0.0, pytest.approx(0.25), 1.0]
    text = metric(gold, dspy.Prediction(selection=Selection(0)), None, "select.predict", None).feedback  # type: ignore[union-attr]
    assert "Better was the one that ended after 1 step; last, '2' gave 'It opens.'" in text


def test_rollouts_of_the_agent_are_rated_by_the_environment() -> None:
    program, task = simple(), lock("Abus", 0)
    metric, module = metric_for("agent", program), stage_module(program, "agent")
    report = run(simple(), locks("0000"))
    (known,) = report.results[0].prediction.memory_items  # type: ignore[union-attr]
    for memory, success in ((Memory(), False), (Memory(block="> the code is 4711"), True)):
        gold = agent_example(task, memory)
        assert metric(gold, module(**gold.inputs())) == float(success)
    memory = Memory(items=(known,), block=render([]).block)
    gold = agent_example(task, memory)
    rated: Any = metric(gold, module(**gold.inputs()), None, "act.predict", None)
    assert rated.feedback.startswith("Failed (reward 0): the rollout ended after 1 step")
    assert "'Use what worked'" in rated.feedback


def test_of_a_single_rollout_the_commands_of_its_environment_are_no_evidence() -> None:
    program, task = scaled(), hall("Elm", 0, "yellow")
    metric, module = metric_for("agent", program), stage_module(program, "agent")
    report = run(scaled(), TaskStream("s", (hall("Elm", 1, "yellow"),)))
    (known,) = report.results[0].prediction.memory_items  # type: ignore[union-attr]

    def told(content: str) -> str:
        lesson = known.model_copy(update={"title": "Mind", "content": content})
        gold = agent_example(task, Memory(items=(lesson,), block=f"> {content}"))
        with dspy.context(trace=[]):
            pred = module(**gold.inputs())
            calls = [(each, inputs, said) for each, inputs, said in dspy.settings.trace]
        assert len(calls) > 1
        rated: Any = metric(gold, pred, None, "act.predict", [calls[-1]])
        return str(rated.feedback)

    assert "(Open any door.); nothing tells whether it took it up." in told("Open any door.")
    assert "(Halls deceive.) and ignored it." in told("Halls deceive.")
    assert "(It must be in there.) and took it up." in told("It must be in there.")  # what the agent thinks


@pytest.mark.parametrize("stage", STAGES)
def test_a_metric_never_raises_and_takes_what_gepa_gives(stage: Any) -> None:
    metric = metric_for(stage, scaled())
    inspect.signature(metric).bind(None, None, None, None, None)
    for pred in (None, dspy.Prediction(), dspy.Prediction(score=math.inf)):
        score = metric(stream_example(locks("1")), pred)
        assert isinstance(score, float)
        assert 0 <= score <= 1
        rated: Any = metric(stream_example(locks("1")), pred, [], "program.judge.predict", [])
        assert (rated.score, bool(rated.feedback)) == (score, True)


def test_there_is_no_metric_for_an_unknown_stage() -> None:
    with pytest.raises(InputError, match="unknown stage 'act'"):
        metric_for("act", simple())  # type: ignore[arg-type]
