"""Our bank as the benchmarks use it: made-up experiences, vectors by look-up, and what a process holds in memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from made import DIMENSION, item_texts, row_of, task_text
from vectors import Vectors, clustered

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import ExperienceDraft, MemoryDraft, Step, Task, Trajectory, Verdict

SCOPE = "bench"
QUERIES = 1_000
"""Vectors there are for queries, drawn from the same clusters as the items."""

Answer = TypeVar("Answer")


class Bound(NamedTuple):
    """A number that was promised: at most ``limit`` where ``most``, else at least."""

    what: str
    measured: float
    limit: float
    most: bool = True

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit if self.most else self.measured >= self.limit


class Lookup:
    """Vectors of made-up texts. ``rows``: how many there are for items, and for tasks; larger numbers start anew."""

    id = "lookup-384"
    dimension = DIMENSION

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._tables: dict[str, Vectors] = {}
        self.seconds = 0.0
        """CPU that looking up has taken: queries are measured without embedding."""

    def table(self, kind: str) -> Vectors:
        """The vectors of items (``i``), tasks (``t``) or queries (``q``)."""
        if kind not in self._tables:
            size, seed = {"i": (self._rows, 0), "q": (QUERIES, 1), "t": (self._rows, 2)}[kind]
            self._tables[kind] = clustered(size, seed=seed)
        return self._tables[kind]

    def embed(self, texts: Sequence[str]) -> Vectors:
        begun = time.process_time()
        rows = np.empty((len(texts), DIMENSION), np.float32)
        for row, text in zip(rows, texts, strict=True):
            kind, number = row_of(text)
            table = self.table(kind)
            row[:] = table[number % len(table)]
        self.seconds += time.process_time() - begun
        return rows


def drafts(experiences: Iterable[int], items_each: int) -> Iterator[ExperienceDraft]:
    """One short rollout each; experience ``n`` has the items from ``n * items_each`` on."""
    for number in experiences:
        task = Task(id=f"task-{number}", instruction=task_text(number))
        rollout = Trajectory(task_id=task.id, steps=(Step(action="look around", observation="Nothing is missing."),))
        lessons = (item_texts(item) for item in range(number * items_each, (number + 1) * items_each))
        yield ExperienceDraft(
            task=task,
            trajectories=(rollout,),
            verdicts=(Verdict(label="success", reasons="It was done."),),
            drafts=tuple(MemoryDraft(title=title, description=told, content=text) for title, told, text in lessons),
            run_id="bench",
        )


def append(bank: MemoryBank, draft: ExperienceDraft) -> None:
    bank.append(draft.task, draft.trajectories, draft.verdicts, draft.drafts, run_id=draft.run_id)


def filled(path: Path, items: int, *, items_each: int = 1) -> None:
    """Make a bank of ``items`` items at ``path``, unless there is one, with its index."""
    lookup = Lookup(items)
    with MemoryBank.open(path, scope=SCOPE, embedder=lookup) as bank:
        missing = range(bank.stats().experiences, -(-items // items_each))
        if missing:
            print(f"filling {path.name}: {len(missing):,} experiences", flush=True)
            bank.append_many(drafts(missing, items_each))
            bank.reindex()


def size_on_disk(path: Path) -> tuple[int, int]:
    """Bytes of a closed bank: the database with its journal and lock, and everything else that lies beside it."""
    own = [file for file in path.parent.rglob(f"{path.name}*") if file.is_file() and file.parent == path.parent]
    every = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
    kept = sum(file.stat().st_size for file in own)
    return kept, every - kept


def memory() -> dict[str, int]:
    """Bytes of this process (Linux): resident, of these anonymous (no pages of a file), and the peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    rollup = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])

    def number(text: str) -> int:
        return int(text.split()[0]) * 1024

    return {
        "resident": number(status["VmRSS"]),
        "peak": number(status["VmHWM"]),
        "anonymous": number(rollup["Anonymous"]),
    }


def cpu_and_wall(work: Callable[[], object], embedder: Lookup | None = None) -> tuple[float, float]:
    """Milliseconds: CPU of this process, and wall; without what ``embedder`` took, CPU only."""
    aside = embedder.seconds if embedder else 0.0
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    took = time.process_time() - cpu
    return (took - (embedder.seconds - aside if embedder else 0.0)) * 1000, (time.perf_counter() - wall) * 1000


def alone(function: Callable[..., Answer], *given: Any) -> Answer:
    """What ``function`` answers in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and quartiles."""
    if len(values) < 2:
        return f"{values[0]:,.{digits}f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def held(bounds: Sequence[Bound]) -> None:
    """Print what was promised."""
    rows = []
    for bound in bounds:
        limit = f"at {'most' if bound.most else 'least'} {bound.limit:,.3g}"
        rows.append([bound.what, f"{bound.measured:,.3f}", limit, "yes" if bound.holds else "NO"])
    table("what was promised (medians)", ["", "measured", "bound", "holds"], rows)
