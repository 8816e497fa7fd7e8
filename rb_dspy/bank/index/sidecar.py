"""Index files beside a bank: derived, disposable, and believed only where they agree with the store."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import xxhash

from rb_dspy.bank.index.columns import ALIVE, Columns
from rb_dspy.bank.index.engine import faiss
from rb_dspy.bank.index.exact import ExactRows
from rb_dspy.bank.index.ivf import IvfRows
from rb_dspy.bank.index.pq import PqCodes
from rb_dspy.bank.index.vector import IndexView, VectorIndex
from rb_dspy.bank.parts import Unit
from rb_dspy.errors import StorageError

_CHUNK = 4 << 20
_STRAY = 3600
"""Seconds after which a file that no manifest names was left by a process that died; a younger one may be in the making
by another process."""

_log = logging.getLogger("rb_dspy.bank")


class _File(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = pydantic.Field(pattern=r"^[0-9a-f]{32}-[0-9a-f]{16}\.(faiss|sketch|columns)$")
    size: int
    xxh3_64: str


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    rows: _File
    sketch: _File | None  # its codes, under the name that saved indexes have for them
    """None where the part has none."""

    @property
    def files(self) -> tuple[_File, ...]:
        return (self.rows,) if self.sketch is None else (self.rows, self.sketch)


class _Manifest(pydantic.BaseModel):
    """What is saved. Every file has a name that is used once, so that a manifest means one state or none."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[2]
    scope: str
    unit: str
    embedder: str
    dimension: int
    mark: int
    digest: str
    rows: int
    columns: _File
    parts: tuple[_Part, ...] = pydantic.Field(strict=False)

    @property
    def files(self) -> tuple[_File, ...]:
        return (self.columns, *(file for part in self.parts for file in part.files))


