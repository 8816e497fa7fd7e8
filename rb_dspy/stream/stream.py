"""Ordered tasks: from a list, a file, a dataset, or an installed environment."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import pydantic

from rb_dspy.config import Split
from rb_dspy.environments.reasoning_gym import SMALL_MODEL_TEMPLATES
from rb_dspy.environments.sql import confined
from rb_dspy.errors import InputError, InvalidTask
from rb_dspy.files import atomic_write
from rb_dspy.jsonl import encode, read_objects
from rb_dspy.plugins import environment_family, environment_names
from rb_dspy.schema import Task
from rb_dspy.stream.table import NAMES, Columns, as_fields, read_csv, read_parquet, task_fields
from rb_dspy.stream.templates import split_templates
from rb_dspy.text import counted, first_error

if TYPE_CHECKING:
    import datasets

PRESETS: dict[str, tuple[str, tuple[str, ...]]] = {"reasoning-gym-small": ("reasoning-gym", SMALL_MODEL_TEMPLATES)}
"""Stream name -> environment family and templates; the name of a family is a stream of all its templates."""


@dataclass(frozen=True, repr=False, init=False)
class TaskStream:
    """Tasks in a fixed order, with a name. Iterable; a slice is a stream, too.

    A task may also be a str (see ``ReasoningBank``) or a dict with the fields of ``Task``; if ``id`` is
    missing, it is made of the stream's name and the task's ``fingerprint``.

    Raises:
        InputError: An id occurs twice, or ``tasks`` are not tasks.
        InvalidTask: A task cannot be used; the message has its number.
    """

    name: str
    tasks: tuple[Task, ...]

    def __init__(self, name: str, tasks: Iterable[Task | str | Mapping[str, Any]]) -> None:
        if hasattr(tasks, "iterrows"):  # a data frame iterates over the names of its columns
            raise InputError('got a data frame for the tasks of a stream; pass its rows: frame.to_dict("records")')
        if isinstance(tasks, str | bytes | PathLike | Mapping) or not isinstance(tasks, Iterable):
            raise InputError(
                f"got {type(tasks).__name__} for the tasks of a stream; expected a TaskStream, or a list of Task, text"
                " or dict; TaskStream.from_jsonl(path) reads a file"
            )
        object.__setattr__(self, "name", name)
        places = ((f"{name}, task {number}", each) for number, each in enumerate(tasks, 1))
        object.__setattr__(self, "tasks", _tasks(name, places))

    @classmethod
    def of(cls, tasks: Iterable[Task | str | Mapping[str, Any]]) -> TaskStream:
        """Return ``tasks`` if it is a stream, else a stream of them called ``tasks``."""
        return tasks if isinstance(tasks, TaskStream) else cls("tasks", tasks)

    @classmethod
    def named(
        cls, name: str, *, n: int, seed: int = 0, split: Split = "all", templates: Sequence[str] | None = None
    ) -> Self:
        """Return the first ``n`` tasks of ``named_tasks``; fewer if the stream ends earlier."""
        if not isinstance(n, int) or n < 0:
            raise InputError(f"n is {n!r:.40}; expected a number of tasks, 0 or more")
        return cls(name, islice(named_tasks(name, seed=seed, split=split, templates=templates), n))

    @classmethod
    def from_jsonl(cls, path: str | Path, *, files: str | Path | None = None) -> Self:
        """Read tasks from JSON Lines: an object with at least ``instruction`` in each line.

        The fields are those of ``Task``. ``answer``, ``answers`` and ``reveal`` are allowed beside ``instruction``:
        they are arguments of the environment ``question``.

        Args:
            path: The file.
            files: A folder of databases of ``sql``, besides the folder of the file itself; others are not opened.

        Raises:
            InputError: The file cannot be used; the message has file and line.
            InvalidTask: A task cannot be used; the message has file and line.
        """
        objects = read_objects(Path(path), "a JSON object with 'instruction'")
        return cls._read(path, ((f"{path}:{number}", fields) for number, fields in objects), files)

    @classmethod
    def from_csv(cls, path: str | Path, *, columns: Columns = None, files: str | Path | None = None) -> Self:
        """Read tasks from a CSV file with a line of column names; see ``from_dataset`` and ``from_jsonl``.

        Its cells may end at commas, semicolons or tabs.
        """
        return cls._read(path, read_csv(Path(path), columns), files)

    @classmethod
    def from_parquet(cls, path: str | Path, *, columns: Columns = None, files: str | Path | None = None) -> Self:
        """Read tasks from a Parquet file; see ``from_dataset`` and ``from_jsonl``."""
        return cls._read(path, read_parquet(Path(path), columns), files)

    @classmethod
    def _read(cls, path: str | Path, rows: Iterable[tuple[str, Any]], files: str | Path | None) -> Self:
        path = Path(path)
        folders = [path.parent, *([] if files is None else [Path(files)])]
        return cls(path.stem, (confined(task, path, folders) for task in _tasks(path.stem, rows, path)))

    @classmethod
    def from_dataset(cls, dataset: datasets.Dataset, *, columns: Columns = None, name: str | None = None) -> Self:
        """Read tasks from the rows of a dataset, as ``datasets.load_dataset`` returns one for each split.

        Args:
            dataset: The dataset; nothing is downloaded.
            columns: Field of a task -> column: ``{"instruction": "question", "env_args.answer": "gold"}``; other
                columns are ignored. By default every column must be a field of ``Task``, ``env_args.<argument>``, or an
                argument of ``question``, as in ``from_jsonl``, in any case. ``env_args`` may be an object as JSON text.
            name: Name of the stream.

        Raises:
            InputError: A column is missing, or the dataset has no rows.
            InvalidTask: A task cannot be used; the message has its row.
        """
        if isinstance(dataset, Mapping):
            raise InputError(f"got splits; expected one dataset: choose one of {', '.join(map(str, dataset))}")
        name = name or getattr(getattr(dataset, "info", None), "dataset_name", None) or "dataset"
        places = ((f"{name}: row {number}", row) for number, row in enumerate(dataset, 1))
        return cls(name, _tasks(name, as_fields(places, columns), name))

    def to_jsonl(self, path: str | Path) -> None:
        """Write one JSON object per line; ``from_jsonl`` reads equal tasks. The file is replaced atomically."""
        lines = [encode({"id": task.id, **task.model_dump(exclude_defaults=True)}) for task in self]
        with atomic_write(path) as file:
            file.writelines(lines)

    @cached_property
    def digest(self) -> str:
        """20 hex digits that identify order, ids and contents of the tasks; equal in every process and file format."""
        digest = hashlib.sha256(b"rb_dspy tasks 1\n")
        for task in self:
            fields = task.model_dump(exclude_defaults=True)  # so that new fields of Task change no digest
            digest.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        return digest.hexdigest()[:20]

    def permuted(self, seed: int) -> TaskStream:
        """Return the tasks in an order drawn from ``seed`` and their ids; removing a task keeps the order."""
        drawn = sorted(self.tasks, key=lambda task: hashlib.sha256(f"{seed}\n{task.id}".encode()).digest())
        return TaskStream(f"{self.name}/perm{seed}", drawn)

    def windows(self, size: int) -> list[TaskStream]:
        """Split the stream into parts of ``size`` tasks; the last may be shorter."""
        if size < 1:
            raise InputError(f"{self.name}: windows of {size} tasks; expected at least 1")
        return [self[start : start + size] for start in range(0, len(self), size)]

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskStream: ...
    def __getitem__(self, index: int | slice) -> Task | TaskStream:
        if not isinstance(index, slice):
            return self.tasks[index]
        start, stop, step = index.indices(len(self))
        return TaskStream(f"{self.name}[{start}:{stop}{'' if step == 1 else f':{step}'}]", self.tasks[index])

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __hash__(self) -> int:  # tasks contain a dict and have no hash
        return hash((self.name, tuple(task.id for task in self.tasks)))

    def __repr__(self) -> str:
        return f"TaskStream({self.name!r}, {counted(len(self), 'task')}, {self.digest})"


def stream_names() -> list[str]:
    """Return the names that ``named_tasks`` accepts."""
    return sorted([*environment_names(), *PRESETS])


def named_tasks(
    name: str, *, seed: int = 0, split: Split = "all", templates: Sequence[str] | None = None
) -> Iterator[Task]:
    """Generate the tasks of an installed environment or a preset, one by one; most streams never end.

    Deterministic for name, seed, split and templates. Splits share no template, and no fold if the family has folds.

    Raises:
        InputError: Raised at the call: an unknown name or template, or a split without templates.
        MissingDependency: The environment cannot run here.
    """
    if name not in stream_names():
        near = difflib.get_close_matches(name, stream_names(), n=1)
        hint = f"did you mean {near[0]!r}? Streams are" if near else "expected"
        raise InputError(
            f"unknown stream {name!r}; {hint} {', '.join(stream_names())}, or a file of tasks that ends in .jsonl,"
            " .csv or .parquet"
        )
    env, preset = PRESETS.get(name, (name, None))
    family = environment_family(env)
    family.check()
    chosen = preset or family.templates() if templates is None else templates
    return family.tasks(seed=seed, templates=split_templates(chosen, split, env=env))


def fingerprint(task: Task) -> str:
    """10 hex digits that identify the work: equal for the same task under another id, or in another file."""
    content = json.dumps([task.instruction, task.env, task.env_args], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def _tasks(name: str, rows: Iterable[tuple[str, Any]], source: object = None) -> tuple[Task, ...]:
    """Return the task of each value; each value comes with its place in ``source``, a file or a dataset with tasks."""
    times: Counter[str] = Counter()
    places: dict[str, str] = {}
    tasks = []
    for place, value in rows:
        task = _task(name, place, value, times)
        if task.id in places:
            raise InputError(f"{place}: the task id {task.id!r} is that of {places[task.id]}, too; ids must differ")
        places[task.id] = place
        tasks.append(task)
    if source and not tasks:
        raise InputError(f"{source}: has no tasks; expected at least one")
    return tuple(tasks)


def _task(name: str, place: str, value: Any, times: Counter[str]) -> Task:
    try:
        if isinstance(value, Task):
            return value
        if not isinstance(value, Mapping):
            from rb_dspy.learner import as_task  # importing dspy takes a second, and most streams do not need it

            return as_task(value)
        value = task_fields(value)
        if "id" in value:
            return Task.model_validate(value)
        key = fingerprint(Task.model_validate({**value, "id": "none"}))
        times[key] += 1
        again = f"-{times[key]}" if times[key] > 1 else ""
        return Task.model_validate({**value, "id": f"{name}/{key}{again}"})
    except InvalidTask as exc:
        raise InvalidTask(f"{place}: {exc}") from None
    except pydantic.ValidationError as exc:
        field, problem = first_error(exc)
        near = difflib.get_close_matches(field, NAMES, n=1) if field not in NAMES else ()
        hint = f"did you mean {near[0]!r}?" if near else f"a task has the fields {', '.join(NAMES)}"
        raise InvalidTask(f"{place}: {field[:200]}: {problem}; {hint}") from None
