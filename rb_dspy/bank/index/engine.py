"""FAISS as it is used here: imported when it is needed, on one thread, with masks as filters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep the FAISS calls of this thread to one core, and put the setting back.

    With two, a query on a busy machine was 48 times slower. OpenMP keeps the setting for each thread and shares it with
    torch.
    """
    engine = faiss()
    before = engine.omp_get_max_threads()
    if before == 1:
        yield
        return
    engine.omp_set_num_threads(1)
    try:
        yield
    finally:
        engine.omp_set_num_threads(before)


def selector(mask: NDArray[np.bool_]) -> Any:
    """A filter that lets those rows be found where ``mask`` is true; rows count from 0."""
    return faiss().IDSelectorBitmap(np.packbits(mask, bitorder="little"))
