"""What a call used is the same from one thread, from many, and from asyncio."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from rb_dspy.backbones import metered
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ContrastConfig, MattsConfig, MattsMode, SelectConfig
from rb_dspy.schema import RoleUsage, Usage
from rb_dspy.testing.embedder import HashEmbedder
from tests.matts.helpers import MODES, House, Script, booth_of, booth_task, called, role_of, scaled, slow_lm


def _counted(usage: Usage) -> dict[str, tuple[int, int, int]]:
    return {role: (used.calls, used.prompt_tokens, used.completion_tokens) for role, used in usage.items()}


def _config(mode: MattsMode, at_once: int | None) -> MattsConfig:
    return MattsConfig(mode=mode, k=4, at_once=at_once, select=SelectConfig(orders=2))


def _varied(prompt: Any) -> float:
    return 0.003 * (int(booth_of(prompt.text)) % 3) if role_of(prompt) == "agent" else 0.0


async def _used(mode: MattsMode, at_once: int | None, asynchronous: bool) -> tuple[Any, Any]:
    """By our account and by dspy's."""
    run = scaled(slow_lm(Script({"2": "right"}), _varied), House(steps=3), config=_config(mode, at_once))
    with (
        MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank,
        dspy.context(track_usage=True),
    ):
        done = await called(run, asynchronous, task=booth_task(), bank=bank)
    dspys = {
        lm: (entry["prompt_tokens"], entry["completion_tokens"]) for lm, entry in (done.get_lm_usage() or {}).items()
    }
    return _counted(done.usage), dspys


@pytest.mark.parametrize("mode", MODES)
async def test_usage_is_that_of_a_single_threaded_run(mode: MattsMode) -> None:
    ours, dspys = await _used(mode, 1, asynchronous=False)
    assert ours["agent"][0] >= 4
    prompt_tokens = sum(used[1] for used in ours.values())
    completion_tokens = sum(used[2] for used in ours.values())
    assert dspys == {"scripted/slow": (prompt_tokens, completion_tokens)}
    assert await _used(mode, None, asynchronous=False) == (ours, dspys)
    assert await _used(mode, None, asynchronous=True) == (ours, dspys)


def test_calls_are_counted_under_the_role_that_made_them(bank: MemoryBank) -> None:
    config = MattsConfig(k=3, select=SelectConfig(orders=3), contrast=ContrastConfig(labels=True))
    done = scaled(house=House(steps=2), config=config)(task=booth_task(), bank=bank)
    assert {role: used.calls for role, used in done.usage.items()} == {
        "agent": 6,
        "judge": 3,
        "contraster": 1,
        "selector": 3,
    }


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("mode", MODES)
async def test_ledgers_nest(bank: MemoryBank, mode: MattsMode, asynchronous: bool) -> None:
    run = scaled(house=House(steps=2), k=3, mode=mode)
    with metered() as outer:
        one = await called(run, asynchronous, task=booth_task(1), bank=bank)
        between = outer.usage()
        two = await called(run, asynchronous, task=booth_task(2), bank=bank)
    assert between == one.usage
    assert outer.usage() == {role: one.usage[role] + two.usage[role] for role in one.usage}
    rollouts = [trajectory.usage["agent"] for trajectory in one.trajectories]
    assert sum((used.calls for used in rollouts), 0) == one.usage["agent"].calls
    total = sum(rollouts, RoleUsage())
    assert (total.prompt_tokens, total.completion_tokens) == (
        one.usage["agent"].prompt_tokens,
        one.usage["agent"].completion_tokens,
    )