class _UnusableError(Exception):
    """Why what is saved cannot be used."""


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
        self._key = hashlib.blake2b(f"{unit}\0{scope}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self._manifest = folder / f"{self._key}.json"
        self._saved: tuple[tuple[IvfRows, _Part], ...] = ()
        self._begun: list[str] = []
        """Names, without their ends, of the files that ``save`` has begun."""

    def load(self, digest: Callable[[int], str]) -> VectorIndex | None:
        """The index as it was saved, ready for ``changes(after=index.view.mark)``; None where there is no use for it.

        ``digest(mark)`` is the store's, for this scope. Nothing is used, and one line in the log says why, when a file
        is missing, is not what was written, is of another embedder, or tells another history than the store does.
        Reads every byte once; vectors stay in the file and are mapped, shared with other processes.
        """
        if not self._manifest.exists():
            return None
        try:
            return VectorIndex(self._dimension, begin=self._read(digest))
        except (_UnusableError, OSError) as exc:
            _log.warning("%s: the saved index is not used, and made again from the bank: %s", self._manifest, exc)
            return None

    def save(self, view: IndexView, digest: Callable[[int], str]) -> bool:
        """Save the approximate parts of ``view``; False, and nothing is written, where it has none, or saved them.

        Takes some seconds for a million rows: hold no lock. Safe beside other processes, and threads with a ``Sidecar``
        of their own: the last one to end wins. Raises ``StorageError`` where the disk refuses; what was saved before
        stays in use.
        """
        # Never behind others: once an index is to have such parts, the first one takes in all that there were.
        given = [part for part in view.parts if isinstance(part, IvfRows)]
        if not given or [part for part, _ in self._saved] == given:
            return False
        known = {
            id(part): saved
            for part, saved in self._saved
            if all((self._folder / file.name).exists() for file in saved.files)
        }
        self._begun = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            parts = tuple((part, known.get(id(part)) or self._write_part(part)) for part in given)
            rows = given[-1].stop
            mark = int(view.columns.seqs[rows - 1])
            manifest = _Manifest(
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
            replaced = self._names()
            temporary = self._temporary()
            temporary.write_text(manifest.model_dump_json(), encoding="utf-8")
            self._settle(temporary, self._manifest)
            self._sweep(replaced)
        except BaseException as exc:
            self._undo()
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
            self._manifest.unlink(missing_ok=True)
            for path in self._folder.glob(f"{self._key}-*"):
                path.unlink(missing_ok=True)
        except OSError as exc:
            raise StorageError(f"{self._folder}: the saved index cannot be removed ({exc}); delete it") from exc

    def _read(self, digest: Callable[[int], str]) -> IndexView:
        try:
            manifest = _Manifest.model_validate_json(self._manifest.read_bytes())
        except pydantic.ValidationError as exc:
            raise _UnusableError(f"its manifest cannot be read, {exc.error_count()} errors") from None
        for what, is_, expected in (
            ("scope", manifest.scope, self._scope),
            ("unit", manifest.unit, self._unit),
            ("embedder", manifest.embedder, self._embedder),
            ("dimension", manifest.dimension, self._dimension),
            ("history", manifest.digest, digest(manifest.mark)),
        ):
            if is_ != expected:
                raise _UnusableError(f"it is of another {what}: {is_!r}, where the bank has {expected!r}")
        for file in manifest.files:
            self._verify(file)
        columns = self._read_columns(manifest)
        parts: list[IvfRows] = []
        for saved in manifest.parts:
            parts.append(self._read_part(saved, parts[-1].stop if parts else 0))
        if not parts or parts[-1].stop != manifest.rows:
            raise _UnusableError(f"it holds {parts[-1].stop if parts else 0} rows, and says {manifest.rows}")
        self._saved = tuple(zip(parts, manifest.parts, strict=True))
        dead = int(np.count_nonzero(columns.ended != ALIVE))
        tail = ExactRows(manifest.rows, manifest.rows, (), self._dimension)
        return IndexView(manifest.mark, columns, tuple(parts), tail, dead)

    def _verify(self, file: _File) -> None:
        path = self._folder / file.name
        size = path.stat().st_size
        if size != file.size:
            raise _UnusableError(f"{file.name} has {size} bytes, and should have {file.size}")
        if _hash(path) != file.xxh3_64:
            raise _UnusableError(f"{file.name} is not what was written")

    def _read_part(self, saved: _Part, start: int) -> IvfRows:
        engine = faiss()
        index = self._read_index(saved.rows)
        if not isinstance(index, engine.IndexIVFScalarQuantizer) or index.d != self._dimension:
            raise _UnusableError(f"{saved.rows.name} is another kind of index")
        if saved.sketch is None:
            return IvfRows(start, index)
        try:
            codes = PqCodes(self._read_index(saved.sketch), index.ntotal, index.nlist, index.d)
        except ValueError as exc:
            raise _UnusableError(f"{saved.sketch.name} is {exc}") from None
        return IvfRows(start, index, codes)

    def _read_index(self, file: _File) -> Any:
        try:  # its bytes have been found to be those that FAISS wrote here
            return faiss().read_index(str(self._folder / file.name), _mapped())
        except RuntimeError as exc:
            raise _UnusableError(f"{file.name} cannot be read: {str(exc).splitlines()[0]}") from None

    def _write_part(self, part: IvfRows) -> _Part:
        rows = self._write_index(part.index, "faiss")
        return _Part(rows=rows, sketch=None if part.codes is None else self._write_index(part.codes.index, "sketch"))

    def _write_index(self, index: Any, kind: str) -> _File:
        engine = faiss()
        temporary = self._temporary()
        try:
            engine.write_index(index, str(temporary))
            # What FAISS could not write when it closed the file, it does not tell.
            written = engine.read_index(str(temporary), _mapped())
        except RuntimeError as exc:
            temporary.unlink(missing_ok=True)
            raise OSError(str(exc).splitlines()[0]) from exc
        if written.ntotal != index.ntotal:
            raise OSError(f"{temporary} was not written whole")
        return self._named(temporary, kind)

    def _read_columns(self, manifest: _Manifest) -> Columns:
        rows = manifest.rows
        data = (self._folder / manifest.columns.name).read_bytes()
        if rows < 1 or len(data) != 25 * rows:
            raise _UnusableError(f"{manifest.columns.name} is not for {rows} rows")
        seqs, tasks, ended = np.frombuffer(data, "<i8", 3 * rows).astype(np.int64).reshape(3, rows)
        successes = np.frombuffer(data, np.uint8, rows, 24 * rows).astype(np.bool_)
        return Columns(rows, seqs, tasks, successes, ended)

    def _write_columns(self, columns: Columns, rows: int, mark: int) -> _File:
        temporary = self._temporary()
        ended = np.where(columns.ended[:rows] > mark, ALIVE, columns.ended[:rows])
        with temporary.open("wb") as file:
            for numbers in (columns.seqs[:rows], columns.tasks[:rows], ended):
                file.write(numbers.astype("<i8").tobytes())
            file.write(columns.successes[:rows].astype(np.uint8).tobytes())
        return self._named(temporary, "columns")

    def _temporary(self) -> Path:
        name = f"{self._key}-{secrets.token_hex(8)}"
        self._begun.append(name)
        return self._folder / f"{name}.tmp"

    def _undo(self) -> None:
        """Remove what a ``save`` that failed has written: on a full disk no later one comes to sweep it."""
        named = self._names()
        for begun in self._begun:
            for path in self._folder.glob(f"{begun}.*"):
                if path.name not in named:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _named(self, temporary: Path, kind: str) -> _File:
        """The written file under its name for good."""
        path = temporary.with_suffix(f".{kind}")
        file = _File(name=path.name, size=temporary.stat().st_size, xxh3_64=_hash(temporary))
        self._settle(temporary, path)
        return file

    def _settle(self, temporary: Path, path: Path) -> None:
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        if os.name == "posix":
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _names(self) -> set[str]:
        """The files that the present manifest names."""
        try:
            manifest = _Manifest.model_validate_json(self._manifest.read_bytes())
        except (OSError, pydantic.ValidationError):
            return set()
        return {file.name for file in manifest.files}

    def _sweep(self, replaced: set[str]) -> None:
        """Remove what the manifest before this one named, and what a process that died left behind."""
        named = self._names()
        for path in self._folder.glob(f"{self._key}-*"):
            with contextlib.suppress(OSError):  # gone already, or, on Windows, mapped by another process
                old = time.time() - path.stat().st_mtime > _STRAY
                if path.name not in named and (old or path.name in replaced):
                    path.unlink()


def beside(bank: Path) -> Path:
    """The folder of a bank file's index files."""
    return bank.with_name(bank.name + ".index")


def _mapped() -> int:
    """How FAISS reads a file: where the system lets a mapped file be removed, lists stay in it."""
    return int(faiss().IO_FLAG_MMAP_IFC) if os.name == "posix" else 0


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
