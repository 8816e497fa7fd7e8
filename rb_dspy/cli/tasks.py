"""The TASKS argument, ``--task`` and ``--env``: the tasks of a command."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rb_dspy.config import RunConfig
from rb_dspy.errors import InputError
from rb_dspy.schema import Task

if TYPE_CHECKING:
    from rb_dspy.cli.options import OnTasks
    from rb_dspy.stream import Streams, TaskStream

SUFFIXES = (".jsonl", ".csv", ".parquet")
COMPILED = 100
"""Tasks of a named stream in a compile: 40 of them are held out, which in eight orders show a gain of 13 points."""

WORLDS = 8
"""Seeds that are tried for a part of a compile, until it shares no fact with the parts before it."""


@dataclass(frozen=True)
class Source:
    """Where tasks come from: a file, a named stream, or a text."""

    name: str
    config: RunConfig
    stream: TaskStream | None = None
    """The tasks of a file or a text, in order; None for a named stream, which may be endless."""
    text: str | None = None

    def key(self, n: int | None) -> str:
        """A digest of the tasks that ``take(n)`` chooses from; the same for the same arguments."""
        if self.stream is not None:
            content: tuple[object, ...] = (self.stream.digest, n)
        else:
            config = self.config
            content = (self.name, config.seed, config.split, config.templates, n or config.tasks)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:20]

    def take(self, n: int | None, seen: Collection[str] = ()) -> tuple[list[Task], int]:
        """The first ``n`` tasks that are not in ``seen``, and how many were skipped.

        ``n`` None: all tasks of a file, ``run.tasks`` of a named stream.
        """
        n = n or (None if self.stream is not None else self.config.tasks)
        tasks, left_out = [], 0
        for task in self._tasks():
            if task.id in seen:
                left_out += 1
                continue
            tasks.append(task)
            if len(tasks) == n:
                break
        return tasks, left_out

    def find(self, ids: Sequence[str]) -> list[Task]:
        """The tasks with these ids, in this order. Raises ``InputError`` if one is missing."""
        missing, tasks = set(ids), {}
        for task in islice(self._tasks(), 100 * len(ids) + 10_000):
            if task.id in missing:
                missing.discard(task.id)
                tasks[task.id] = task
            if not missing:
                return [tasks[id] for id in ids]
        raise InputError(f"{self.name}: no longer has the task {min(missing)!r}; start a new run with --new")

    def _tasks(self) -> Iterator[Task]:
        from rb_dspy.stream import named_tasks

        if self.stream is not None:
            return iter(self.stream)
        config = self.config
        return named_tasks(self.name, seed=config.seed, split=config.split, templates=config.templates)


def source(on: OnTasks, config: RunConfig, text: str | None) -> Source:
    """The source that TASKS or ``--task TEXT`` names, else ``run.stream``. Raises ``InputError`` if it is unusable."""
    from rb_dspy.stream import TaskStream

    if text is not None:
        if on.tasks is not None:
            raise InputError("TASKS and --task cannot be combined; pass a file or stream, or one question")
        return Source("your task", config, TaskStream("your task", [text]), text)
    name = on.tasks if on.tasks is not None else config.stream
    if not name.lower().endswith(SUFFIXES):
        found = Source(name, config)
        if not found.take(1)[0]:
            raise InputError(f"{name}: no task in its split {config.split}; choose another one")
        return found
    for key, usual in (("split", "all"), ("templates", None)):
        if getattr(config, key) != usual:
            raise InputError(f"run.{key} is for named streams, and {name} is a file; remove it")
    stream = _read(Path(name), on.files, any_env=on.env is not None)  # --env replaces the environments of tasks
    return Source(name, config, stream if on.seed is None else TaskStream(stream.name, stream.permuted(on.seed).tasks))


def task_stream(found: Source, n: int | None) -> TaskStream:
    """The first ``n`` tasks as a stream."""
    from rb_dspy.stream import TaskStream

    name = found.stream.name if found.stream is not None else found.name
    return TaskStream(name, found.take(n)[0])


def compile_streams(found: Source, n: int | None) -> Streams:
    """Split the tasks into three parts that share no template; a named stream has its own splits, each of another seed.

    With one seed, all parts of ``directory`` would ask about the same owners, so prompts that contain the answers of
    one part would be measured as better on another.

    ``n``: tasks of all three together; None: all of a file, ``COMPILED`` of a named stream.
    """
    from rb_dspy.plugins import family_attribute
    from rb_dspy.stream import COMPILE_SHARES, Streams, TaskStream, split_streams

    if found.stream is not None:
        return split_streams(task_stream(found, n), seed=found.config.seed)
    parts: dict[str, Any] = {}
    known: set[str] = set()
    config, seed = found.config, found.config.seed
    shares: Any = COMPILE_SHARES.items()
    for part, share in shares:
        count = max(1, round(share * (n or COMPILED)))
        tried: list[tuple[set[str], int, TaskStream]] = []
        for each in range(seed, seed + WORLDS):
            tasks = TaskStream.named(found.name, n=count, seed=each, split=part, templates=config.templates)
            if not len(tasks):
                raise InputError(
                    f"{found.name}: no task in its split {part}; choose another stream, or a file of tasks"
                )
            lessons = family_attribute(tasks[0].env, "lessons", lambda _: ())
            facts = {draft.content for draft in lessons(tasks.tasks)}
            tried.append((facts, each, tasks))
            if not facts & known:
                break
        facts, used, tasks = min(tried, key=lambda world: len(world[0] & known))
        seed, known = used + 1, known | facts
        parts[part] = TaskStream(f"{found.name}/{part}", tasks.tasks)
    return Streams(**parts)


def _read(file: Path, files: Path | None, *, any_env: bool) -> TaskStream:
    """All tasks of a file. Raises ``InputError`` that names the file, also for a task that cannot be run here."""
    from rb_dspy.environments.question import Question
    from rb_dspy.plugins import environment_family
    from rb_dspy.stream import TaskStream

    readers = (TaskStream.from_jsonl, TaskStream.from_csv, TaskStream.from_parquet)
    stream = dict(zip(SUFFIXES, readers, strict=True))[file.suffix.lower()](file, files=files)
    for task in stream if not any_env else ():
        try:
            family = environment_family(task.env)
            if isinstance(family, Question):
                family.make(task)  # checks its answers
        except InputError as exc:
            raise InputError(f"{file}: task {task.id!r}: {exc}") from None
    return stream
