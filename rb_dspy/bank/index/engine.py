"""FAISS as it is used here: imported when it is needed, on one thread, with masks as filters."""

from __future__ import annotations

import threading
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

_importing = threading.Lock()


@cache
def faiss() -> Any:
    """The module; its own type stubs do not know what its Python layer adds."""
    with _importing:  # by one thread: beside others that import what it needs, it was seen half made
        return import_module("faiss")


class one_thread:
    """Keep the FAISS calls of this thread to one core, and put the setting back.

    With two, a query on a busy machine was 48 times slower. OpenMP keeps the setting for each thread and shares it with
    torch. No generator, since every search passes here.
    """

    def __enter__(self) -> None:
        self._before = faiss().omp_get_max_threads()
        if self._before != 1:
            faiss().omp_set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._before != 1:
            faiss().omp_set_num_threads(self._before)


def selector(mask: NDArray[np.bool_]) -> Any:
    """A filter that lets those rows be found where ``mask`` is true; rows count from 0."""
    return faiss().IDSelectorBitmap(np.packbits(mask, bitorder="little"))
