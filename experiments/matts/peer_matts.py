"""Runs reasoning-bank's ``matts_run``: one JSON object a line in, one a line out. Started by ``bench``, with the peers'
interpreter; then it imports nothing of ours but the vectors and texts that both are measured with. With ``--agent`` and
the folder of the peers' packages it runs in ours, and what the peer leaves to its caller, the rollout, is our agent's.

It is given the cheapest set-up: a rollout does nothing but ask, no answer needs a repair, and no two lessons are so
near each other that it would ask a language model whether to merge them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from given import LESSONS, Space, instruction, lesson_rows
from made import item_texts


class Peer:
    """Its bank, on its store in memory or on its SQLite store, and one event loop for all calls."""

    def __init__(self, agent: Any = None) -> None:
        self._agent = agent
        with contextlib.suppress(ImportError):
            import pysqlite3  # an SQLite that loads extensions

            sys.modules["sqlite3"] = pysqlite3
        self._space = Space()
        self.dim = self._space.dimension
        self._loop = asyncio.new_event_loop()
        self._bank: Any = None
        self._latency = 0.0
        self._number = 0
        self._calls = 0

    def open(self, place: str | None, items: int) -> dict[str, Any]:
        """A new bank with ``items`` items."""
        from reasoning_bank import ReasoningBank
        from reasoning_bank.stores.inmemory import InMemoryStore
        from reasoning_bank.stores.sqlite_vec import SQLiteVecStore

        if self._bank is not None and hasattr(self._bank.store, "close"):
            self._bank.store.close()
        store: Any = SQLiteVecStore(Path(place)) if place else InMemoryStore()
        self._bank = ReasoningBank(self._llm, store=store, embedder=self)
        if place and items:
            store._conn.execute("PRAGMA synchronous=OFF")
        for number in range(items):
            self._loop.run_until_complete(self._bank.add_manual(*item_texts(number)))
        if place and items:
            store._conn.execute("PRAGMA synchronous=FULL")
        return {"items": len(store.list_all())}

    def call(self, number: int, k: int, steps: int, latency: float) -> dict[str, Any]:
        """Times of its retrieve, which ``matts_run`` leaves to the caller, and of ``matts_run``."""
        with self._agent.ready(latency) if self._agent else contextlib.nullcontext():
            return self._timed(number, k, steps, latency)

    def _timed(self, number: int, k: int, steps: int, latency: float) -> dict[str, Any]:
        self._number, self._latency, self._calls = number, latency, 0
        times = [(time.perf_counter(), time.process_time())]
        lessons = self._loop.run_until_complete(self._bank.retrieve(instruction(number), LESSONS))
        memory = self._bank.format_as_system_block(lessons)
        times.append((time.perf_counter(), time.process_time()))
        found, learned = self._loop.run_until_complete(self._matts(number, k, steps, memory))
        times.append((time.perf_counter(), time.process_time()))
        if len(found) != k or len(learned) != LESSONS:
            raise RuntimeError(f"{len(found)} rollouts of {k}, {len(learned)} lessons of {LESSONS}")
        wall, cpu = ([(after[i] - before[i]) * 1000 for before, after in pairwise(times)] for i in (0, 1))
        return {
            "retrieve": [wall[0], cpu[0]],
            "matts": [wall[1], cpu[1]],
            "calls": self._calls + (self._agent.calls if self._agent else 0),
        }

    async def _matts(self, number: int, k: int, steps: int, memory: str) -> Any:
        from reasoning_bank import matts_run

        numbers = itertools.count()

        async def rollout() -> list[dict[str, str]]:
            if self._agent:
                return await self._agent.rollout(number, steps, next(numbers), memory)  # type: ignore[no-any-return]
            turns = [{"role": "user", "content": instruction(number)}]
            for step in range(steps):
                await self._asked()
                turns.append({"role": "assistant", "content": "The end is ahead.\nforward"})
                turns.append({"role": "user", "content": f"You are in room {step + 1}."})
            return turns

        return await matts_run(rollout, instruction(number), self._bank, k)

    async def _llm(self, prompt: str, *, system: str | None = None) -> str:
        if not prompt.startswith("You are analyzing k parallel"):
            raise RuntimeError(f"asked for more than a contrast: {prompt[:200]}")
        await self._asked()
        names = ("title", "description", "content")
        return json.dumps([dict(zip(names, item_texts(row), strict=True)) for row in lesson_rows(self._number)])

    async def _asked(self) -> None:
        self._calls += 1
        await asyncio.sleep(self._latency)

    def embed(self, texts: list[str]) -> list[list[float]]:
        """It is the bank's embedder, too."""
        return self._space.embed(texts).tolist()


def main() -> None:
    agent = None
    if "--agent" in sys.argv:
        from agent import Agent

        agent = Agent()
        sys.path.append(sys.argv[-1])  # last, so that what both have is ours
    peer = Peer(agent)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(peer, request.pop("do"))(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
