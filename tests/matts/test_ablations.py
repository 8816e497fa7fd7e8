"""Lessons from single rollouts: each distilled alone (vanilla), or only the one that is handed in (best of n)."""

from __future__ import annotations

from typing import Any

import pytest
from dspy import lm15

from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsMode
from rb_dspy.errors import BackboneError
from rb_dspy.testing import Prompt, Reply
from tests.matts.helpers import (
    House,
    Script,
    asked,
    booth_of,
    booth_task,
    called,
    role_of,
    scaled,
    transcripts,
    wait_with_lessons,
)

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


def _distiller(broken: str, error: Exception) -> Script:
    """Booth 1 lights up; the distiller breaks at one booth."""

    def distiller(prompt: Prompt) -> Reply:
        if booth_of(prompt["trajectory"]) == broken:
            raise error
        return Script().usual(prompt)

    return Script({"1": "right"}, roles={"distiller": distiller})


@BOTH
async def test_a_distiller_that_breaks_for_one_rollout_costs_its_lessons_only(
    bank: MemoryBank, asynchronous: bool
) -> None:
    house = House(faults={"0": ("reset", ValueError)})
    script = _distiller("2", lm15.ServerError("overloaded"))
    done = await called(scaled(script, house, k=4, mode="vanilla"), asynchronous, task=booth_task(), bank=bank)
    assert [item.content for item in done.memory_items] == [f"Remember what booth {n} said." for n in (1, 3)]
    assert done.experience.note.startswith("rollout 2: not distilled: ")  # by its name, not its place
    assert "overloaded" in done.experience.note
    assert "rollout 1" not in done.experience.note
    assert bank.pending() == []


def test_a_distiller_that_cannot_be_used_at_all_is_an_error(bank: MemoryBank) -> None:
    with pytest.raises(BackboneError, match="bad key"):
        scaled(_distiller("2", lm15.AuthError("bad key")), k=3, mode="vanilla")(task=booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert (kept.state.stage, len(kept.state.trajectories)) == ("judged", 3)


@BOTH
async def test_lessons_of_rollouts_that_are_alike_are_distinct_samples(bank: MemoryBank, asynchronous: bool) -> None:
    run = scaled(k=3, mode="vanilla")
    await called(run, asynchronous, task=booth_task(), bank=bank)
    distillers = [prompt for prompt in asked(run) if role_of(prompt) == "distiller"]
    assert sorted(prompt.seed or 0 for prompt in distillers) == [0, 1, 2]


def _teaching(*booths: str, handed_in: str = "1") -> Script:
    """Booth 1 lights up; only these booths teach anything, and this one is chosen."""

    def distiller(prompt: Prompt) -> Reply:
        if booth_of(prompt["trajectory"]) in booths:
            return Script().usual(prompt)
        return {"analysis": "Nothing new.", "memory_items": []}

    def selector(prompt: Prompt) -> Reply:
        shown = [booth_of(text) for text in transcripts(prompt["candidates"])]
        return {"analysis": "This one.", "choice": shown.index(handed_in) + 1}

    return Script({"1": "right"}, roles={"distiller": distiller, "selector": selector})


POLARITIES: list[tuple[MattsMode, dict[str, Any], str]] = [
    ("vanilla", {"booths": "02"}, "failure"),
    ("vanilla", {"booths": "1"}, "success"),
    ("vanilla", {"booths": "01"}, "success"),  # of both: as the verdicts together
    ("best_of_n", {"booths": "012", "handed_in": "0"}, "failure"),
    ("best_of_n", {"booths": "012", "handed_in": "1"}, "success"),
    ("parallel", {"booths": "", "handed_in": "0"}, "success"),  # drawn from all
]


@pytest.mark.parametrize("resumed", [False, True], ids=["at once", "resumed"])
@pytest.mark.parametrize(("mode", "teaching", "polarity"), POLARITIES)
def test_lessons_are_of_the_rollouts_that_they_came_from(
    bank: MemoryBank, mode: MattsMode, teaching: dict[str, Any], polarity: str, resumed: bool
) -> None:
    script = _teaching(*teaching["booths"], handed_in=teaching.get("handed_in", "1"))
    run = scaled(script, k=3, mode=mode)
    if resumed:
        wait_with_lessons(bank, run)
        done = scaled(script, k=3, mode=mode).resume(*bank.pending())
    else:
        done = run(task=booth_task(), bank=bank)
    assert done.memory_items
    assert {item.polarity for item in done.memory_items} == {polarity}
    assert {item.polarity for item in bank.items()} == {polarity}


def test_a_note_of_the_only_rollout_needs_no_name(bank: MemoryBank) -> None:
    done = scaled(_teaching(), k=1, mode="vanilla")(task=booth_task(), bank=bank)
    assert done.experience.note == "the distiller proposed nothing"
