"""Which calls of a run may become demonstrations, and that an optimizer gets no others."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from rb_dspy.backbones import Backbones, Ledger
from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.compile.budget import Record
from rb_dspy.compile.demos import fit
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.progress import Teller, silent
from rb_dspy.compile.stages import stage_module
from rb_dspy.compile.student import student_of
from rb_dspy.stream import TaskStream
from rb_dspy.stream.program import stream_example
from rb_dspy.testing import scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests.compile.school import compiled, program
from tests.compile.teacher import locks, pupil

STREAM = TaskStream("all", tuple(locks(4, 4)))


def good(step: Any) -> bool:
    """What may be shown, from the texts alone: this world is known."""
    _, inputs, outputs = step
    if "action" in outputs:
        return bool(outputs["action"] == inputs["task"].rstrip(".").split()[-1][::-1])
    if "label" in outputs:
        return bool(outputs["label"] == ("failure" if "stays shut" in inputs["final_state"] else "success"))
    return True


def test_calls_that_failed_are_shown_last_and_demonstrated_never() -> None:
    answers = Answers()
    cast = Cast(Backbones(agent=scripted_lm(pupil)), answers)
    work = program()
    work.backbones = None
    example = stream_example(STREAM)
    record = Record(metric_for("all", work), [example], cast=cast, teller=Teller(silent, 10, Ledger(), answers))
    student = student_of(stage_module(work, "all", embedder=HashEmbedder()), record)

    with dspy.context(trace=[]):
        prediction = student(stream=STREAM)
        trace = dspy.settings.trace
        whole = list(trace)
        score = record.metric(example, prediction, trace)

    kinds = {kind: [step for step in whole if kind in step[2]] for kind in ("action", "label")}
    for kind, steps in kinds.items():
        assert len(steps) == 2 * len(STREAM), kind  # two rollouts of each task
        assert len({good(step) for step in steps}) == 2, kind
    assert 0 < score < 1
    fits = [fit(prediction, step) for step in whole]
    assert fits == sorted(fits)
    assert {True, False} == set(fits)
    assert trace == [step for step in whole if fit(prediction, step)]
    assert all(map(good, trace))
    solved = {result.task.instruction for result in prediction.report.results if result.outcome.success}
    assert {step[1]["task"] for step in trace} == solved
    assert sum("action" in step[2] for step in trace) >= len(solved)  # nothing that is good for a task is lost


@pytest.mark.stress
def test_bootstrapped_demonstrations_are_good_ones() -> None:
    made = compiled(optimizer="bootstrap")
    for name, wanted in (("act.predict", "action"), ("judge.predict", "label")):
        demos = made.prompts_after[name]["demos"]
        assert demos
        assert all(good((None, demo, {wanted: demo[wanted]})) for demo in demos)


def test_of_a_single_step_all_calls_are_fit() -> None:
    assert fit(dspy.Prediction(verdict=None), (None, {"task": "t"}, {"label": "success"}))
