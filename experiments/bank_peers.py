"""Other memories, each in its own process, and the texts and vectors that all sides of ``bank.py`` share.

Imports nothing of rb_dspy: the processes run this file with the interpreter of the other memories, which are installed
into build/peers on first use (some minutes). No language model is called, nothing is embedded, and there is no network.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from uuid import uuid4

import numpy as np

K, DIMENSION, TEXT_BYTES = 5, 384, 700
BUILD = Path(__file__).resolve().parents[1] / "build"
REQUIREMENTS = (
    ("mem0ai==2.2.1", "faiss-cpu", "numpy", "pydantic", "sqlite-vec", "pysqlite3-binary"),
    ("--no-deps", "reasoning-bank==0.1.1"),  # it requires torch, which its store never imports
)


# Texts and vectors


def clustered(n: int, seed: int) -> np.ndarray:
    """Unit rows distributed like embedded text; uniform rows mislead approximate indexes. Shape ``(n, DIMENSION)``.

    A mean, 40 domains, 2,000 topics of uneven size, and 96 directions in each domain; one row in ten restates another.
    The constants were fitted to MiniLM embeddings of docstrings. All seeds share the clusters; a seed draws rows.
    """

    def power(count: int, offset: float, exponent: float) -> np.ndarray:
        places = (np.arange(count) + offset) ** -exponent
        return places / places.sum()

    def directions(count: int) -> np.ndarray:
        return (shape.standard_normal((count, DIMENSION)) * spread).astype(np.float32)

    shape, rest = np.random.default_rng(DIMENSION), 1 - 0.308**2
    spread = np.sqrt(power(DIMENSION, 3, 0.95))
    mean = np.zeros(DIMENSION, np.float32)
    mean[-1] = 0.308
    domains = directions(40) * np.sqrt(0.2 * rest, dtype=np.float32)
    topics_ = directions(2_000) * np.sqrt(0.1 * rest, dtype=np.float32)
    domain_of, sizes = shape.integers(0, 40, 2_000), power(2_000, 5, 0.9)
    inside = np.sqrt(0.7 * rest * power(96, 1, 0.4))[:, None].astype(np.float32)
    bases = [directions(96) * inside for _ in range(40)]
    rows, size = np.empty((n, DIMENSION), np.float32), 10_000
    for block, start in enumerate(range(0, n, size)):
        draw = np.random.default_rng((seed, block))
        topic = draw.choice(2_000, size, p=sizes)
        drawn = mean + domains[domain_of[topic]] + topics_[topic]
        for number, base in enumerate(bases):
            here = np.flatnonzero(domain_of[topic] == number)
            drawn[here] += draw.standard_normal((len(here), 96), dtype=np.float32) @ base
        again = np.flatnonzero(draw.random(size) < 0.1)
        near = draw.uniform(0.5, 0.95, (len(again), 1)).astype(np.float32)
        drawn[again] = near * drawn[draw.integers(0, size, len(again))] + np.sqrt(1 - near**2) * drawn[again]
        rows[start : start + size] = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True))[: n - start]
    return rows


class Lookup:
    """An embedder for generated texts: a letter (item, task, query) and a number select the vector."""

    id, dimension, dim = "lookup-384", DIMENSION, DIMENSION

    def __init__(self, items: int) -> None:
        self.tables = {"i": clustered(items, 0), "q": clustered(1_000, 1), "t": clustered(1_000, 2)}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> np.ndarray:
        table = self.tables[text[0]]
        return table[int(text[1:9]) % len(table)]


@cache
def prose() -> str:
    """Some 700 kB of English about Python, in one line of ASCII."""
    return " ".join(" ".join(topics.values()).encode("ascii", "ignore").decode().split())


def words(number: int, length: int) -> str:
    """Some of ``prose``, ``length`` bytes long."""
    start = number * 7_919 % (len(prose()) - length)
    return prose()[start : start + length].strip().ljust(length, ".")


def item_texts(number: int) -> tuple[str, str, str]:
    """Title, description and content of a lesson; no two lessons are equal."""
    title, description = f"i{number:08d} {words(number, 40)}", words(number + 1, 100)
    return title, description, words(number + 2, TEXT_BYTES - len(title) - len(description))


def query_text(number: int) -> str:
    """A query; no two are equal."""
    return f"q{number:08d} what is to be done?"


# Other memories, in processes of their own


class Mem0:
    """mem0's public ``Memory`` on its FAISS store; texts are added as they are, without a language model."""

    def __init__(self, folder: Path, lookup: Lookup) -> None:
        from mem0 import Memory

        store = {"collection_name": "bench", "path": str(folder / "faiss"), "distance_strategy": "cosine"}
        provider = {"provider": "faiss", "config": store | {"embedding_model_dims": DIMENSION}}
        self.memory = Memory.from_config({"vector_store": provider, "history_db_path": str(folder / "history.db")})
        self.memory.embedding_model = self
        self.lookup = lookup

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return self.lookup.vector(text).tolist()

    def fill(self, numbers: range) -> None:
        """Fill the store directly, because the public method rewrites both files for each memory."""
        texts = ["\n".join(item_texts(number)) for number in numbers]
        payloads = [{"data": text, "user_id": "user"} for text in texts]
        self.memory.vector_store.insert([self.embed(text) for text in texts], payloads, [str(n) for n in numbers])

    def add(self, number: int) -> None:
        self.memory.add("\n".join(item_texts(number)), user_id="user", infer=False)

    def find(self, number: int) -> Sequence[object]:
        return self.memory.search(query_text(number), top_k=K, filters={"user_id": "user"}, threshold=0.0)["results"]


