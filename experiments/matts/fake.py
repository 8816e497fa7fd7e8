"""A language model that takes its time but next to no work, behind dspy's own ``LM``."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

import dspy
from dspy import lm15
from given import LATENCY, lesson_rows
from made import item_texts


def fake_lm() -> dspy.LM:
    """``lm.engine`` counts ``calls`` and has the ``latency``, in seconds."""
    engine = Engine()
    return dspy.LM("fake/lm", engine=engine, async_engine=AsyncEngine(engine), cache=False, num_retries=0)


class Engine:
    """Answers by the output field that the prompt asks for first."""

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format"})

    def __init__(self) -> None:
        self.latency = LATENCY
        self.calls: list[None] = []  # appending is safe in any thread

    def complete(self, request: lm15.Request) -> lm15.Response:
        if self.latency:
            time.sleep(self.latency)
        return self.answer(request)

    def answer(self, request: lm15.Request) -> lm15.Response:
        self.calls.append(None)
        prompt = request.messages[-1].text or ""
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant(_answer(prompt)),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=len(prompt) // 4, output_tokens=20, total_tokens=len(prompt) // 4 + 20),
        )

    def close(self) -> None:
        """Nothing to release."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        return self


class AsyncEngine:
    """The same for asyncio."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        if self._engine.latency:
            await asyncio.sleep(self._engine.latency)
        return self._engine.answer(request)

    async def aclose(self) -> None:
        """Nothing to release."""

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncEngine:
        return self


def _answer(prompt: str) -> str:
    wanted = _WANTED.findall(prompt)[-1]
    return _ANSWERS[wanted](prompt) + "\n\n[[ ## completed ## ]]"


def _lessons(prompt: str) -> str:
    number = re.search(r"\bt(\d{8})\b", prompt)
    if number is None:
        raise RuntimeError("a prompt for lessons without the task's text")
    names = ("title", "description", "content")
    items = [dict(zip(names, item_texts(row), strict=True)) for row in lesson_rows(int(number[1]))]
    if "[[ ## attempts ## ]]" in prompt:
        items = [{**item, "evidence": [1]} for item in items]
    return f"[[ ## analysis ## ]]\nThey went on.\n\n[[ ## memory_items ## ]]\n{json.dumps(items)}"


_WANTED = re.compile(r"\[\[ ## (action|label|choice|memory_items) ## \]\]")
_ANSWERS: dict[str, Callable[[str], str]] = {
    "action": lambda _: "[[ ## thought ## ]]\nThe end is ahead.\n\n[[ ## action ## ]]\nforward",
    "label": lambda _: "[[ ## reasons ## ]]\nThe last observation says so.\n\n[[ ## label ## ]]\nsuccess",
    "choice": lambda _: "[[ ## analysis ## ]]\nThey are alike.\n\n[[ ## choice ## ]]\n1",
    "memory_items": _lessons,
}
