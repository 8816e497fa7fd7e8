"""The cost of the bank beside bare FAISS, bare SQLite and two other memories, measured in the same run.

    python experiments/bank.py [query] [append] [import] [fork] [disk] [--million] [--quick] [--no-peers] [--rounds N]
                               [--postgres URL] [--plot docs/queries.svg]

The sides take turns; a number is the median [quartiles] over rounds, after one warm-up round. Absolute times depend on
the machine, ratios less so. One thread computes. Lessons have 700 bytes of text, three in an experience. Vectors are
looked up, so embedding is not measured. ``--postgres`` also measures a bank in that database, which should be new
and is not cleaned up. The other memories are installed into build/peers on first use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import uuid4

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy and FAISS are loaded

import faiss
import numpy as np
from bank_peers import BUILD, DIMENSION, PEERS, K, Lookup, Peer, item_texts, query_text, query_times, words

from rb_dspy import MemoryBank
from rb_dspy.evaluation.chart import Axis, Line, picture
from rb_dspy.schema import ExperienceDraft, MemoryDraft, Retrieved, Step, Task, Trajectory, Verdict

MILLION, PEERS_UP_TO = 1_000_000, 100_000
THREADS, ITEMS_EACH = 8, 3
OURS, POSTGRES, FLAT, COMMITS = "rb_dspy", "rb_dspy on PostgreSQL", "FAISS flat", "bare SQLite commits"
RECORD = Path(__file__).parent / "evidence" / "queries.json"
"""The numbers of the last picture: size -> side -> CPU ms a query."""
MEM0, REASONING_BANK = "mem0 2.2.1", "reasoning-bank 0.1.1"
QUERY_BOUNDS = {
    1_000: f"at most 1 x {MEM0}",
    10_000: f"at most 2.2 x {FLAT}, at most 1 x {MEM0}",
    100_000: f"at most 1.05 x {FLAT}, at most 1 x {MEM0}",
    MILLION: "at most 6",
}

Value = TypeVar("Value")
Sides = Mapping[str, Sequence[float]]
"""Name of a side -> its values, one per round."""


class Setup(NamedTuple):
    """The options of all parts. ``sizes`` are for queries; ``scale`` divides all other sizes."""

    folder: Path
    sizes: Sequence[int]
    scale: int
    rounds: int
    peers: Sequence[str]
    postgres: str | None
    plot: Path | None

    def new_banks(self, stack: ExitStack, lookup: Lookup) -> dict[str, MemoryBank]:
        """An empty bank in a file, and one in PostgreSQL if there is a URL; ``stack`` closes them."""
        scope = f"bench-{uuid4().hex[:8]}"
        addresses = {OURS: self.folder / f"{scope}.sqlite"} | ({POSTGRES: self.postgres} if self.postgres else {})
        return {
            name: stack.enter_context(MemoryBank.open(address, scope=scope, embedder=lookup))
            for name, address in addresses.items()
        }

    def start_peers(self, stack: ExitStack, items: int) -> dict[str, Peer]:
        """The other memories, each with ``items`` lessons; ``stack`` ends them."""
        return {name: stack.enter_context(closing(Peer(name, self.folder, items))) for name in self.peers}

    def in_turns(self, sides: Mapping[str, Callable[[int], Value]]) -> dict[str, list[Value]]:
        """Call every side once a round, each first in its turn, with the number of the round."""
        results: dict[str, list[Value]] = {name: [] for name in sides}
        for turn in range(self.rounds + 1):
            first = turn % len(sides)
            for name in [*sides][first:] + [*sides][:first]:
                value = sides[name](turn)
                if turn:  # the first round fills caches
                    results[name].append(value)
        return results


def drafts(items: int, *, first: int = 0, each: int = ITEMS_EACH) -> Iterator[ExperienceDraft]:
    """Experiences of one short rollout and ``each`` items, which are numbered from ``first`` on."""
    step = Step(action="look around", observation="Nothing is missing.")
    for start in range(first, first + items, each):
        task = Task(id=f"task-{start}", instruction=f"t{start:08d} {words(start + 3, 90)}")
        texts = map(item_texts, range(start, min(start + each, first + items)))
        yield ExperienceDraft(
            task=task,
            trajectories=(Trajectory(task_id=task.id, steps=(step,)),),
            verdicts=(Verdict(label="success", reasons="It was done."),),
            drafts=tuple(MemoryDraft(title=title, description=about, content=text) for title, about, text in texts),
            run_id="bench",
        )


def append(bank: MemoryBank, drafts: Sequence[ExperienceDraft]) -> None:
    """Append one by one."""
    for draft in drafts:
        bank.append(draft.task, draft.trajectories, draft.verdicts, draft.drafts, run_id=draft.run_id)


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """Wall time of a call."""
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


# The parts


def measure_query(setup: Setup) -> None:
    """CPU of a query for five lessons, by size."""
    points = {size: measure_size(setup, size) for size in setup.sizes}
    if setup.plot:
        draw(points, setup.plot)


def measure_size(setup: Setup, size: int) -> dict[str, float]:
    """CPU of a query of a bank of ``size`` items: the medians of the sides."""
    lookup, each = Lookup(size), 20 // setup.scale
    vectors, queries = lookup.tables["i"], lookup.tables["q"]

    def exact(number: int) -> np.ndarray:
        query = queries[number % len(queries)][None]
        return faiss.knn(query, vectors, K, metric=faiss.METRIC_INNER_PRODUCT)[1][0]

    def numbers(turn: int, count: int) -> list[int]:
        return [*range(turn * each, turn * each + count)]

    def items(bank: MemoryBank, number: int) -> Sequence[Retrieved]:
        return bank.retrieve(query_text(number), K, unit="item")

    def recall(bank: MemoryBank, number: int) -> float:
        return len({*exact(number)} & {int(hit.items[0].title[1:9]) for hit in items(bank, number)}) / K

    with ExitStack() as stack:
        peers = setup.start_peers(stack, size) if size <= PEERS_UP_TO else {}
        banks = setup.new_banks(stack, lookup)
        for bank in banks.values():
            bank.append_many(drafts(size))
        if size > 200_000:  # cells are built in the background; until then search is exact
            wait_for_cells(partial(items, banks[OURS]))
        recalls = {name: [recall(bank, number) for number in range(200)] for name, bank in banks.items()}
        finders = {name: partial(items, bank) for name, bank in banks.items()} | {FLAT: exact}
        sides = {name: lambda turn, find=find: query_times(find, numbers(turn, each)) for name, find in finders.items()}
        few = min(each, max(1, 20_000 // size))  # other memories need seconds at some sizes
        sides |= {name: lambda turn, peer=peer: peer.ask(find=numbers(turn, few)) for name, peer in peers.items()}
        times = setup.in_turns(sides)
    cpu = {name: [one[0] for one in values] for name, values in times.items() if name != POSTGRES}
    report(f"query: CPU ms, {size:,} items", cpu, (OURS, FLAT), {OURS: QUERY_BOUNDS[size]})
    if POSTGRES in times:
        wall = {name: [one[1] for one in times[name]] for name in banks}
        report(f"query: wall ms, {size:,} items", wall, (OURS,), {})
    means = {name: [statistics.fmean(values)] for name, values in recalls.items()}
    report(f"query: recall@{K}, {size:,} items", means, (), dict.fromkeys(means, "at least 0.95"))
    return {name: statistics.median(values) for name, values in cpu.items()}


def wait_for_cells(find: Callable[[int], object]) -> None:
    """Query until it takes less than 20 ms of CPU, three minutes at most."""
    for _ in range(180):
        begun = time.thread_time()
        find(0)
        if time.thread_time() - begun < 0.02:
            return
        time.sleep(1)


def measure_append(setup: Setup) -> None:
    """Experiences a second from 8 threads, each on disk when its call returns, beside commits of the same rows."""
    count = THREADS * 100 // setup.scale
    with ExitStack() as stack:
        peers = setup.start_peers(stack, 1_000)
        database = stack.enter_context(closing(sqlite3.connect(setup.folder / "bare.sqlite", isolation_level=None)))
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE items (text TEXT, vector BLOB)")
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        rows = [("".join(item_texts(number)), bytes(2 * DIMENSION)) for number in range(ITEMS_EACH)]

        def commit() -> None:
            for _ in range(count):
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT INTO items VALUES (?, ?)", rows)
                database.execute("COMMIT")

        def write(bank: MemoryBank, turn: int) -> float:
            listed = [*drafts(count * ITEMS_EACH, first=turn * count * ITEMS_EACH)]
            parts = [listed[part::THREADS] for part in range(THREADS)]
            return len(listed) / seconds(lambda: [*pool.map(append, [bank] * THREADS, parts)])

        banks = setup.new_banks(stack, Lookup(10_000))
        sides = {name: lambda turn, bank=bank: write(bank, turn) for name, bank in banks.items()}
        sides[COMMITS] = lambda _: count / seconds(commit)
        sides |= {name: lambda _, peer=peer: peer.ask(add=18) / ITEMS_EACH for name, peer in peers.items()}
        rates = setup.in_turns(sides)
    title = f"append: experiences of {ITEMS_EACH} items a second, {THREADS} threads (other memories: one thread)"
    bounds = {OURS: f"at least 4 x {REASONING_BANK}", POSTGRES: "at least 150"}
    report(title, rates, (OURS, COMMITS, REASONING_BANK), bounds)


def measure_import(setup: Setup) -> None:
    """Experiences a second of ``import_jsonl`` into an empty bank."""
    count, lookup, path = 2_000 // setup.scale, Lookup(10_000), setup.folder / "export.jsonl"
    with MemoryBank.open(None, scope="bench", embedder=lookup) as source:
        source.append_many(drafts(count * ITEMS_EACH))
        source.export_jsonl(path)

    def load(name: str) -> float:
        with ExitStack() as stack:
            return count / seconds(setup.new_banks(stack, lookup)[name].import_jsonl, path)

    names = [OURS, POSTGRES] if setup.postgres else [OURS]
    rates = setup.in_turns({name: lambda _, name=name: load(name) for name in names})
    report(
        f"import: experiences of {ITEMS_EACH} items a second",
        rates,
        (OURS,),
        {OURS: "at least 2,000", POSTGRES: "at least 500"},
    )


def measure_fork(setup: Setup) -> None:
    """Milliseconds of a fork and of the first append on it."""
    size = 10_000 // setup.scale
    draft = next(drafts(ITEMS_EACH, first=size))

    def fork(bank: MemoryBank) -> tuple[float, float]:
        forks: list[MemoryBank] = []
        return seconds(lambda: forks.append(bank.fork())) * 1_000, seconds(lambda: append(forks[0], [draft])) * 1_000

    with ExitStack() as stack:
        banks = setup.new_banks(stack, Lookup(size))
        for bank in banks.values():
            bank.append_many(drafts(size))
        times = setup.in_turns({name: lambda _, bank=bank: fork(bank) for name, bank in banks.items()})
    for place, (what, bound) in enumerate({"fork()": "at most 1", "its first append": "at most 5"}.items()):
        values = {name: [pair[place] for pair in pairs] for name, pairs in times.items()}
        report(f"fork: ms of {what}, {size:,} items", values, (OURS,), {OURS: bound})


def measure_disk(setup: Setup) -> None:
    """Bytes an item of a closed bank."""
    size = 10_000 // setup.scale
    for each in (1, ITEMS_EACH):
        before = stored_bytes(setup)
        with ExitStack() as stack:
            for bank in setup.new_banks(stack, Lookup(size)).values():
                bank.append_many(drafts(size, each=each))
        values = {name: [(after - before[name]) / size] for name, after in stored_bytes(setup).items()}
        title = f"disk: bytes an item, {size:,} items, {each} in an experience"
        report(title, values, (OURS,), {OURS: "at most 3,500"})


def stored_bytes(setup: Setup) -> dict[str, int]:
    """Bytes of the folder, and of the PostgreSQL database."""
    sizes = {OURS: sum(file.stat().st_size for file in setup.folder.iterdir() if file.is_file())}
    if setup.postgres:
        import psycopg

        with psycopg.connect(setup.postgres.replace("+psycopg", "")) as connection:
            (sizes[POSTGRES],) = connection.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
    return sizes


# Results


def report(title: str, sides: Sides, beside: Sequence[str], bounds: Mapping[str, str | None]) -> None:
    """Print a table: every side, its ratio to those of ``beside``, and its bounds ("at most 5, at most 2 x A")."""
    beside = [name for name in beside if name in sides and len(sides) > 1]
    head = ["", "median [quartiles]", *(f"x {name}" for name in beside), "bound", "holds"]
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for name, values in sides.items():
        ratios = [
            "" if name == other else spread([value / base for value, base in zip(values, sides[other], strict=True)])
            for other in beside
        ]
        bound = bounds.get(name) or ""
        checks = [holds(statistics.median(values), each, sides) for each in bound.split(", ") if each]
        verdict = ", ".join("not measured" if check is None else "yes" if check else "NO" for check in checks)
        print(f"| {' | '.join([name, spread(values), *ratios, bound, verdict])} |", flush=True)


def holds(value: float, bound: str, sides: Sides) -> bool | None:
    """Whether ``value`` is "at most 5", "at least 2 x A", and so on; None if A was not measured."""
    kind, limit, _, other = re.fullmatch(r"at (most|least) (\S+)( x (.+))?", bound).groups()  # type: ignore[union-attr]
    if other and other not in sides:
        return None
    least = float(limit.replace(",", "")) * (statistics.median(sides[other]) if other else 1)
    return value <= least if kind == "most" else value >= least


def spread(values: Sequence[float]) -> str:
    """Median and quartiles; the value alone if there is one."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [0, values[0], 0]
    low, middle, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in quartiles)
    return f"{middle} [{low}, {high}]" if len(values) > 1 else middle


