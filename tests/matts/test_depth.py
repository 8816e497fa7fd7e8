"""What does not wait for anything is asked at once. Shown by calls that end only when all of them are under way."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig
from rb_dspy.errors import InfrastructureError
from rb_dspy.matts import MaTTS
from rb_dspy.testing import Prompt, Reply, ScriptedEngine
from rb_dspy.testing.lm import AsyncScriptedEngine
from tests.matts.helpers import Script, booth_task, role_of, scaled

K = 5
PATIENCE = 10.0
"""Seconds until a call gives up on the others: a barrier that breaks is an error of the language model."""


class _Meeting:
    """Calls of the first kind wait for each other, then all others do."""

    def __init__(self, make: Any, orders: int = 1) -> None:
        self.agents = make(K)
        self.rest = make(K + 1 + orders)
        self.asked: Counter[str] = Counter()

    def room(self, prompt: Prompt) -> Any:
        role = role_of(prompt)
        self.asked[role] += 1
        return self.agents if role == "agent" else self.rest


def _threads(orders: int = 1) -> tuple[Any, _Meeting]:
    meeting = _Meeting(threading.Barrier, orders)

    def script(prompt: Prompt) -> Reply:
        meeting.room(prompt).wait(PATIENCE)
        return Script().usual(prompt)

    return dspy.LM("scripted/lm", engine=ScriptedEngine(script), cache=False, num_retries=0), meeting


def _asyncio() -> tuple[Any, _Meeting]:
    meeting = _Meeting(asyncio.Barrier)

    class Engine(AsyncScriptedEngine):
        async def complete(self, request: lm15.Request) -> lm15.Response:
            response = await super().complete(request)
            async with asyncio.timeout(PATIENCE):
                await meeting.room(self.engine.prompts[-1]).wait()
            return response

    engine = ScriptedEngine(Script())
    return dspy.LM("scripted/lm", engine=engine, async_engine=Engine(engine), cache=False, num_retries=0), meeting


def _exactly(meeting: _Meeting, selectors: int = 1) -> None:
    assert meeting.asked == {"agent": K, "judge": K, "contraster": 1, "selector": selectors}


def test_judging_contrast_and_selection_are_under_way_together(bank: MemoryBank) -> None:
    lm, meeting = _threads()
    scaled(lm, k=K)(task=booth_task(), bank=bank)
    _exactly(meeting)


async def test_for_asyncio_too(bank: MemoryBank) -> None:
    lm, meeting = _asyncio()
    await scaled(lm, k=K).acall(task=booth_task(), bank=bank)
    _exactly(meeting)


def test_so_are_the_orders_of_a_selector(bank: MemoryBank) -> None:
    lm, meeting = _threads(orders=3)
    config = MattsConfig.model_validate({"k": K, "select": {"orders": 3}})
    scaled(lm, config=config)(task=booth_task(), bank=bank)
    _exactly(meeting, selectors=3)


@pytest.mark.parametrize(
    "config", [{"contrast": {"labels": True}}, {"select": {"verdicts": True}}, {"at_once": K - 1}], ids=str
)
def test_what_needs_verdicts_or_may_not_run_at_once_waits(
    bank: MemoryBank, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The barrier does notice: here it must break."""
    monkeypatch.setattr("tests.matts.test_depth.PATIENCE", 0.05)
    lm, _ = _threads()
    run: MaTTS = scaled(lm, config=MattsConfig.model_validate({"k": K, **config}))
    with pytest.raises(InfrastructureError):
        run(task=booth_task(), bank=bank)
