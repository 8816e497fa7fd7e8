"""Rollouts that have ended are judged, kept and contrasted without waiting for more than they need."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig
from rb_dspy.errors import InfrastructureError
from rb_dspy.testing import Prompt, Reply
from rb_dspy.testing.embedder import HashEmbedder
from tests.matts.helpers import (
    Script,
    asked,
    booth_of,
    booth_task,
    called,
    counts,
    role_of,
    scaled,
    slow_lm,
    transcripts,
)

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
PATIENCE = 10.0


@BOTH
async def test_a_rollout_is_judged_while_another_goes_on(bank: MemoryBank, asynchronous: bool) -> None:
    judged_at: dict[str, float] = {}
    ended_at: list[float] = []

    def delay(prompt: Prompt) -> float:
        if role_of(prompt) == "judge":
            judged_at[booth_of(prompt["trajectory"])] = time.monotonic()
        if role_of(prompt) == "agent" and booth_of(prompt["observation"]) == "2":
            ended_at.append(time.monotonic() + 1.0)
            return 1.0
        return 0.0

    await called(scaled(slow_lm(Script(), delay), k=3), asynchronous, task=booth_task(), bank=bank)
    assert judged_at["0"] < ended_at[0]
    assert judged_at["1"] < ended_at[0]
    assert judged_at["2"] >= ended_at[0]


@BOTH
async def test_contrast_and_selection_wait_for_all_rollouts(bank: MemoryBank, asynchronous: bool) -> None:
    """That they wait for no judge is in ``test_depth``."""
    began: dict[str, float] = {}

    def delay(prompt: Prompt) -> float:
        role = role_of(prompt)
        began.setdefault(role, time.monotonic())
        return 0.3 if role == "agent" and booth_of(prompt["observation"]) == "1" else 0.0

    run = scaled(slow_lm(Script(), delay), k=4)
    await called(run, asynchronous, task=booth_task(), bank=bank)
    assert min(began["contraster"], began["selector"]) >= began["agent"] + 0.3
    (contrast,) = [prompt for prompt in asked(run) if role_of(prompt) == "contraster"]
    assert [booth_of(text) for text in transcripts(contrast["attempts"])] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("role", ["judge", "contraster", "selector"])
def test_all_rollouts_are_in_the_bank_while_a_model_thinks_about_them(bank: MemoryBank, role: str) -> None:
    found: list[int] = []

    def look(prompt: Prompt) -> Reply:
        until = time.monotonic() + PATIENCE
        while not (waiting := bank.pending()) and time.monotonic() < until:
            time.sleep(0.01)
        found.extend(len(each.state.trajectories) for each in waiting)
        return Script().usual(prompt)

    scaled(Script(roles={role: look}), k=3)(task=booth_task(), bank=bank)
    assert found == [3] * (3 if role == "judge" else 1)


def test_an_interrupt_in_an_early_judge_keeps_what_had_ended(bank: MemoryBank) -> None:
    ended = threading.Event()

    def judge(prompt: Prompt) -> Reply:
        if booth_of(prompt["trajectory"]) == "0":
            ended.wait(PATIENCE)
            raise KeyboardInterrupt
        ended.set()  # rollout 1 has ended, too
        return Script().usual(prompt)

    def agent(prompt: Prompt) -> Reply:
        if booth_of(prompt["observation"]) == "2":
            time.sleep(2 * PATIENCE)
        return Script().usual(prompt)

    run = scaled(Script(roles={"judge": judge, "agent": agent}), k=3)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(task=booth_task(), bank=bank)
    assert time.monotonic() - started < PATIENCE
    (kept,) = bank.pending()
    assert [trajectory.rollout_id for trajectory in kept.state.trajectories] == ["0", "1"]
    assert scaled(k=3).resume(kept).launched == 2


ALL_JUDGED = pytest.mark.parametrize(
    ("role", "config"),
    [
        ("selector", {"mode": "vanilla"}),
        ("selector", {"mode": "best_of_n"}),
        ("selector", {"mode": "best_of_n", "select": {"orders": 3}, "at_once": 2}),
        ("selector", {"contrast": {"labels": True}}),
        ("contraster", {"select": {"verdicts": True}}),
        ("contraster", {"adaptive": {"enabled": True, "first": 3}}),
        ("selector", {"adaptive": {"enabled": True, "first": 3}}),
    ],
    ids=str,
)


@ALL_JUDGED
@BOTH
async def test_verdicts_that_are_all_there_are_in_the_bank_before_a_model_is_asked_for_more(
    bank: MemoryBank, asynchronous: bool, role: str, config: dict[str, Any]
) -> None:
    found: list[list[str]] = []

    def look(prompt: Prompt) -> Reply:
        found.extend([verdict.label for verdict in kept.verdicts or ()] for kept in bank.pending())
        return Script().usual(prompt)

    run = scaled(Script({"1": "right"}, {role: look}), config=MattsConfig.model_validate({"k": 3, **config}))
    await called(run, asynchronous, task=booth_task(), bank=bank)
    assert found == [["failure", "success", "failure"]] * counts(run)[role]


@ALL_JUDGED
def test_an_interrupt_after_that_costs_no_verdict(bank: MemoryBank, role: str, config: dict[str, Any]) -> None:
    def interrupted(prompt: Prompt) -> Reply:
        raise KeyboardInterrupt

    with_config = MattsConfig.model_validate({"k": 3, **config})
    with pytest.raises(KeyboardInterrupt):
        scaled(Script({"1": "right"}, {role: interrupted}), config=with_config)(task=booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert kept.state.stage == "judged"
    again = scaled(Script({"1": "right"}), config=with_config)
    done = again.resume(kept)
    assert "judge" not in counts(again)
    assert [verdict.label for verdict in done.verdicts] == ["failure", "success", "failure"]
    assert done.answer == "right"
    assert bank.pending() == []


def test_rollouts_that_cannot_be_kept_are_an_error(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise InfrastructureError("the disk is full")

    monkeypatch.setattr(bank, "ingest", full)
    with pytest.raises(InfrastructureError, match="the disk is full"):
        scaled(k=3)(task=booth_task(), bank=bank)


def test_a_judge_that_breaks_early_is_asked_again(bank: MemoryBank) -> None:
    broken = threading.Lock()

    def judge(prompt: Prompt) -> Reply:
        if booth_of(prompt["trajectory"]) == "1" and broken.acquire(blocking=False):
            raise InfrastructureError("busy")
        return Script().usual(prompt)

    run = scaled(Script({"1": "right"}, {"judge": judge}), k=3)
    done = run(task=booth_task(), bank=bank)
    assert [verdict.label for verdict in done.verdicts] == ["failure", "success", "failure"]
    assert sum(role_of(prompt) == "contraster" for prompt in asked(run)) == 1


def test_with_a_limit_nobody_takes_a_place_by_waiting(bank: MemoryBank) -> None:
    for at_once in (1, 2):
        done = scaled(config=MattsConfig(k=3, at_once=at_once))(task=booth_task(at_once), bank=bank)
        assert len(done.trajectories) == 3


def test_a_model_is_asked_once_about_rollouts_that_waited_already(tmp_path: Path) -> None:
    """They differ in nothing but the time they took; what is in the bank of them counts."""

    def down(prompt: Prompt) -> Reply:
        raise InfrastructureError("overloaded")

    with MemoryBank.open(tmp_path / "bank.sqlite", scope="test", embedder=HashEmbedder()) as bank:
        with pytest.raises(InfrastructureError, match="overloaded"):
            scaled(Script(roles={"contraster": down}), k=3)(task=booth_task(), bank=bank)
        run = scaled(k=3)
        run(task=booth_task(), bank=bank)
        assert (counts(run)["contraster"], counts(run)["selector"]) == (1, 1)
        assert (len(bank.experiences()), bank.pending()) == (1, [])
