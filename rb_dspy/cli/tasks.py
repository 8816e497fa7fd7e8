"""The tasks that a command compiles on, chooses by, and measures with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rb_dspy.config import RunConfig
from rb_dspy.errors import InputError
from rb_dspy.plugins import environment_family
from rb_dspy.stream import COMPILE_SHARES, SPLITS, Streams, TaskStream, split_streams

_READ: dict[str, Callable[[Path], TaskStream]] = {
    ".jsonl": TaskStream.from_jsonl,
    ".parquet": TaskStream.from_parquet,
    ".csv": TaskStream.from_csv,
}

USUAL = 100
"""Tasks of a named stream if nobody says how many: 30 are held out, which show a gain of 20 points in eight orders."""


def compile_streams(config: RunConfig, file: Path | None, n: int | None) -> Streams:
    """Three streams without a template in common: a file's tasks split, or the splits that a named stream has.

    ``n``: tasks of all three together; None: all that a file has, ``USUAL`` of a named stream.
    """
    if file is not None:
        return split_streams(of_file(file, n), seed=config.seed)
    return Streams(_named(config, "compile", n), _named(config, "dev", n), _named(config, "held_out", n))


def held_out(config: RunConfig, file: Path | None, n: int | None, *, whole: bool) -> TaskStream:
    """The held-out part of ``compile_streams``; with ``whole`` all tasks of a file."""
    if whole and file is None:
        raise InputError("--whole takes all tasks of a file; give one with --tasks-file")
    if file is None:
        return _named(config, "held_out", n)
    stream = of_file(file, n)
    return stream if whole else split_streams(stream, seed=config.seed).held_out


def chosen_file(config: RunConfig, file: Path | None, stream: str | None) -> Path | None:
    """The file of tasks, whichever option names it; None for a named stream."""
    if file is not None and stream is not None:
        raise InputError(f"--tasks-file {file} and --stream {stream}: two sources of tasks; give one of them")
    return Path(config.stream) if file is None and is_file(config.stream) else file


def is_file(stream: str) -> bool:
    """Whether what is called a stream is a file of tasks."""
    return stream.lower().endswith(tuple(_READ))


def _named(config: RunConfig, part: str, n: int | None) -> TaskStream:
    tasks = max(1, round(COMPILE_SHARES[part] * (n or USUAL)))
    split = SPLITS[part]
    found = TaskStream.named(config.stream, n=tasks, seed=config.seed, split=split, templates=config.templates)
    if not len(found):
        raise InputError(f"{config.stream}: no task in its split {split}; choose another stream, or a file of tasks")
    return TaskStream(f"{config.stream}/{part}", found.tasks)


def of_file(file: Path, n: int | None = None) -> TaskStream:
    """The first ``n`` tasks of a file, or all of them.

    Raises ``InputError`` or ``InvalidTask`` that names the file and the line, also for an environment that nothing here
    is called.
    """
    stream = _READ.get(file.suffix.lower(), TaskStream.from_jsonl)(file)
    for task in stream:
        try:
            environment_family(task.env)
        except InputError as exc:
            raise InputError(f"{file}: task {task.id!r}: {exc}") from None
    return stream if n is None else TaskStream(stream.name, stream.tasks[:n])
