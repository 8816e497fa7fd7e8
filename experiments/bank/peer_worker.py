"""Runs one peer and prints one line of JSON. Started by ``peers`` with the peers' interpreter; imports nothing of ours
but the vectors and texts that all are measured with.

Every peer is given vectors by a look-up, and its storage is called below its language model, which it has not: what is
measured is what it costs to find and to keep. Where there is a choice, the cheaper way of the peer's is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made import DIMENSION, item_texts, query_text, row_of
from vectors import Vectors, clustered


class Lookup:
    """The vectors of made-up texts."""

    dim = DIMENSION

    def __init__(self, items: int, queries: int) -> None:
        self._items: Vectors = clustered(items)
        self._queries: list[list[float]] = clustered(queries, seed=1).tolist()  # making lists is an embedder's work

    def vector(self, text: str) -> list[float]:
        kind, row = row_of(text)
        if kind == "q":
            return self._queries[row]
        found: list[float] = self._items[row].tolist()
        return found

    def embed(self, texts: list[str]) -> list[list[float]]:
        return [self.vector(text) for text in texts]


class ReasoningBank:
    """Its own bank and its own SQLite store."""

    def __init__(self, folder: Path, lookup: Lookup) -> None:
        with contextlib.suppress(ImportError):
            import pysqlite3

            sys.modules["sqlite3"] = pysqlite3
        from reasoning_bank import MemoryItem, ReasoningBank as Bank
        from reasoning_bank.stores.sqlite_vec import SQLiteVecStore

        async def no_model(*given: object, **named: object) -> str:
            raise RuntimeError(f"asked for a language model: {given} {named}")

        self._item = MemoryItem
        self._lookup = lookup
        self._store = SQLiteVecStore(folder / "bank.db")
        self._bank = Bank(no_model, store=self._store, embedder=lookup)
        self._loop = asyncio.new_event_loop()

    def fill(self, texts: list[tuple[str, str, str]]) -> None:
        self._store._conn.execute("PRAGMA synchronous=OFF")
        for text in texts:
            self.add(text)
        self._store._conn.execute("PRAGMA synchronous=FULL")

    def add(self, text: tuple[str, str, str]) -> None:
        self._loop.run_until_complete(self._bank.add_manual(*text))

    def find(self, query: str, k: int) -> int:
        return len(self._loop.run_until_complete(self._bank.retrieve(query, k)))


class Mem0Store:
    """Its FAISS store alone, called as its ``Memory`` calls it."""

    def __init__(self, folder: Path, lookup: Lookup) -> None:
        from mem0.vector_stores.faiss import FAISS

        self._lookup = lookup
        self._count = 0
        self._store = FAISS("bench", str(folder / "faiss"), "cosine", embedding_model_dims=DIMENSION)

    def fill(self, texts: list[tuple[str, str, str]]) -> None:
        joined = ["\n".join(text) for text in texts]
        payloads = [{"data": text, "user_id": "u"} for text in joined]
        ids = [str(self._count + number) for number in range(len(texts))]
        self._count += len(texts)
        self._store.insert(self._lookup.embed(joined), payloads, ids)

    def add(self, text: tuple[str, str, str]) -> None:
        self.fill([text])

    def find(self, query: str, k: int) -> int:
        return len(self._store.search(query, self._lookup.vector(query), k, filters={"user_id": "u"}))


class Mem0:
    """Its ``Memory`` over the same store; what is added is taken as it stands, without a language model."""

    def __init__(self, folder: Path, lookup: Lookup) -> None:
        from mem0 import Memory

        faiss = {
            "collection_name": "bench",
            "path": str(folder / "faiss"),
            "distance_strategy": "cosine",
            "embedding_model_dims": DIMENSION,
        }
        self._memory = Memory.from_config(
            {"vector_store": {"provider": "faiss", "config": faiss}, "history_db_path": str(folder / "history.db")}
        )
        self._memory.embedding_model = self
        self._lookup = lookup
        self._inside = Mem0Store(folder, lookup)
        self._inside._store = self._memory.vector_store

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return self._lookup.vector(text)

    def fill(self, texts: list[tuple[str, str, str]]) -> None:
        self._inside.fill(texts)  # its own way rewrites both files for every memory

    def add(self, text: tuple[str, str, str]) -> None:
        self._memory.add("\n".join(text), user_id="u", infer=False)

    def find(self, query: str, k: int) -> int:
        found = self._memory.search(query, top_k=k, filters={"user_id": "u"}, threshold=0.0)
        return len(found["results"])


class Langmem:
    """The store that its tools are given in its documentation."""

    def __init__(self, folder: Path, lookup: Lookup) -> None:
        from langgraph.store.memory import InMemoryStore

        self._count = 0
        self._store = InMemoryStore(index={"dims": DIMENSION, "embed": lookup.embed, "fields": ["content"]})

    def fill(self, texts: list[tuple[str, str, str]]) -> None:
        for text in texts:
            self.add(text)

    def add(self, text: tuple[str, str, str]) -> None:
        self._store.put(("memories",), str(self._count), {"content": "\n".join(text)})
        self._count += 1

    def find(self, query: str, k: int) -> int:
        return len(self._store.search(("memories",), query=query, limit=k))


PEERS: dict[str, Callable[[Path, Lookup], Any]] = {
    "reasoning-bank": ReasoningBank,
    "mem0": Mem0,
    "mem0-store": Mem0Store,
    "langmem": Langmem,
}


def main() -> None:
    request = json.load(sys.stdin)
    folder, items = Path(request["folder"]), request["items"]
    queries, adds, k = request.get("queries", 0), request.get("adds", 0), 5
    peer = PEERS[request["peer"].split()[0]](folder, Lookup(items + adds, max(queries, 1) + 1))
    started = time.perf_counter()
    peer.fill([item_texts(number) for number in range(items)])
    answer: dict[str, Any] = {"fill_s": time.perf_counter() - started, "cpu_ms": [], "wall_ms": []}
    answer["bytes"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    for number in range(queries and queries + 1):  # the first one warms caches and is not counted
        wall, cpu = time.perf_counter(), time.process_time()
        found = peer.find(query_text(number), k)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if found != k:
            raise RuntimeError(f"{found} results, expected {k}")
        if number:
            answer["cpu_ms"].append(cpu * 1000)
            answer["wall_ms"].append(wall * 1000)
    if adds:
        started = time.perf_counter()
        for number in range(items, items + adds):
            peer.add(item_texts(number))
        answer["adds_per_s"] = adds / (time.perf_counter() - started)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
