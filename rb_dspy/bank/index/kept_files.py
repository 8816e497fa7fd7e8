"""How the files of a saved index come to disk, whole or not at all, and go again when nothing names them."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

import xxhash

from rb_dspy.bank.index.manifest import File, Manifest, UnusableError, read_manifest
from rb_dspy.files import making, put, sync, sync_folder

_CHUNK = 4 << 20
_STRAY = 3600
"""Seconds after which a file that no manifest names was left by a process that died; a younger one may be in the making
by another process."""


class KeptFiles:
    """The files of one index, in a folder that others and other processes use too; a manifest says which count."""

    def __init__(self, folder: Path, key: str) -> None:
        """``key``: what the names of this index's files begin with."""
        self.manifest = folder / f"{key}.json"
        self._folder = folder
        self._key = key
        self._begun: list[str] = []
        """Names of the files that were begun since ``begin``."""

    def path(self, file: File) -> Path:
        """Where it is."""
        return self._folder / file.name

    def have(self, files: Iterable[File]) -> bool:
        """Whether all of them are there."""
        return all(self.path(file).exists() for file in files)

    def verify(self, file: File) -> None:
        """Raises ``UnusableError`` where it is not what was written; reads every byte."""
        path = self.path(file)
        size = path.stat().st_size
        if size != file.size:
            raise UnusableError(f"{file.name} has {size} bytes, and should have {file.size}")
        if _hash(path) != file.xxh3_64:
            raise UnusableError(f"{file.name} is not what was written")

    def begin(self) -> None:
        """What is written from here on is what ``undo`` removes."""
        self._begun = []
        self._folder.mkdir(parents=True, exist_ok=True)

    def new(self, kind: str) -> Path:
        """A name to write to, that nobody else has: what no manifest names does not count, so it is final."""
        name = f"{self._key}-{secrets.token_hex(8)}.{kind}"
        self._begun.append(name)
        return self._folder / name

    def settle(self, path: Path) -> File:
        """The written file, on disk."""
        sync(path)
        sync_folder(self._folder)
        return File(name=path.name, size=path.stat().st_size, xxh3_64=_hash(path))

    def publish(self, manifest: Manifest) -> None:
        """What it names counts from now on; what the one before it named goes."""
        replaced = self._names()
        with making(self.manifest, private=False) as made:  # who reads the other files reads it
            made.write_text(manifest.model_dump_json(), encoding="utf-8")
            put(made, self.manifest)
        self._sweep(replaced)

    def undo(self) -> None:
        """Remove what was written since ``begin``: on a full disk no later save comes to sweep it."""
        named = self._names()
        for begun in self._begun:
            if begun not in named:
                with contextlib.suppress(OSError):
                    (self._folder / begun).unlink()

    def remove(self) -> None:
        """Remove all. Raises ``OSError``."""
        self.manifest.unlink(missing_ok=True)
        for path in self._folder.glob(f"{self._key}-*"):
            path.unlink(missing_ok=True)

    def _names(self) -> set[str]:
        """The files that the present manifest names."""
        try:
            return {file.name for file in read_manifest(self.manifest).files}
        except (OSError, UnusableError):
            return set()

    def _sweep(self, replaced: set[str]) -> None:
        """Remove what the manifest before this one named, and what a process that died left behind."""
        named = self._names()
        for path in self._folder.glob(f"{self._key}-*"):
            with contextlib.suppress(OSError):  # gone already, or, on Windows, mapped by another process
                old = time.time() - path.stat().st_mtime > _STRAY
                if path.name not in named and (old or path.name in replaced):
                    path.unlink()


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
