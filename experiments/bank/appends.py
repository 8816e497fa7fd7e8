"""Durable appends a second beside bare SQLite with one writer, in turns on one disk; bytes an item; the peers.

What is compared is items: bare SQLite's rows have an item's text and vector and nothing else. With one item an
experience the task, its vector, the rollout and the entries that find them again come with every item.
"""

from __future__ import annotations

import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import peers
from made import item_texts
from ours import SCOPE, Bound, Lookup, append, drafts, size_on_disk, spread, table

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import ExperienceDraft

_VECTORS = 10_000
_APART = 1_000_000
"""Writers number their experiences so far apart."""

_DISTILLED = 3
"""The most items that the paper's distiller draws from a rollout."""

_PROMISED = {"batches": 5.0, "threads": 1.0, "processes": 0.7}

Rates = list[float]
"""Items a second of each writer of one round."""


def measure(folder: Path, rounds: int, seconds: float, writers: int) -> list[Bound]:
    """Rates with experiences of 1 and of 3 items."""
    bounds: list[Bound] = []
    for items_each in (1, _DISTILLED):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            bounds += _rates(Path(place), rounds, seconds, writers, items_each)
    return bounds


def compare(folder: Path, others: Sequence[str], adds: int) -> None:
    """What the peers do one by one; no language model decides what is added."""
    rows = []
    for peer in others:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            answer = peers.ask(peer, Path(place), items=1_000, adds=adds)
        each = f"{answer['bytes'] / 1_000:,.0f}" if answer["bytes"] else "not kept"
        rows.append([peer, f"{answer['adds_per_s']:,.0f}", each])
    if rows:
        table("peers: adding one by one to 1,000 items", ["", "adds/s", "bytes an item"], rows)


def _rates(folder: Path, rounds: int, seconds: float, writers: int, items_each: int) -> list[Bound]:
    lookup = Lookup(_VECTORS)
    names = {
        "bare": "bare SQLite, WAL, FULL, 2.2 KB a commit",
        "single": "ours, one by one",
        "batches": "ours, append_many",
        "threads": f"ours, {writers} threads",
        "processes": f"ours, {writers} processes",
    }
    taken: dict[str, list[Rates]] = {name: [] for name in names}
    banks = {name: MemoryBank.open(folder / name, scope=SCOPE, embedder=lookup) for name in list(names)[1:]}
    crew = _Processes(folder / "processes", writers, items_each)
    bare = _Bare(folder / "bare.sqlite")
    ways: dict[str, Callable[[list[list[ExperienceDraft]]], Rates]] = {
        "single": lambda given: [_one_by_one(banks["single"], given[0], seconds, items_each)],
        "batches": lambda given: [_together(banks["batches"], given[0], seconds, items_each)],
        "threads": lambda given: _threads(banks["threads"], given, seconds, items_each),
    }
    for turn in range(rounds + 1):  # the first one is not counted
        now: dict[str, Rates] = {"bare": [bare.write(seconds)]}
        for name, way in ways.items():
            each, number = {"single": (8_000, 1), "batches": (20_000, 1), "threads": (2_000, writers)}[name]
            made = [_some(writer, turn, int(each * seconds), items_each) for writer in range(number)]
            now[name] = way(made)
        now["processes"] = crew.write(turn, seconds)
        if turn:
            for name, rates in now.items():
                taken[name].append(rates)
    crew.end()
    bare.close()
    for bank in banks.values():
        bank.close()
    totals = {name: [sum(rates) for rates in taken[name]] for name in names}
    rows: list[list[str]] = []
    bounds: list[Bound] = []
    for name, label in names.items():
        ratios = [mine / other for mine, other in zip(totals[name], totals["bare"], strict=True)]
        even = [min(rates) / max(rates) for rates in taken[name]]
        many = name in ("threads", "processes")
        where = f"{label}, {items_each} item(s) an experience"
        if name in _PROMISED:
            bounds.append(Bound(f"{where}: x bare", statistics.median(ratios), _PROMISED[name], most=False))
        if many:
            bounds.append(Bound(f"{where}: slowest / fastest", statistics.median(even), 1 / 3, most=False))
        rows.append([label, spread(totals[name], 0), spread(ratios), spread(even) if many else ""])
    head = ["", "items/s", "x bare", "slowest / fastest writer"]
    table(f"durable appends, {items_each} item(s) an experience, {rounds} rounds: median [quartiles]", head, rows)
    return bounds


