"""The folder of a compile: what it was, the answers it got, the best prompts so far, and in the end the result.

``compile.json`` names the compile, ``answers.jsonl`` is what it is resumed from, ``best.json`` can be loaded with
``load_program`` at any time, ``compiled.json`` is the result. No language model, key or address is in any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rb_dspy.compile.files import read_json, write_json
from rb_dspy.errors import InputError, RBError

FORMAT = "rb_dspy compile"
VERSION = 1


class Folder:
    """A folder for one compile, or none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def answers(self) -> Path | None:
        """Where the answers of language models are kept."""
        return self._file("answers.jsonl")

    @property
    def best(self) -> Path | None:
        """Where the best prompts so far are."""
        return self._file("best.json")

    @property
    def result(self) -> Path | None:
        """Where the result is."""
        return self._file("compiled.json")

    def keep_best(self, state: Mapping[str, Any]) -> None:
        """Write what ``load_program`` reads."""
        if self.best is not None:
            write_json(self.best, state)

    def _file(self, name: str) -> Path | None:
        return None if self._path is None else self._path / name


@contextmanager
def opened(path: str | Path | None, identity: Mapping[str, Any]) -> Iterator[Folder]:
    """The folder at ``path``, which is made where there is none, for the compile that ``identity`` describes.

    Raises ``InputError`` where it holds another compile, and says what differs, or where another process is at it.
    """
    if path is None:
        yield Folder(None)
        return
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise RBError(f"{path}: cannot be made a folder: {exc.strerror}") from exc
    lock = FileLock(path / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{path}: another process compiles in this folder; wait for it, or give another") from None
    try:
        _check(path, identity)
        yield Folder(path)
    finally:
        lock.release()


def _check(path: Path, identity: Mapping[str, Any]) -> None:
    described = path / "compile.json"
    if not described.exists():
        if (path / "answers.jsonl").exists() or (path / "compiled.json").exists():
            raise InputError(
                f"{path}: holds a compile without compile.json, so nobody knows which; give another folder"
            )
        write_json(described, {"format": FORMAT, "version": VERSION, "identity": identity})
        return
    there = read_json(described, FORMAT, VERSION).get("identity", {})
    other = [
        f"{name} ({there.get(name)} there, {identity.get(name)} here)"
        for name in dict.fromkeys([*there, *identity])
        if there.get(name) != identity.get(name)
    ]
    if other:
        raise InputError(
            f"{path}: holds another compile, with other {', '.join(other)}; give another folder, or the same arguments"
        )
