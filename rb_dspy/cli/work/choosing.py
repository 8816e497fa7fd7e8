"""Which tasks ``rb-dspy run`` does: what was typed, or those of a file or a named stream that the bank has not seen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rb_dspy.cli.tasks import is_file, of_file
from rb_dspy.config import RunConfig
from rb_dspy.errors import InputError
from rb_dspy.program import as_task
from rb_dspy.schema import Task
from rb_dspy.stream import TaskStream, named_tasks


@dataclass(frozen=True)
class Todo:
    """The tasks of a run, in order."""

    tasks: list[Task]
    given: Sequence[Task | str]
    """The same in the form in which the program gets them: what was typed as the text that it is, since one that comes
    again is another occasion."""
    left_out: Sequence[str] = ()
    """Ids of tasks that the bank has learned from: of a file all, of a named stream those that it passed over."""

    @property
    def typed(self) -> bool:
        """Whether somebody typed it."""
        return any(isinstance(each, str) for each in self.given)


@dataclass(frozen=True)
class Source:
    """Where the tasks of a run come from. Made by ``source``."""

    config: RunConfig
    typed: str | None = None
    file: TaskStream | None = None
    """None also for a named stream: nobody knows how many tasks it has, it makes as many as are wanted."""

    @property
    def name(self) -> str:
        """As people are told it."""
        return self.config.stream if self.typed is None else "your task"

    def todo(self, seen: Collection[str]) -> Todo:
        """The first tasks that are not among those ``seen``; what was typed, seen or not.

        A file is in its own order, and shuffled if the settings name a seed.
        """
        if self.typed is not None:
            return Todo([as_task(self.typed)], [self.typed])
        if self.file is None:
            return _of_stream(self.config, self.config.tasks, seen)
        new = [task for task in self.file if task.id not in seen]
        if "seed" in self.config.model_fields_set:
            new = list(TaskStream(self.file.name, tuple(new)).permuted(self.config.seed))
        tasks = new[: self.config.tasks]
        return Todo(tasks, tasks, [task.id for task in self.file if task.id in seen])

    def more(self, seen: Collection[str]) -> str:
        """What gives tasks where the bank has seen all of these; a stream that ends may be the same for every seed."""
        if self.file is not None:
            return "add tasks, or give another --scope"
        seed = self.config.seed + 1
        if _of_stream(self.config.model_copy(update={"seed": seed}), 1, seen).tasks:
            return f"--seed {seed} gives new ones, and another --scope does these from the start"
        return f"--seed {seed} gives none either; another --scope does these from the start"


def source(config: RunConfig, typed: str | None) -> Source:
    """What was typed, where anything was, else the stream of the settings.

    Raises ``InputError`` for what cannot be used, before a bank is made for it; what was typed is looked at first.
    """
    if typed is not None:
        as_task(typed)
        return Source(config, typed)
    if is_file(config.stream):
        return Source(config, file=_of_file(config))
    if not _of_stream(config, 1).tasks:
        raise InputError(f"{config.stream}: no task in its split {config.split}; choose another one")
    return Source(config)


def _of_file(config: RunConfig) -> TaskStream:
    for name, usual in (("split", "all"), ("templates", None)):
        if getattr(config, name) != usual:
            raise InputError(
                f"run.{name} is for named streams, and {config.stream} is a file: leave it out, or put the tasks that"
                " are meant in a file of their own"
            )
    return of_file(Path(config.stream))


def _of_stream(config: RunConfig, n: int, seen: Collection[str] = ()) -> Todo:
    """The first ``n`` of a named stream that nobody has seen; what comes after them is not made."""
    new: list[Task] = []
    left_out: list[str] = []
    for task in named_tasks(config.stream, seed=config.seed, split=config.split, templates=config.templates):
        if task.id in seen:
            left_out.append(task.id)
            continue
        new.append(task)
        if len(new) == n:
            break
    return Todo(new, new, left_out)
