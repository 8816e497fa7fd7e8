"""How far a compile is, told also while scores are taken."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.compile.progress import Progress
from rb_dspy.errors import Unscored
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.school import compiled, program, streams
from tests.compile.teacher import pupil

PHASES = [f"scoring {name} {when}" for name in ("dev", "held-out") for when in ("before", "after")]


def told_in(told: list[Progress]) -> dict[str, list[Progress]]:
    return {note: list(found) for note, found in groupby(told, key=lambda progress: progress.note)}


@pytest.mark.stress
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("stage", "orders"), [("judge", 1), ("all", 1), ("all", 3)])
def test_every_task_that_is_scored_is_told_before_and_after(stage: str, orders: int, threads: int) -> None:
    told: list[Progress] = []
    made = compiled(optimizer="gepa", stage=stage, orders=orders, threads=threads, on_progress=told.append)
    assert made.changed
    phases = told_in(told)
    assert list(phases)[-4:] == PHASES
    for note in PHASES:
        found = phases[note]
        split = streams().dev if "dev" in note else streams().held_out
        count = orders * len(split) if stage == "all" else found[0].to_score
        assert count >= len(split)
        assert [progress.scored for progress in found] == list(range(count + 1))
        assert {progress.to_score for progress in found} == {count}
        assert {progress.metric_calls for progress in found} == {made.metric_calls}
        tokens = [sum(used.prompt_tokens for used in progress.usage.values()) for progress in found]
        assert tokens == sorted(tokens)
        assert tokens[-1] > tokens[0]
    others = [progress for note, found in phases.items() if note not in PHASES for progress in found]
    assert others
    assert {(progress.scored, progress.to_score) for progress in others} == {(0, 0)}


@pytest.mark.parametrize("threads", [1, 3])
def test_every_task_that_is_harvested_is_told_with_its_rollouts(threads: int) -> None:
    told: list[Progress] = []
    compiled(optimizer="gepa", stage="judge", threads=threads, on_progress=told.append)
    phases = told_in(told)
    parts = {"compile": streams().compile, "dev": streams().dev, "held-out": streams().held_out}
    for name, stream in parts.items():
        found = [(progress.harvested, progress.to_harvest) for progress in phases[f"harvesting the {name} stream"]]
        count, k = len(stream), 2
        assert found == [(k * done, k * count) for done in range(count + 1)]
    others = [progress for note, found in phases.items() if not note.startswith("harvest") for progress in found]
    assert {(progress.harvested, progress.to_harvest) for progress in others} == {(0, 0)}


def test_rollouts_that_break_are_not_harvested_and_who_is_told_can_end_it() -> None:
    class Enough(Exception):
        """Stop here."""

    broken = streams().compile.tasks[1].instruction
    told: list[Progress] = []

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and broken in prompt["task"]:
            raise lm15.ServerError("overloaded")
        return pupil(prompt)

    def stop(progress: Progress) -> None:
        told.append(progress)
        if progress.harvested == 6:
            raise Enough

    with pytest.raises(Enough):
        compiled(program=program(scripted_lm(script)), optimizer="bootstrap", stage="judge", on_progress=stop)
    count = 2 * len(streams().compile)
    found = [(progress.harvested, progress.to_harvest) for progress in told if progress.to_harvest]
    assert found == [(0, count), (2, count), (2, count - 2), (4, count - 2), (6, count - 2)]


@pytest.mark.stress
def test_what_breaks_in_scoring_is_told_as_done_and_what_did_not_change_is_not_scored_again() -> None:
    told: list[Progress] = []
    place = streams().held_out.tasks[0].template or ""

    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants and place in prompt["task"] and told and "held-out before" in told[-1].note:
            raise lm15.ServerError("overloaded")
        return pupil(prompt)

    made = compiled(
        program=program(scripted_lm(script)), reflection=scripted_lm(lambda prompt: {}), optimizer="gepa",
        on_progress=told.append, budget=30,
    )  # fmt: skip
    assert made.changed == []
    assert made.scores.held_out.broken_before == 12
    phases = told_in(told)
    assert phases["scoring held-out before"][-1].scored == 3 * len(streams().held_out)  # in three orders
    assert [(progress.scored, progress.to_score) for progress in phases["scoring held-out after"]] == [(0, 0)]


@pytest.mark.parametrize("stage", ["judge", "all"])
@pytest.mark.parametrize("threads", [1, 3])
def test_who_is_told_can_end_the_scoring(stage: str, threads: int) -> None:
    class Enough(Exception):
        """Stop here."""

    told: list[Progress] = []

    def stop(progress: Progress) -> Any:
        told.append(progress)
        if progress.scored == 3:
            raise Enough

    with pytest.raises(Unscored) as caught:  # with the prompts that were found
        compiled(optimizer="bootstrap", stage=stage, threads=threads, on_progress=stop)
    assert isinstance(caught.value.__cause__, Enough)
    assert {progress.note for progress in told if progress.to_score} == {"scoring dev before"}
