"""What the numbers in ``rb_dspy/bank/index`` rest on: recall, CPU time, memory, time to open.

    python experiments/bank/recall.py [--vectors clustered|text|rare|random] [--structures] [--graph]

``clustered`` is the mixture of ``vectors.py``. ``text`` grows a million rows out of MiniLM embeddings of 8,000
paragraphs: between two neighbours, and moved by differences between other neighbouring paragraphs; 500 paragraphs that
were kept apart ask. ``rare`` is the mixture with a tenth of its rows replaced by topics of 1 to 500 rows in directions
of their own, and asks for these, and for what lies between them and the others. Recall@5 counts hits that score no less
than the fifth of exact search, within a tie: equal texts abound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from vectors import Vectors, clustered, docstring_paragraphs

from rb_dspy.bank.index.layered import LayeredIndex
from rb_dspy.bank.index.sidecar import Sidecar
from rb_dspy.bank.index.vector import TAIL, TIE, VectorIndex
from rb_dspy.bank.index.view import Filter, search
from rb_dspy.bank.parts import Changes, VectorBatch

K = 5
DIMENSION = 384
PAGE = 20_000


def text_like(n: int, queries: int = 500) -> tuple[Vectors, Vectors]:
    """Rows and queries; see the top of the file."""
    from rb_dspy.embedder import minilm

    rng = np.random.default_rng(0)
    real = minilm().embed(docstring_paragraphs(8_000 + queries))
    asked, real = real[:queries], real[queries:]
    _, near = faiss.knn(real, real, 21, metric=faiss.METRIC_INNER_PRODUCT)

    def neighbours(of: Any) -> Any:
        return near[of, rng.integers(1, 21, len(of))]

    rows = np.empty((n, DIMENSION), np.float32)
    rows[: len(real)] = real[:n]
    for start in range(len(real), n, PAGE):
        count = min(PAGE, n - start)
        one = rng.integers(0, len(real), count)
        share, nearby, far = (rng.uniform(low, high, (count, 1)) for low, high in ((0, 0.6), (0.1, 0.7), (0.1, 0.5)))
        here, anywhere = neighbours(one), rng.integers(0, len(real), count)
        made = real[one] * (1 - share) + real[neighbours(one)] * share
        made += nearby * (real[neighbours(here)] - real[here]) + far * (real[neighbours(anywhere)] - real[anywhere])
        rows[start : start + count] = made / np.linalg.norm(made, axis=1, keepdims=True)
    return rows, asked


def rare(n: int, queries: int = 500) -> tuple[Vectors, Vectors]:
    """Rows and queries; see the top of the file."""
    rng = np.random.default_rng(0)
    rows, places, asked = clustered(n), rng.permutation(n)[: n // 10], []

    def about(middle: Any, count: int, share: float) -> Vectors:
        off = rng.standard_normal((count, DIMENSION), np.float32)
        moved = share * middle + (1 - share) * off / np.linalg.norm(off, axis=1, keepdims=True)
        return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), np.float32)

    while len(places):
        size = int(rng.choice((1, 1, 1, 3, 5, 20, 100, 500)))
        topic, places = places[:size], places[size:]
        middle = about(0, 1, 0)[0]
        rows[topic] = about(middle, len(topic), 0.55)
        asked += [about(middle, 1, 0.55), about(rows[topic[0]], 1, 0.4)]
        between = rng.uniform(0.1, 0.7) * middle + 0.5 * rows[rng.integers(n)]
        asked.append(between[None] / np.linalg.norm(between))
    chosen = rng.permutation(len(asked))[:queries]
    return rows, np.concatenate([asked[place] for place in chosen]).astype(np.float32)


def stored(rows: Vectors) -> Vectors:
    """Rows as a bank gives them back: rounded to half precision, of length 1. In place."""
    for start in range(0, len(rows), PAGE):
        half = rows[start : start + PAGE].astype(np.float16).astype(np.float32)
        rows[start : start + PAGE] = half / np.linalg.norm(half, axis=1, keepdims=True)
    return rows


def pages(rows: Vectors, start: int = 0) -> Iterator[Changes]:
    """The rows as a store would tell of them: one in ten from a failure, ten rows a task."""
    for first in range(0, len(rows), PAGE):
        seqs = np.arange(first, min(first + PAGE, len(rows))) + start + 1
        batch = VectorBatch(seqs, seqs // 10, seqs % 10 > 0, rows[first : first + PAGE])
        yield Changes(int(seqs[-1]), batch, np.empty((0, 2), np.int64))


def timed(search: Callable[[Vectors], Any], queries: Vectors) -> tuple[float, float, list[Any]]:
    """CPU ms a query, wall ms of the median one, and the answers."""
    answers, walls, cpu = [], [], time.process_time()
    for query in queries:
        wall = time.perf_counter()
        answers.append(search(query))
        walls.append(time.perf_counter() - wall)
    return (time.process_time() - cpu) / len(queries) * 1e3, statistics.median(walls) * 1e3, answers


def recall(rows: Vectors, queries: Vectors, floors: Any, answers: list[Any]) -> float:
    """The share of five places that hold a row as near as the true fifth."""
    asked = zip(answers, queries, floors, strict=True)
    good = sum(int((rows[list(seen)[:K]] @ query >= floor - TIE).sum()) for seen, query, floor in asked)
    return good / (K * len(queries))


def memory() -> dict[str, float]:
    """MB of this process: resident, of these not backed by a file, and the highest it was."""
    status = Path("/proc/self/status").read_text() + Path("/proc/self/smaps_rollup").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {name: int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "Anonymous", "VmHWM")}


def structures(rows: Vectors, queries: Vectors, floors: Any, *, graph: bool) -> None:
    """Other ways to search approximately, beside the lists of half-precision rows and their codes that are used."""
    kinds = faiss.ScalarQuantizer
    lists = int(len(rows) ** 0.5)
    print(f"\n| {len(rows):,} rows | build CPU s | parameter | CPU ms | recall@5 |\n|---|---|---|---|---|")
    for name, kind, count in (
        ("half precision", kinds.QT_fp16, lists),
        ("half precision", kinds.QT_fp16, 2 * lists),
        ("8 bits", kinds.QT_8bit, lists),
        ("8 bits, 100 re-ranked", kinds.QT_8bit, lists),
    ):
        began = time.process_time()
        coarse = faiss.IndexFlatIP(DIMENSION)
        index = faiss.IndexIVFScalarQuantizer(coarse, DIMENSION, count, kind, faiss.METRIC_INNER_PRODUCT, False)
        index.cp.niter, index.cp.spherical = 8, True
        index.train(rows[np.random.default_rng(0).choice(len(rows), min(len(rows), 64 * count), replace=False)])
        for start in range(0, len(rows), PAGE):
            index.add(rows[start : start + PAGE])
        built = time.process_time() - began
        half = rows.astype(np.float16) if "re-ranked" in name else None
        for probed in (16, 32, 40, 64):

            def search(query: Vectors, probed: int = probed, half: Any = half, index: Any = index) -> Any:
                fetch = 16 if half is None else 100
                _, found = index.search(query[None], fetch, params=faiss.SearchParametersIVF(nprobe=probed))
                if half is None:
                    return found[0]
                return found[0][np.argsort(-(half[found[0]].astype(np.float32) @ query))]

            cpu, _, answers = timed(search, queries)
            got = recall(rows, queries, floors, answers)
            print(f"| {count} lists, {name} | {built:.1f} | {probed} read | {cpu:.3f} | {got:.4f} |", flush=True)
    half = rows.astype(np.float16)
    for name in (f"IVF{lists},{codes}" for codes in ("PQ96x4fsr", "PQ192x4fsr", "RaBitQfs", "SQ4")):
        began = time.process_time()
        sketch: Any = faiss.index_factory(DIMENSION, name, faiss.METRIC_INNER_PRODUCT)
        sketch.train(rows[np.random.default_rng(0).choice(len(rows), min(len(rows), 64 * lists), replace=False)])
        for start in range(0, len(rows), PAGE):
            sketch.add(rows[start : start + PAGE])
        built = time.process_time() - began
        for probed, fetch in ((40, 100), (100, 100), (100, 200)):
            sketch.nprobe = probed

            def ranked(query: Vectors, sketch: Any = sketch, fetch: int = fetch) -> Any:
                found = sketch.search(query[None], fetch)[1][0]
                return found[np.argsort(-(half[found].astype(np.float32) @ query))]

            cpu, _, answers = timed(ranked, queries)
            got = recall(rows, queries, floors, answers)
            print(f"| {name}, {fetch} re-ranked | {built:.1f} | {probed} read | {cpu:.3f} | {got:.4f} |", flush=True)
    if graph:
        began = time.process_time()
        web = faiss.IndexHNSWFlat(DIMENSION, 32, faiss.METRIC_INNER_PRODUCT)
        web.hnsw.efConstruction = 80
        for start in range(0, len(rows), PAGE):
            web.add(rows[start : start + PAGE])
        built = time.process_time() - began
        for breadth in (64, 128, 256):
            wide = faiss.SearchParametersHNSW(efSearch=breadth)
            cpu, _, answers = timed(lambda query, wide=wide: web.search(query[None], K, params=wide)[1][0], queries)
            got = recall(rows, queries, floors, answers)
            print(f"| HNSW32 | {built:.1f} | efSearch {breadth} | {cpu:.3f} | {got:.4f} |", flush=True)


def filled(rows: Vectors, *, consolidate: bool = True) -> VectorIndex:
    """An index of ``rows``, its approximate part built where it wants one, and what that took."""
    index = VectorIndex(DIMENSION)
    for page in pages(rows):
        index.apply(page)
    if consolidate and index.wants_base:
        cpu, wall = time.process_time(), time.perf_counter()
        index.install(index.prepare())
        print(
            f"built a part of {len(rows):,} rows in {time.process_time() - cpu:.1f} CPU s,"
            f" {time.perf_counter() - wall:.1f} s"
        )
    return index


def whole(rows: Vectors, queries: Vectors, fresh: Vectors) -> VectorIndex:
    """The whole search, as a bank calls it, against exact search with the same filter."""
    index = filled(rows)
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(rows)
    asked = queries if len(rows) > 300_000 else queries[:300]
    bare = [timed(lambda query: flat.search(query[None], K), asked)[0] for _ in range(3)]
    mine = [timed(lambda query: search(index.view, query, K), asked)[0] for _ in range(3)]
    ratios = sorted(one / other for one, other in zip(mine, bare, strict=True))
    spread = f"ratio {ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"search: {min(mine):.3f} CPU ms, IndexFlatIP {min(bare):.3f}; {spread}")
    print("\n| filter | CPU ms | p50 ms | recall@5 |\n|---|---|---|---|")
    seqs, most = np.arange(1, len(rows) + 1), range(10, len(rows) // 10 + 1)
    own = [int(flat.search(query[None], 1)[1][0, 0] + 1) // 10 for query in queries]
    for name, given, mask in (
        ("none", lambda _: {}, lambda _: None),
        ("the nearest task", lambda i: {"tasks": [own[i]]}, lambda i: seqs // 10 != own[i]),
        ("failures, 1 in 10", lambda _: {"polarity": "failure"}, lambda _: seqs % 10 == 0),
        ("1,000 nearest hidden", None, None),
        ("all but 100 rows hidden by task", lambda _: {"tasks": most}, lambda _: seqs // 10 < 10),
    ):
        part = queries[:200] if mask and len(rows) <= 300_000 else queries[: 500 if name == "none" else 100]
        answers, floors, cpu, walls = [], [], 0.0, []
        for i, query in enumerate(part):
            if mask is None:
                hidden = (flat.search(query[None], 1000)[1][0] + 1).tolist()
                chosen, allowed = {"hidden": hidden}, np.isin(seqs, hidden, invert=True)
            else:
                chosen, allowed = given(i), mask(i)
            select = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
            floors.append(flat.search(query[None], K, params=faiss.SearchParameters(sel=select))[0][0, -1])
            began, wall = time.process_time(), time.perf_counter()
            hits = search(index.view, query, K, Filter(**chosen))
            cpu, walls = cpu + time.process_time() - began, [*walls, time.perf_counter() - wall]
            assert len(hits) == K
            assert allowed is None or all(allowed[hit.seq - 1] for hit in hits)
            answers.append([hit.seq - 1 for hit in hits])
        got = recall(rows, part, floors, answers)
        print(
            f"| {name} | {cpu / len(part) * 1e3:.3f} | {statistics.median(walls) * 1e3:.3f} | {got:.4f} |", flush=True
        )
    if index.view.parts:
        for page in pages(fresh[:TAIL], len(rows)):
            index.apply(page)
        cpu, wall, _ = timed(lambda query: search(index.view, query, K), queries)
        print(f"| none, {TAIL:,} rows not yet in a part | {cpu:.3f} | {wall:.3f} | |")
    view, began = index.view, time.perf_counter()
    forks = [LayeredIndex(view, DIMENSION) for _ in range(1000)]
    print(f"\na fork: {(time.perf_counter() - began) * 1e3:.1f} microseconds", end="; ")
    cpu, _, _ = timed(lambda query: search(forks[0].view, query, K), queries[:100])
    print(f"searching it: {cpu:.3f} CPU ms")
    return index


def opened(folder: str) -> None:
    """In a process of its own: load a saved index, search once, say what it took."""
    queries = np.load(Path(folder) / "queries.npy")
    before, began = memory(), time.perf_counter()
    index = Sidecar(Path(folder), "s", "item", embedder_id="e", dimension=DIMENSION).load(str)
    loaded = time.perf_counter() - began
    assert index is not None
    search(index.view, queries[0], K)
    first = time.perf_counter() - began
    for query in queries:
        search(index.view, query, K)
    print(json.dumps({"loaded s": loaded, "first answer s": first, "before": before, "after": memory()}))


def saved(index: VectorIndex, queries: Vectors) -> None:
    """Save an index and open it elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "queries.npy", queries)
        began = time.perf_counter()
        Sidecar(Path(folder), "s", "item", embedder_id="e", dimension=DIMENSION).save(index.view, str)
        size = sum(path.stat().st_size for path in Path(folder).iterdir() if path.suffix != ".npy")
        print(f"\nsaved in {time.perf_counter() - began:.2f} s, {size / 1e6:.0f} MB")
        floats = index.view.parts[-1].stop * DIMENSION * 4 / 2**20
        for _ in range(2):
            command = [sys.executable, __file__, "--open", folder]
            told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            sizes = ", ".join(f"{name} {value:.0f} MB" for name, value in told["after"].items())
            print(
                f"opened in {told['loaded s']:.2f} s, first answer after {told['first answer s']:.2f} s; {sizes}"
                f" ({told['after']['VmHWM'] / floats:.2f} x the float32 vectors)"
            )


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    options.add_argument("--vectors", choices=("clustered", "text", "rare", "random"), default="clustered")
    options.add_argument("--structures", action="store_true", help="compare with other structures")
    options.add_argument("--graph", action="store_true", help="with --structures, HNSW too: minutes")
    options.add_argument("--open", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    faiss.omp_set_num_threads(1)
    if chosen.open:
        opened(chosen.open)
        return
    most = max(chosen.rows)
    if chosen.vectors == "text":
        every, queries = text_like(most + TAIL)
    elif chosen.vectors == "rare":
        every, queries = rare(most + TAIL)
    elif chosen.vectors == "clustered":
        every, queries = clustered(most + TAIL), clustered(500, seed=1)
    else:
        rng = np.random.default_rng(0)
        every = rng.standard_normal((most + TAIL, DIMENSION), np.float32)
        queries = rng.standard_normal((500, DIMENSION), np.float32)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    stored(every)
    for count in chosen.rows:
        rows = every[:count]
        print(f"\n## {chosen.vectors}, {count:,} rows\n")
        if chosen.structures:
            floors = faiss.knn(queries, rows, K, metric=faiss.METRIC_INNER_PRODUCT)[0][:, -1]
            structures(rows, queries, floors, graph=chosen.graph)
        index = whole(rows, queries, every[most:])
        if not index.view.exact:
            saved(index, queries)


if __name__ == "__main__":
    main()
