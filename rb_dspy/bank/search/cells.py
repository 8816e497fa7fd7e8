"""The cells of a large index, and a disposable cache file, so that the next process need not compute them again.

The file has cluster centers and the number of each row's cell, but no rows: about 5 MB for a million rows.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rb_dspy.errors import RBError
from rb_dspy.protocols import Vectors

_VERSION = 1
"""Version of the file format; part of the checksum."""

_SAMPLE = 997
"""One row in this many is hashed into the file's key."""


@dataclass(frozen=True)
class Cells:
    """Centers of the cells, and the cell of each of the first rows."""

    centroids: Vectors
    cell_of: NDArray[np.int64]


class CellFile:
    """A file for its owner only. It is replaced as a whole, and ignored if it is damaged or for other rows."""

    def __init__(self, path: Path, state: tuple[object, ...], current: Callable[[], tuple[object, ...]]) -> None:
        """Set the path; the file is not read or written yet.

        Args:
            path: The file; it need not exist.
            state: Embedder and epoch of the rows.
            current: Returns the current embedder and epoch of the bank.
        """
        self._path = path
        self._state = state
        self._current = current

    def read(self, vectors: Vectors) -> Cells | None:
        """Return the cells of the first of these rows, or None if the file does not have them."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return None
        if data[:4] != _checksum(data[4:]):
            return None
        with np.load(io.BytesIO(data[4:]), allow_pickle=False) as arrays:
            cells = Cells(arrays["centroids"], arrays["cell_of"].astype(np.int64))
            key = str(arrays["key"])
        rows = len(cells.cell_of)
        return cells if rows <= len(vectors) and key == self._key(vectors[:rows]) else None

    def write(self, cells: Cells, vectors: Vectors) -> None:
        """Replace the file; disk errors are ignored. The file is deleted if the bank was purged meanwhile."""
        key = self._key(vectors[: len(cells.cell_of)])
        stream = io.BytesIO()
        np.savez(stream, key=np.array(key), centroids=cells.centroids, cell_of=cells.cell_of.astype(np.int32))
        data = stream.getvalue()
        with contextlib.suppress(OSError):
            descriptor, unfinished = tempfile.mkstemp(dir=self._path.parent, prefix=f"{self._path.name}.")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_checksum(data) + data)
                os.replace(unfinished, self._path)
            except OSError:
                os.unlink(unfinished)
        # A purge deletes the files after its commit. If this call then created the file again, the epoch has changed.
        try:
            purged = self._current() != self._state
        except RBError:  # the bank is closed, so this is unknown
            purged = True
        if purged:
            self._path.unlink(missing_ok=True)

    def _key(self, vectors: Vectors) -> str:
        """The key of the rows: a hash of a sample and of the last row."""
        sample = zlib.crc32(vectors[-1:].tobytes(), zlib.crc32(vectors[::_SAMPLE].tobytes()))
        return repr((*self._state, vectors.shape, sample))


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data, _VERSION).to_bytes(4, "big")
