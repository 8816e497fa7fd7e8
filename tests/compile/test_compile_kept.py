"""What was paid for is never lost, and what broke is told: on which side, and what is left without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.compile.examples import judge_example
from rb_dspy.compile.harvest import harvest
from rb_dspy.compile.measure import rate_examples
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.scores import estimate
from rb_dspy.compile.stages import stage_module
from rb_dspy.compile.state import load_program
from rb_dspy.errors import DspyTooOld, InfrastructureError, InputError, Unscored
from rb_dspy.schema import Outcome, Trajectory
from rb_dspy.stream import TaskStream
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm
from tests.compile.school import compiled, program, streams
from tests.compile.teacher import EVIDENCE, locks, pupil


class Fails:
    """Plays all roles; in one phase the judge breaks on the tasks whose instruction holds ``where``."""

    def __init__(self, phase: str, where: str = "") -> None:
        self._phase, self._where = phase, where
        self._now = False
        self.told: list[Progress] = []
        self.lm = scripted_lm(self._script)

    def on_progress(self, progress: Progress) -> None:
        self._now = progress.note == self._phase
        self.told.append(progress)

    def _script(self, prompt: Prompt) -> Reply:
        if self._now and "label" in prompt.wants and self._where in prompt["task"]:
            raise lm15.ServerError("overloaded")
        return pupil(prompt)

    def run(self, **kwargs: Any) -> Any:
        given = {"optimizer": "gepa", "stage": "judge", **kwargs}
        return compiled(program=program(self.lm), on_progress=self.on_progress, **given)


def test_a_held_out_stream_without_examples_is_refused_before_the_budget_is_spent() -> None:
    few = streams()
    shut = TaskStream("held-out", tuple(locks(1, 2, first=5)[1:]))  # no rollout opens it
    object.__setattr__(few, "held_out", shut)
    fails = Fails("never")
    with pytest.raises(InputError, match="held-out: its runs gave no example for stage 'select'"):
        fails.run(stage="select", streams=few)
    assert {progress.metric_calls for progress in fails.told} == {0}


def test_a_budget_that_can_find_nothing_is_refused_before_anybody_is_asked() -> None:
    for stage, budget in (("judge", 3), ("all", 5)):
        fails = Fails("never")
        with pytest.raises(InputError, match="too small for gepa"):
            fails.run(stage=stage, budget=budget)
        assert fails.lm.engine.prompts == []


@pytest.mark.parametrize("with_folder", [False, True])
def test_what_was_found_is_there_when_scoring_breaks(tmp_path: Path, with_folder: bool) -> None:
    folder = tmp_path / "here" if with_folder else None
    with pytest.raises(Unscored, match=r"prompts that were found are .*all \d+ examples broke.*overloaded") as caught:
        Fails("scoring held-out after").run(folder=folder)
    assert caught.value.exit_code == InfrastructureError.exit_code
    found = [caught.value.program]
    if folder is not None:
        assert str(folder / "best.json") in str(caught.value)
        found.append(program())
        load_program(found[1], folder / "best.json")
        assert not (folder / "compiled.json").exists()
        assert Fails("never").run(folder=folder).scores.held_out.after.mean == 1.0
    for each in found:
        assert each.judge.predict.signature.instructions.endswith(EVIDENCE)


@pytest.mark.parametrize("with_folder", [False, True])
def test_so_it_is_when_who_is_told_how_far_it_is_breaks(tmp_path: Path, with_folder: bool) -> None:
    folder = tmp_path / "here" if with_folder else None

    def on_progress(progress: Progress) -> None:
        if progress.note == "scoring held-out after":
            raise ValueError("no room\nfor a bar")

    with pytest.raises(
        Unscored, match=r"prompts that were found are .*broke: ValueError: no room for a bar$"
    ) as caught:
        compiled(optimizer="gepa", stage="judge", on_progress=on_progress, folder=folder)
    assert (type(caught.value.__cause__), caught.value.exit_code) == (ValueError, 1)
    assert caught.value.program.judge.predict.signature.instructions.endswith(EVIDENCE)


@pytest.mark.stress
def test_what_broke_in_scoring_is_told_by_side_and_what_is_left_without_it() -> None:
    whole = Fails("never").run(stage="all").scores.held_out
    assert (whole.broken, whole.clean) == (0, None)
    place = streams().held_out.tasks[0].template or ""
    after = Fails("scoring held-out after", place).run(stage="all")
    held_out = after.scores.held_out
    assert (held_out.broken_before, held_out.broken_after) == (0, 12)  # four tasks in three orders
    assert held_out.after.mean == pytest.approx(1 - 4 / 12)
    assert held_out.clean is not None
    assert held_out.clean.tasks == 8
    assert held_out.clean.mean > held_out.difference.mean
    assert (after.scores.dev.broken, after.broken) == (0, 0)
    before = Fails("scoring held-out before", place).run(stage="all").scores.held_out
    assert (before.broken_before, before.broken_after) == (12, 0)
    assert before.clean is not None
    assert before.clean.mean < before.difference.mean


def test_a_result_of_a_newer_dspy_is_not_handed_out(tmp_path: Path) -> None:
    given: dict[str, Any] = {"optimizer": "bootstrap", "stage": "judge", "folder": tmp_path / "here"}
    compiled(**given)
    result = tmp_path / "here" / "compiled.json"
    data = json.loads(result.read_text())
    data["state"]["versions"]["dspy"] = "9.0.0"
    result.write_text(json.dumps(data))
    with pytest.raises(DspyTooOld, match=r"saved with dspy 9\.0\.0"):
        compiled(**given)


def test_examples_of_other_streams_are_refused() -> None:
    taught = harvest(program(), [streams().held_out], embedder=HashEmbedder())
    asked = scripted_lm(pupil)
    with pytest.raises(InputError, match=r"harvest: task locks/\d/\d is not in the compile stream to-compile"):
        compiled(program=program(asked), stage="judge", optimizer="bootstrap", harvest=taught)
    assert asked.engine.prompts == []


def test_always_the_same_verdict_is_right_half_of_the_time_however_labels_lie() -> None:
    """Six successes on six tasks, and on one of them eighteen failures."""
    tasks = locks(3, 2)
    examples = [judge_example(task, Trajectory(task_id=task.id), Outcome(reward=1, success=True)) for task in tasks]
    bad = Outcome(reward=0, success=False)
    examples += [judge_example(tasks[0], Trajectory(task_id=tasks[0].id), bad) for _ in range(18)]
    for label in ("success", "failure"):
        student = program(scripted_lm(lambda prompt, label=label: {"reasons": "It is.", "label": label}))
        cast = Cast(student.backbones, Answers())
        ratings = rate_examples("judge", stage_module(student, "judge"), examples, metric_for("judge", student), cast)
        assert estimate(ratings).mean == pytest.approx(0.5), label