def draw(points: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """Draw CPU by size to ``path``, an SVG for light pages, and to one with ``-dark`` in its name."""
    RECORD.write_text(json.dumps(points, indent=1) + "\n")
    lines = [
        Line(name, [(size, values[name]) for size, values in sorted(points.items()) if name in values])
        for name in (FLAT, OURS, *PEERS)
    ]
    ends = [[f(each[place] for line in lines for each in line.points) for f in (min, max)] for place in (0, 1)]
    ticks = [10.0**power for power in range(-3, 7) if ends[1][0] / 2 < 10.0**power < ends[1][1] * 2]
    x = Axis("lessons in the bank", *ends[0], [(size, f"{size:,}") for size in sorted(points)], log=True)
    y = Axis("CPU ms a query", ends[1][0] / 2, ends[1][1] * 2, [(tick, f"{tick:,g}") for tick in ticks], log=True)
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        path.with_stem(path.stem + suffix).write_text(picture(lines, x, y, main=OURS, names=150, scheme=scheme))


MEASURES = (measure_query, measure_append, measure_import, measure_fork, measure_disk)
PARTS = {measure.__name__.removeprefix("measure_"): measure for measure in MEASURES}


def main() -> None:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="all if none is named")
    parser.add_argument("--million", action="store_true", help="query a million items too: minutes to fill, 3 GB")
    parser.add_argument("--quick", action="store_true", help="a smoke test: a tenth of the sizes, two rounds")
    parser.add_argument("--no-peers", action="store_true", help="leave the other memories out")
    parser.add_argument("--postgres", metavar="URL", help="also measure a bank in this database")
    parser.add_argument("--rounds", type=int, help="default 15; with --quick 2")
    parser.add_argument("--plot", type=Path, help="draw the query times to this SVG file")
    options = parser.parse_args()
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}")
    sizes = ([1_000] if options.quick else [1_000, 10_000, 100_000]) + ([MILLION] if options.million else [])
    rounds, scale = options.rounds or (2 if options.quick else 15), 10 if options.quick else 1
    BUILD.mkdir(exist_ok=True)
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=BUILD) as folder:  # on a disk: /tmp may be memory
            peers = () if options.no_peers else tuple(PEERS)
            PARTS[part](Setup(Path(folder), sizes, scale, rounds, peers, options.postgres, options.plot))


if __name__ == "__main__":
    main()
