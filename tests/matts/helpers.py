"""A world of booths, which say to which rollout they belong: so a script can tell rollouts apart by what they read."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig, MattsMode
from rb_dspy.errors import InfrastructureError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Outcome, Task
from rb_dspy.testing import Prompt, Reply, ScriptedEngine, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from rb_dspy.testing.lm import AsyncScriptedEngine
from tests.worlds import item

MODES: tuple[MattsMode, ...] = ("parallel", "sequential", "best_of_n", "vanilla")


def booth_task(number: int = 1) -> Task:
    return Task(id=f"booth/{number}", instruction=f"Make booth light up, round {number}.", env="booth")


@dataclass
class House:
    """An environment factory that remembers what it made. ``faults``: rollout -> where it breaks, and how."""

    steps: int = 1
    reopens: bool = False
    instant: bool = False
    faults: Mapping[str, tuple[str, Callable[[], BaseException]]] = field(default_factory=dict)
    made: list[Booth] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, task: Task, rollout_id: str) -> Booth:
        self.breaks(rollout_id, "factory")
        booth = (Reopening if self.reopens else Booth)(self, rollout_id)
        with self.lock:
            self.made.append(booth)
        return booth

    def breaks(self, rollout: str, where: str) -> None:
        place, error = self.faults.get(rollout, ("", ValueError))
        if place == where:
            raise error()

    def __deepcopy__(self, memo: dict[int, Any]) -> House:
        return self

    @property
    def closed(self) -> list[int]:
        """How often each booth was closed."""
        return [booth.closed for booth in self.made]


class Booth:
    """Takes words; the last one is the answer, and the right one lights it up."""

    action_rules = "one word"

    def __init__(self, house: House, rollout: str) -> None:
        self.house = house
        self.instant = house.instant
        self.rollout = rollout
        self.words: list[str] = []
        self.closed = 0
        self.reset_with: list[Task] = []

    def reset(self, task: Task) -> str:
        self.house.breaks(self.rollout, "reset")
        self.reset_with.append(task)
        return f"Booth {self.rollout} waits."

    def step(self, action: str) -> tuple[str, bool]:
        assert not self.closed
        self.house.breaks(self.rollout, f"step {len(self.words)}")
        self.words.append(action)
        state = "lights up" if action == "right" else "stays dark"
        return f"Booth {self.rollout} {state}.", len(self.words) >= self.house.steps

    def valid_actions(self) -> None:
        return None

    def answer(self) -> str | None:
        self.house.breaks(self.rollout, "answer")
        return self.words[-1] if self.words else None

    def outcome(self) -> Outcome:
        raise AssertionError("nobody but a scorer may ask for ground truth")

    def close(self) -> None:
        self.closed += 1
        self.house.breaks(self.rollout, "close")


class Reopening(Booth):
    def reopen(self) -> str | None:
        self.house.breaks(self.rollout, "reopen")
        return f"Booth {self.rollout} waits again."


def role_of(prompt: Prompt) -> str:
    for field_name, role in (("action", "agent"), ("label", "judge"), ("choice", "selector"), ("decision", "checker")):
        if field_name in prompt.wants:
            return role
    return "contraster" if "attempts" in prompt else "distiller"


def booth_of(text: str) -> str:
    """The rollout that the last booth in ``text`` belongs to."""
    return re.findall(r"Booth (\d+)", text)[-1]


@dataclass
class Script:
    """Plays every role in a booth. ``words``: rollout -> what it says (else ``wrong``). Other roles can be replaced."""

    words: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, Callable[[Prompt], Reply]] = field(default_factory=dict)

    def __call__(self, prompt: Prompt) -> Reply:
        role = role_of(prompt)
        if role in self.roles:
            return self.roles[role](prompt)
        return self.usual(prompt)

    def usual(self, prompt: Prompt) -> Reply:
        role = role_of(prompt)
        if role == "agent":
            return {"thought": "Let me see.", "action": self.words.get(booth_of(prompt["observation"]), "wrong")}
        if role == "judge":
            lit = "lights up" in prompt["trajectory"]
            return {"reasons": "By its light.", "label": "success" if lit else "failure"}
        if role == "selector":
            shown = transcripts(prompt["candidates"])
            lit_ones = [number for number, text in enumerate(shown, 1) if "lights up" in text]
            return {"analysis": "By their light.", "choice": (lit_ones or [1])[0]}
        if role == "checker":
            return {"findings": "All is well.", "decision": "confirm"}
        if role == "contraster":
            return {"analysis": "They differ.", "memory_items": [item("Compare", "Say the other word.", evidence=[1])]}
        content = f"Remember what booth {booth_of(prompt['trajectory'])} said."
        return {"analysis": "As it is.", "memory_items": [item(f"Alone {content}", content)]}


def transcripts(listed: str) -> list[str]:
    """The transcripts in what a contraster or a selector reads, in order."""
    return re.split(r"^=== attempt \d+.* ===\n", listed, flags=re.MULTILINE)[1:]


def scaled(
    script: Callable[[Prompt], Reply] | Any = None,
    house: House | None = None,
    *,
    k: int | None = None,
    mode: MattsMode | None = None,
    config: MattsConfig | None = None,
    **program: Any,
) -> MaTTS:
    """A MaTTS in a house of booths. ``script`` may be a language model, too."""
    lm = script if isinstance(script, dspy.BaseLM) else scripted_lm(script or Script())
    base = ReasoningBank(backbones=Backbones(agent=lm), environments=house or House(), **program)
    return MaTTS(base, k, mode, config=config)


def asked(run: MaTTS) -> list[Prompt]:
    assert run.backbones is not None
    engine = run.backbones.lm("agent").engine
    found: list[Prompt] = [*engine.prompts, *getattr(engine, "also", [])]
    return found


def counts(run: MaTTS) -> dict[str, int]:
    """Role -> how often it was asked."""
    return dict(Counter(role_of(prompt) for prompt in asked(run)))


def wait_with_lessons(bank: MemoryBank, run: MaTTS, task: Task | None = None) -> None:
    """Leave rollouts in ``bank`` whose lessons are drawn, and could not be appended."""

    def down(self: HashEmbedder, texts: Sequence[str]) -> Any:
        raise InfrastructureError("no embedder")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HashEmbedder, "embed", down)  # not asked for anything before: an empty bank is not searched
        with pytest.raises(InfrastructureError, match="no embedder"):
            run(task=task or booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert kept.state.stage == "distilled"


async def called(run: MaTTS, asynchronous: bool, **kwargs: Any) -> dspy.Prediction:
    return await run.acall(**kwargs) if asynchronous else run(**kwargs)


def slow_lm(script: Callable[[Prompt], Reply], delay: Callable[[Prompt], float]) -> Any:
    """A scripted LM whose calls take different times; without blocking the event loop for asyncio."""

    def slowly(prompt: Prompt) -> Reply:
        time.sleep(delay(prompt))
        return script(prompt)

    class Slow(AsyncScriptedEngine):
        async def complete(self, request: lm15.Request) -> lm15.Response:
            response = await super().complete(request)
            await asyncio.sleep(delay(self.engine.prompts[-1]))  # nothing came in between: no latency of its own
            return response

    engine, other = ScriptedEngine(slowly), ScriptedEngine(script)
    engine.also = other.prompts  # type: ignore[attr-defined]
    return dspy.LM("scripted/slow", engine=engine, async_engine=Slow(other), cache=False, num_retries=0)
