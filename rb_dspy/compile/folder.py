"""The folder of a compile: what it was, the answers it got, the best prompts so far, and in the end the result.

``compile.json`` names the compile, ``answers.jsonl`` is what it is resumed from, ``best.json`` can be loaded with
``load_program`` at any time, ``compiled.json`` is the result. No language model, key or address is in any of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rb_dspy.compile.files import read_json, write_json
from rb_dspy.errors import InputError, RBError

log = logging.getLogger("rb_dspy")

FORMAT = "rb_dspy compile"
VERSION = 1

_KEPT = ("answers.jsonl", "best.json", "compiled.json")
_DIGEST = re.compile(r"[0-9a-f]{16,64}")


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
def opened(
    path: str | Path | None,
    identity: Mapping[str, Any],
    models: Collection[str] = (),
    untold: Mapping[str, str] | None = None,
) -> Iterator[Folder]:
    """The folder at ``path``, which is made where there is none, for the compile that ``identity`` describes.

    ``models``: the names of those that play, which are told where others were there. ``untold``: part -> what of it
    ``identity`` cannot tell; with any, only a folder in which nobody answered will do. A folder of another compile that
    got no answer is taken over. Raises ``InputError`` where it holds another compile, and says what differs, or where
    another process is at it; ``RBError`` where nothing can be written in it.
    """
    if path is None:
        yield Folder(None)
        return
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise RBError(f"{path}: cannot be made a folder: {exc.strerror}") from exc
    held = path / ".lock"
    lock = FileLock(held, timeout=0)
    try:
        lock.acquire()
    except Timeout:  # which is an OSError as well
        if not held.exists():  # filelock takes a file that cannot be made for one that another process just removed
            raise RBError(f"{path}: cannot be written: no file can be made in it; give another folder") from None
        raise InputError(f"{path}: another process compiles in this folder; wait for it, or give another") from None
    except OSError as exc:
        raise RBError(f"{path}: cannot be written: {exc.strerror}; give another folder") from exc
    try:
        _check(path, identity, models, untold or {})
        yield Folder(path)
    finally:
        lock.release()


def _check(path: Path, identity: Mapping[str, Any], models: Collection[str], untold: Mapping[str, str]) -> None:
    described = path / "compile.json"
    known = described.exists()
    there = _identity(described) if known else {}
    other = [name for name in dict.fromkeys([*there, *identity]) if there.get(name) != identity.get(name)]
    held = any(_holds(path / name) for name in _KEPT)
    for what, why in untold.items():
        if known and not other and held:
            raise InputError(
                f"{path}: holds a compile, and nobody can tell whether its {what} was this one: {why}; give one that"
                " stands in a module under a name of its own (def or class), or another folder"
            )
        log.warning(
            "%s: what is compiled here cannot go on after a stop: nobody can tell its %s from another, as %s; one that"
            " stands in a module under a name of its own (def or class) can be told",
            path,
            what,
            why,
        )
    if known and not other:
        return
    if not held:  # nobody has answered: nothing is lost
        write_json(described, {"format": FORMAT, "version": VERSION, "identity": identity})
        return
    if not known:
        raise InputError(f"{path}: holds a compile without compile.json, so nobody knows which; give another folder")
    if "models" in other:  # how they sample is told of them by name
        other = [name for name in other if name != "sampling"]
    told = (_differs(name, there.get(name), identity.get(name), models) for name in other)
    raise InputError(
        f"{path}: holds another compile, with other {', '.join(told)}; give another folder, delete this one, or give"
        " the same arguments"
    )


def _identity(described: Path) -> dict[str, Any]:
    there = read_json(described, FORMAT, VERSION).get("identity", {})
    if not isinstance(there, dict):
        raise InputError(
            f"{described}: has {type(there).__name__} for identity; expected an object; give another folder"
        )
    return there


def _holds(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _differs(name: str, there: Any, here: Any, models: Collection[str]) -> str:
    """What differs, and how where that says something to people: a digest does not, and no model's name is kept."""
    if name == "models":
        return f"{name} than {', '.join(models)}" if models else name
    if any(isinstance(value, str) and _DIGEST.fullmatch(value) for value in (there, here)):
        return name
    return f"{name} ({there} there, {here} here)"