class _Bare:
    """One row a transaction; as durable as ours, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, text TEXT, vector BLOB)")
        self._row = "".join(item_texts(0)), bytes(1_536)

    def write(self, seconds: float) -> float:
        started, rows = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("INSERT INTO items (text, vector) VALUES (?, ?)", self._row)
            self._database.execute("COMMIT")
            rows += 1
        return rows / (time.perf_counter() - started)

    def close(self) -> None:
        self._database.close()


class _Processes:
    """Writers that open the bank once and write when they are told to."""

    def __init__(self, path: Path, writers: int, items_each: int) -> None:
        spawn = get_context("spawn")
        self._pipes: list[Connection[Any, Any]] = []
        self._processes = []
        for writer in range(writers):
            mine, its = spawn.Pipe()
            process = spawn.Process(target=_writer, args=(path, its, writer, items_each))
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)

    def write(self, turn: int, seconds: float) -> Rates:
        self._tell((turn, int(2_000 * seconds)))  # make what is to be written
        self._tell(seconds)
        return [pipe.recv() for pipe in self._pipes]

    def end(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()

    def _tell(self, what: object) -> None:
        for pipe in self._pipes:
            pipe.send(what)
        if isinstance(what, tuple):
            for pipe in self._pipes:
                pipe.recv()


def _writer(path: Path, pipe: Connection[Any, Any], writer: int, items_each: int) -> None:
    with MemoryBank.open(path, scope=SCOPE, embedder=Lookup(_VECTORS)) as bank:
        while (told := pipe.recv()) is not None:
            turn, count = told
            made = _some(writer, turn, count, items_each)
            pipe.send("ready")
            pipe.send(_one_by_one(bank, made, pipe.recv(), items_each))


def _some(writer: int, turn: int, count: int, items_each: int) -> list[ExperienceDraft]:
    start = (writer + 1) * _APART + turn * count
    return list(drafts(range(start, start + count), items_each))


def _one_by_one(bank: MemoryBank, made: Sequence[ExperienceDraft], seconds: float, items_each: int) -> float:
    started, written = time.perf_counter(), 0
    for draft in made:
        append(bank, draft)
        written += 1
        if time.perf_counter() - started > seconds:
            break
    return written * items_each / (time.perf_counter() - started)


def _together(bank: MemoryBank, made: Sequence[ExperienceDraft], seconds: float, items_each: int) -> float:
    """One call, with a list that ends when the time is over."""
    started = time.perf_counter()
    in_time = itertools.takewhile(lambda _: time.perf_counter() - started < seconds, made)
    written = len(bank.append_many(in_time))
    return written * items_each / (time.perf_counter() - started)


def _threads(bank: MemoryBank, made: list[list[ExperienceDraft]], seconds: float, items_each: int) -> Rates:
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(lambda mine: _one_by_one(bank, mine, seconds, items_each), made))


def disk(folder: Path, items: int) -> list[Bound]:
    """Bytes an item, with experiences of 1 and of 3."""
    rows: list[list[str]] = []
    bounds: list[Bound] = []
    for items_each in (1, _DISTILLED):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = Path(place) / "bank.sqlite"
            with MemoryBank.open(path, scope=SCOPE, embedder=Lookup(items)) as bank:
                bank.append_many(drafts(range(-(-items // items_each)), items_each))
                bank.reindex()
                count = len(bank)
            kept, derived = size_on_disk(path)
            bounds.append(Bound(f"bytes an item, {items_each} an experience", kept / count, 2_500))
            rows.append([str(items_each), f"{kept / count:,.0f}", f"{(kept + derived) / count:,.0f}"])
    head = ["items an experience", "bytes an item", "with the index beside it"]
    table(f"disk after close, {items:,} items of 700 bytes of text, 384 dimensions, one short rollout each", head, rows)
    return bounds
