"""Index files beside a bank: derived, disposable, and believed only where they agree with the store."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rb_dspy.bank.index.columns import ALIVE, Columns
from rb_dspy.bank.index.engine import faiss
from rb_dspy.bank.index.exact import ExactRows
from rb_dspy.bank.index.ivf import IvfRows
from rb_dspy.bank.index.kept_files import KeptFiles
from rb_dspy.bank.index.manifest import File, Manifest, SavedPart, UnusableError, read_manifest
from rb_dspy.bank.index.pq import PqCodes
from rb_dspy.bank.index.vector import IndexView, VectorIndex
from rb_dspy.bank.parts import Unit
from rb_dspy.errors import StorageError
from rb_dspy.text import summary_line

_ENDING = ".index"

_log = logging.getLogger("rb_dspy.bank")


class Sidecar:
    """The saved index of one unit in one scope, in a folder that other scopes and processes use too.

    Only approximate parts are saved: what else there is, is read from the store faster than it could be checked.
    """

    def __init__(self, folder: Path, scope: str, unit: Unit, *, embedder_id: str, dimension: int) -> None:
        """``folder``: ``beside(bank file)``; it is made by the first ``save``."""
        self._folder = folder
        self._scope = scope
        self._unit = unit
        self._embedder = embedder_id
        self._dimension = dimension
        key = hashlib.blake2b(f"{unit}\0{scope}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self._files = KeptFiles(folder, key)
        self._saved: tuple[tuple[IvfRows, SavedPart], ...] = ()

    def load(self, digest: Callable[[int], str]) -> VectorIndex | None:
        """The index as it was saved, ready for ``changes(after=index.view.mark)``; None where there is no use for it.

        ``digest(mark)`` is the store's, for this scope. Nothing is used, and one line in the log says why, when a file
        is missing, is not what was written, is of another embedder, or tells another history than the store does.
        Reads every byte once; vectors stay in the file and are mapped, shared with other processes.
        """
        if not self._files.manifest.exists():
            return None
        try:
            return VectorIndex(self._dimension, begin=self._read(digest))
        except (UnusableError, OSError) as exc:
            _log.warning("%s: the saved index is not used, and made again from the bank: %s", self._files.manifest, exc)
            return None

    def save(self, view: IndexView, digest: Callable[[int], str]) -> bool:
        """Save the approximate parts of ``view``; False, and nothing is written, where it has none, or saved them, or
        where this user may only read the bank.

        Takes some seconds for a million rows: hold no lock. Safe beside other processes, and threads with a ``Sidecar``
        of their own: the last one to end wins. Raises ``StorageError`` where the disk refuses; what was saved before
        stays in use.
        """
        # Never behind others: once an index is to have such parts, the first one takes in all that there were.
        given = [part for part in view.parts if isinstance(part, IvfRows)]
        if not given or [part for part, _ in self._saved] == given or self._is_anothers():
            return False
        known = {id(part): saved for part, saved in self._saved if self._files.have(saved.files)}
        try:
            self._files.begin()
            parts = tuple((part, known.get(id(part)) or self._write_part(part)) for part in given)
            rows = given[-1].stop
            mark = int(view.columns.seqs[rows - 1])
            manifest = Manifest(
                format=2,
                scope=self._scope,
                unit=self._unit,
                embedder=self._embedder,
                dimension=self._dimension,
                mark=mark,
                digest=digest(mark),
                rows=rows,
                columns=self._write_columns(view.columns, rows, mark),
                parts=tuple(saved for _, saved in parts),
            )
            self._files.publish(manifest)
        except BaseException as exc:
            self._files.undo()
            if isinstance(exc, OSError):
                why = f"the index cannot be saved ({exc}); make room, or delete it"
                raise StorageError(f"{self._folder}: {why}") from exc
            raise
        self._saved = parts
        return True

    def discard(self) -> None:
        """Forget what is saved: after a re-index, or where it is not trusted. Raises ``StorageError``."""
        self._saved = ()
        try:
            self._files.remove()
        except OSError as exc:
            raise StorageError(f"{self._folder}: the saved index cannot be removed ({exc}); delete it") from exc

    def _is_anothers(self) -> bool:
        """Whether the bank's file is there and this user may not write it: an index of theirs would be in the way."""
        bank = self._folder.with_name(self._folder.name.removesuffix(_ENDING))
        return bank.is_file() and not os.access(bank, os.W_OK)

    def _read(self, digest: Callable[[int], str]) -> IndexView:
        manifest = read_manifest(self._files.manifest)
        for what, is_, expected in (
            ("scope", manifest.scope, self._scope),
            ("unit", manifest.unit, self._unit),
            ("embedder", manifest.embedder, self._embedder),
            ("dimension", manifest.dimension, self._dimension),
            ("history", manifest.digest, digest(manifest.mark)),
        ):
            if is_ != expected:
                raise UnusableError(f"it is of another {what}: {is_!r}, where the bank has {expected!r}")
        for file in manifest.files:
            self._files.verify(file)
        columns = self._read_columns(manifest)
        parts: list[IvfRows] = []
        for saved in manifest.parts:
            parts.append(self._read_part(saved, parts[-1].stop if parts else 0))
        if not parts or parts[-1].stop != manifest.rows:
            raise UnusableError(f"it holds {parts[-1].stop if parts else 0} rows, and says {manifest.rows}")
        self._saved = tuple(zip(parts, manifest.parts, strict=True))
        dead = int(np.count_nonzero(columns.ended != ALIVE))
        tail = ExactRows(manifest.rows, manifest.rows, (), self._dimension)
        return IndexView(manifest.mark, columns, tuple(parts), tail, dead)

    def _read_part(self, saved: SavedPart, start: int) -> IvfRows:
        engine = faiss()
        index = self._read_index(saved.rows)
        if not isinstance(index, engine.IndexIVFScalarQuantizer) or index.d != self._dimension:
            raise UnusableError(f"{saved.rows.name} is another kind of index")
        if saved.sketch is None:
            return IvfRows(start, index)
        try:
            codes = PqCodes(self._read_index(saved.sketch), index.ntotal, index.nlist, index.d)
        except ValueError as exc:
            raise UnusableError(f"{saved.sketch.name} is {exc}") from None
        return IvfRows(start, index, codes)

    def _read_index(self, file: File) -> Any:
        try:  # its bytes have been found to be those that FAISS wrote here
            return faiss().read_index(str(self._files.path(file)), _mapped())
        except RuntimeError as exc:
            raise UnusableError(f"{file.name} cannot be read: {summary_line(exc)}") from None

    def _write_part(self, part: IvfRows) -> SavedPart:
        rows = self._write_index(part.index, "faiss")
        codes = None if part.codes is None else self._write_index(part.codes.index, "sketch")
        return SavedPart(rows=rows, sketch=codes)

    def _write_index(self, index: Any, kind: str) -> File:
        engine = faiss()
        path = self._files.new(kind)
        try:
            engine.write_index(index, str(path))
            # What FAISS could not write when it closed the file, it does not tell.
            written = engine.read_index(str(path), _mapped())
        except RuntimeError as exc:
            raise OSError(summary_line(exc)) from exc
        if written.ntotal != index.ntotal:
            raise OSError(f"{path} was not written whole")
        return self._files.settle(path)

    def _read_columns(self, manifest: Manifest) -> Columns:
        rows = manifest.rows
        data = self._files.path(manifest.columns).read_bytes()
        if rows < 1 or len(data) != 25 * rows:
            raise UnusableError(f"{manifest.columns.name} is not for {rows} rows")
        seqs, tasks, ended = np.frombuffer(data, "<i8", 3 * rows).astype(np.int64).reshape(3, rows)
        successes = np.frombuffer(data, np.uint8, rows, 24 * rows).astype(np.bool_)
        return Columns(rows, seqs, tasks, successes, ended)

    def _write_columns(self, columns: Columns, rows: int, mark: int) -> File:
        path = self._files.new("columns")
        ended = np.where(columns.ended[:rows] > mark, ALIVE, columns.ended[:rows])
        with path.open("wb") as file:
            for numbers in (columns.seqs[:rows], columns.tasks[:rows], ended):
                file.write(numbers.astype("<i8").tobytes())
            file.write(columns.successes[:rows].astype(np.uint8).tobytes())
        return self._files.settle(path)


def beside(bank: Path) -> Path:
    """The folder of a bank file's index files."""
    return bank.with_name(bank.name + _ENDING)


def _mapped() -> int:
    """How FAISS reads a file: where the system lets a mapped file be removed, lists stay in it."""
    return int(faiss().IO_FLAG_MMAP_IFC) if os.name == "posix" else 0
