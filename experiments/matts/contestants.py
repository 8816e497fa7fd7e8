"""The sides of the benchmark: ours with threads, ours with asyncio, and the peer in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import dspy
from fake import fake_lm
from given import LATENCY, LESSONS, Space, instruction
from ours import SCOPE, drafts
from peers import install

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task
from rb_dspy.matts import MaTTS
from rb_dspy.protocols import Environment
from rb_dspy.steps.events import Event, MemoryRetrieved, listening
from rb_dspy.testing import Corridor, Lock

HERE = Path(__file__).resolve().parent


class Took(NamedTuple):
    """Milliseconds of one call, and the model's calls in it; ``before``: how many of them until all is retrieved."""

    wall: float
    cpu: float
    calls: int
    before: float = 0.0


class Ours:
    """``MaTTS`` as it is called, its bank in memory or on disk."""

    def __init__(self, *, threads: bool = True) -> None:
        self.name = "ours, threads" if threads else "ours, asyncio"
        self._threads = threads
        self._space = Space()
        self._lm = fake_lm()
        self._program = ReasoningBank(backbones=Backbones(agent=self._lm), environments=environment)
        self._loop = asyncio.new_event_loop()
        self._bank: MemoryBank | None = None

    def open(self, place: Path | None, items: int) -> None:
        """A new bank with about ``items`` items."""
        self.close()
        self._bank = MemoryBank.open(place, scope=SCOPE, embedder=self._space)
        if items:
            self._bank.append_many(drafts(range(items // LESSONS), LESSONS))

    def call(self, number: int, k: int, steps: int, latency: float = LATENCY) -> Took:
        """One task, scaled k times."""
        bank, program, task = self._bank, MaTTS(self._program, k=k), a_task(number, steps)
        self._lm.engine.latency = latency
        self._lm.engine.calls.clear()
        retrieved: list[float] = []

        def heard(event: Event) -> None:
            if isinstance(event, MemoryRetrieved):
                retrieved.append(time.perf_counter())

        with dspy.context(disable_history=True), listening(heard):  # as in a stream: a history grows with every call
            began, cpu = time.perf_counter(), time.process_time()
            if self._threads:
                done = program(task=task, bank=bank)
            else:
                done = self._loop.run_until_complete(program.acall(task=task, bank=bank))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - began
        if len(done.trajectories) != k or len(done.memory_items) != LESSONS:
            raise RuntimeError(f"{len(done.trajectories)} rollouts of {k}; lessons: {done.experience.note}")
        return Took(wall * 1000, cpu * 1000, len(self._lm.engine.calls), (retrieved[0] - began) * 1000)

    def close(self) -> None:
        if self._bank is not None:
            self._bank.close()
            self._bank = None


class Peer:
    """reasoning-bank's ``matts_run``; see ``peer_matts``.

    With ``agent`` its rollouts make our agent's calls, in our interpreter. They take what was retrieved, so that counts
    as it does in ours. Without, rollouts do nothing but wait, and nothing is retrieved for them.
    """

    def __init__(self, *, agent: bool) -> None:
        self.name = "retrieve + matts_run, our agent" if agent else "matts_run, rollouts that wait"
        self.agent = agent
        python = install()
        (packages,) = python.parents[1].glob("lib/python*/site-packages")
        self._process = subprocess.Popen(
            [sys.executable if agent else str(python), "-W", "ignore", str(HERE / "peer_matts.py")]
            + (["--agent", str(packages)] if agent else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def open(self, place: Path | None, items: int) -> None:
        self._ask("open", place=str(place) if place else None, items=items)

    def call(self, number: int, k: int, steps: int, latency: float = LATENCY) -> Took:
        said = self._ask("call", number=number, k=k, steps=steps, latency=latency)
        parts = [said["matts"], said["retrieve"]] if self.agent else [said["matts"]]
        wall, cpu = (sum(part[i] for part in parts) for i in (0, 1))
        return Took(wall, cpu, said["calls"], said["retrieve"][0])

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, what: str, **given: Any) -> dict[str, Any]:
        pipe, answers = self._process.stdin, self._process.stdout
        if pipe is None or answers is None:
            raise RuntimeError("the peer's process has no pipes")
        pipe.write(json.dumps({"do": what, **given}) + "\n")
        pipe.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError("the peer's process ended; what it said stands above")
        said: dict[str, Any] = json.loads(line)
        return said


def a_task(number: int, steps: int) -> Task:
    """One step: a lock. More: a corridor of so many rooms."""
    args: dict[str, Any] = {"code": "forward"} if steps == 1 else {"length": steps}
    return Task(id=f"bench/{number}", instruction=instruction(number), env_args=args)


def environment(task: Task, rollout_id: str) -> Environment:
    return (Lock if "code" in task.env_args else Corridor).make(task, rollout_id)