class ReasoningBank:
    """reasoning-bank's own bank on its SQLite store."""

    def __init__(self, folder: Path, lookup: Lookup) -> None:
        with contextlib.suppress(ImportError):  # the SQLite of many Python builds loads no extensions
            sys.modules["sqlite3"] = __import__("pysqlite3")
        from reasoning_bank import ReasoningBank as Bank
        from reasoning_bank.stores.sqlite_vec import SQLiteVecStore

        self.run, self.lookup, self.dim = asyncio.new_event_loop().run_until_complete, lookup, DIMENSION
        self.store = SQLiteVecStore(folder / "bank.db")
        self.bank = Bank(self.refuse, store=self.store, embedder=self)

    async def refuse(self, *arguments: object, **more: object) -> str:
        raise RuntimeError("bank_peers: unexpected call of a language model")

    def embed(self, texts: list[str]) -> list[list[float]]:
        return self.lookup.embed(texts).tolist()

    def fill(self, numbers: range) -> None:
        self.store._conn.execute("PRAGMA synchronous=OFF")
        for number in numbers:
            self.add(number)
        self.store._conn.execute("PRAGMA synchronous=FULL")

    def add(self, number: int) -> None:
        self.run(self.bank.add_manual(*item_texts(number)))

    def find(self, number: int) -> Sequence[object]:
        return self.run(self.bank.retrieve(query_text(number), K))


PEERS: dict[str, Callable[[Path, Lookup], Any]] = {"reasoning-bank 0.1.1": ReasoningBank, "mem0 2.2.1": Mem0}


def query_times(find: Callable[[int], Sequence[object]], numbers: Iterable[int]) -> tuple[float, float]:
    """Milliseconds a query: CPU of this process, and wall."""
    queries = list(numbers)
    wall, cpu = time.perf_counter(), time.process_time()
    results = [len(find(number)) for number in queries]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if set(results) != {K}:
        raise RuntimeError(f"{set(results)} results, expected {K}")
    return cpu * 1_000 / len(queries), wall * 1_000 / len(queries)


def serve(name: str, folder: Path, items: int) -> None:
    """Serve the memory ``name``: read one request per line, write one answer per line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the memory itself is not an answer
    peer = PEERS[name](folder, Lookup(items + 10_000))
    peer.fill(range(items))
    for line in sys.stdin:
        request = json.loads(line)
        if "find" in request:
            answer: object = query_times(peer.find, request["find"])
        else:
            started = time.perf_counter()
            for number in range(items, items + request["add"]):
                peer.add(number)
            items += request["add"]
            answer = request["add"] / (time.perf_counter() - started)
        print(json.dumps(answer), file=answers, flush=True)


class Peer:
    """Another memory with ``items`` lessons, in a process of its own."""

    def __init__(self, name: str, folder: Path, items: int) -> None:
        self.errors = folder / f"{name}-{uuid4().hex[:8]}" / "errors.txt"
        self.errors.parent.mkdir()
        home, nowhere = str(self.errors.parent), "http://127.0.0.1:9"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), nowhere)
        offline = {
            "HOME": home,
            "MEM0_DIR": home,
            "MEM0_TELEMETRY": "False",
            "OPENAI_API_KEY": "none",
            "PYTHONPATH": "",
        }
        command = [str(peers_python()), "-W", "ignore", __file__, name, home, str(items)]
        with self.errors.open("w") as errors:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
            self.process = subprocess.Popen(command, env=os.environ | offline | proxies, **pipes)

    def ask(self, **request: Any) -> Any:
        """Send a request and return the answer; raises ``RuntimeError`` with the last errors if the process ended."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.errors.read_text()[-2_000:])
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


def peers_python() -> Path:
    """The interpreter that has the other memories; they are installed on first use."""
    place = BUILD / "peers" / hashlib.sha256(repr(REQUIREMENTS).encode()).hexdigest()[:12]
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (place / "installed").exists():
        print("installing the peers into build/peers", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True, clear=True)
        for requirements in REQUIREMENTS:
            pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *requirements]
            subprocess.run(pip, check=True, stdout=sys.stderr)
        (place / "installed").touch()
    return python


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
