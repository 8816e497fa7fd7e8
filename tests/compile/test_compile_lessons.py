"""Stages distill and contrast: their lessons are rated by what the compile's own agent does with them."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.compile.progress import Progress
from rb_dspy.errors import BackboneError, InfrastructureError
from rb_dspy.testing import Prompt, Reply, scripted_lm
from rb_dspy.testing.teacher import TEACH, pupil
from tests.compile.school import compiled, program


class Fails:
    """Plays all roles; from a phase on, the agent breaks wherever it is shown a lesson."""

    def __init__(self, phase: str, error: Exception) -> None:
        self._phase, self._error = phase, error
        self._now = False
        self.lm = scripted_lm(self._script)

    def on_progress(self, progress: Progress) -> None:
        self._now = self._now or progress.note.startswith(self._phase)

    def _script(self, prompt: Prompt) -> Reply:
        if self._now and "action" in prompt.wants and "Look at the whole lock" in prompt["memory"]:
            raise self._error
        return pupil(prompt)


@pytest.mark.parametrize("stage", ["distill", "contrast"])
def test_lessons_are_made_better_and_the_programs_own_agent_does_the_siblings(stage: Any) -> None:
    other = scripted_lm(lambda prompt: {"thought": "Not mine.", "action": "0"})
    with dspy.context(lm=other):
        made = compiled(stage=stage, optimizer="gepa")
    assert other.engine.prompts == []
    assert made.candidates[0].score < 0.6 < 0.8 < max(found.score for found in made.candidates)
    held_out = made.scores.held_out
    assert held_out.before.mean == 0.5
    assert held_out.after.mean > 0.7, held_out
    units = {estimate.unit for estimate in (held_out.before, held_out.after, held_out.difference)}
    assert (units, held_out.difference.tasks) == ({"template"}, 3)  # examples of a template share siblings
    assert made.broken == 0
    assert any(TEACH in made.prompts_after[name]["instructions"] for name in made.changed)
    assert {name.partition(".")[0] for name in made.changed} == {stage}


def test_lessons_that_nobody_could_try_are_not_without_effect() -> None:
    fails = Fails("gepa", lm15.ServerError("overloaded"))
    with pytest.raises(
        InfrastructureError, match=r"10 metric calls in a row broke; the last one: none of \d sibl.*overl"
    ):
        compiled(program=program(fails.lm), stage="distill", optimizer="gepa", on_progress=fails.on_progress)


def test_a_key_that_is_refused_ends_it() -> None:
    fails = Fails("gepa", lm15.AuthError("bad key"))
    with pytest.raises(BackboneError, match="bad key"):
        compiled(program=program(fails.lm), stage="distill", optimizer="gepa", on_progress=fails.on_progress)
