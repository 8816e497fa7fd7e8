"""Ordered tasks: named streams of the installed environments, files and datasets of tasks, and other orders of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING

from rb_dspy.bank.given import whole_number
from rb_dspy.config import Split
from rb_dspy.environments.reasoning_gym import SMALL_MODEL_TEMPLATES
from rb_dspy.errors import InputError
from rb_dspy.plugins import environment_family, environment_names
from rb_dspy.schema import Task
from rb_dspy.stream import jsonl, tables
from rb_dspy.stream.records import digest
from rb_dspy.stream.splits import folds_of, split_templates
from rb_dspy.wording import counted

if TYPE_CHECKING:
    import datasets

PRESETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reasoning-gym-small": ("reasoning-gym", SMALL_MODEL_TEMPLATES),
}
"""Stream name -> environment family and templates; every family's own name is a stream of all its templates."""


def stream_names() -> list[str]:
    """Names that ``TaskStream.named`` takes."""
    return sorted([*environment_names(), *PRESETS])


@dataclass(frozen=True, repr=False)
class TaskStream:
    """Tasks in a fixed order, under a name. Iterable; ``len`` is the number of tasks.

    ``to_`` methods write what the ``from_`` method of the same kind reads again as an equal tuple of tasks; they raise
    ``InputError`` for a stream that could not be read again: one without tasks, or with an id that stands twice.
    """

    name: str
    tasks: tuple[Task, ...]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __hash__(self) -> int:  # tasks have dicts, and no hash
        return hash((self.name, tuple(task.id for task in self.tasks)))

    def __repr__(self) -> str:
        return f"TaskStream({self.name!r}, {counted(len(self), 'task')}, {self.digest})"

    @cached_property
    def digest(self) -> str:
        """20 hex digits that name the data: order, ids and contents of the tasks, not the stream's name.

        The same in every process and after every format.
        """
        return digest(self.tasks)

    @classmethod
    def named(
        cls,
        name: str,
        *,
        n: int,
        seed: int = 0,
        split: Split = "all",
        templates: Sequence[str] | None = None,
        skip: Collection[str] = (),
    ) -> TaskStream:
        """The first ``n`` tasks of a named stream whose ids are not in ``skip``; fewer where the stream is finite.

        Splits share no template, nor a fold where the family has some: then compile is the fold train, dev dev,
        held-out test, and there is no split stream. Deterministic for name, seed, split and templates. Raises
        ``InputError`` for a name or template that does not exist, or where no template is in the split,
        ``MissingDependency`` where the environment cannot run here.
        """
        _check_number(n)
        made = in_order(name, seed=seed, split=split, templates=templates)
        return cls(name, tuple(islice((task for task in made if task.id not in skip), n)))

    @classmethod
    def from_jsonl(cls, path: str | Path, *, n: int | None = None, skip: Collection[str] = ()) -> TaskStream:
        """Tasks from JSON Lines: one object a line with at least ``instruction``.

        ``id`` defaults to the file's name and a digest of what is to be done.

        Raises ``InputError`` or ``InvalidTask`` that names the file and the line.
        """
        path = Path(path)
        _check_number(n)
        fresh = [task for task in jsonl.read(path) if task.id not in skip]
        return cls(path.stem, tuple(fresh[:n]))

    @classmethod
    def from_parquet(
        cls, path: str | Path, *, columns: Mapping[str, str] | None = None, name: str | None = None
    ) -> TaskStream:
        """Tasks from a Parquet file of ours or of others; see ``from_dataset``.

        The name is that of the stream that was written, or the file's. Raises ``InputError`` or ``InvalidTask`` that
        names the file and the row.
        """
        found, tasks = tables.read_parquet(Path(path), columns, name)
        return cls(found, tuple(tasks))

    @classmethod
    def from_csv(
        cls, path: str | Path, *, columns: Mapping[str, str] | None = None, name: str | None = None
    ) -> TaskStream:
        """Tasks from a CSV file in UTF-8, a row each, below a row with the columns' names; see ``from_dataset``.

        Cells are separated by commas, semicolons or tabs, whichever the first row has most of; an empty one is as if it
        were not there. Without ``columns``, one called ``answer`` is the right answer of a question
        (``env_args.answer``). Names of columns are taken without regard to the space around them, and to case where
        only one can be meant. Raises ``InputError`` or ``InvalidTask`` that names the file and the row.
        """
        found, tasks = tables.read_csv(Path(path), columns, name)
        return cls(found, tuple(tasks))

    @classmethod
    def from_dataset(
        cls, dataset: datasets.Dataset, *, columns: Mapping[str, str] | None = None, name: str | None = None
    ) -> TaskStream:
        """Tasks from a dataset, one of each row, in order. Nothing is downloaded.

        Without ``columns`` its columns are the fields of ``Task``. A dataset of others says which column holds what,
        and the rest is not read: ``columns={"instruction": "question", "env_args.answer": "final_answer"}``.
        ``env_args`` is an object, or one as JSON text. A number in a text field is taken as text, and a cell without a
        value as the field's default. ``id`` defaults to the name and a digest of what is to be done; ``name`` to that
        of the stream or dataset that it comes from. Raises ``InputError`` or ``InvalidTask`` that names the row.
        """
        name = name or getattr(getattr(dataset, "info", None), "dataset_name", None) or "dataset"
        return cls(name, tuple(tables.from_dataset(dataset, columns, name)))

    def to_jsonl(self, path: str | Path) -> None:
        """Write one JSON object a line; the file is replaced whole or not at all. It holds no stream's name."""
        jsonl.write(self.tasks, Path(path))

    def to_parquet(self, path: str | Path) -> None:
        """Write the columns of ``to_dataset``; the file is replaced whole or not at all."""
        tables.write_parquet(self.tasks, self.name, Path(path))

    def to_dataset(self) -> datasets.Dataset:
        """A ``datasets.Dataset`` with a row for each task: strings all, ``env_args`` as JSON text."""
        return tables.to_dataset(self.tasks, self.name)

    def permuted(self, seed: int) -> TaskStream:
        """The tasks in an order drawn from ``seed`` and their ids, whatever order they had.

        Two tasks keep their order when others come or go, so that a task left out changes nothing for the rest.
        """
        drawn = sorted(self.tasks, key=lambda task: hashlib.sha256(f"{seed}\n{task.id}".encode()).digest())
        return TaskStream(f"{self.name}/perm{seed}", tuple(drawn))

    def grouped(self) -> TaskStream:
        """The tasks of each template together, in the order in which the templates come first; others one by one."""
        first: dict[str, int] = {}
        places = [
            position if task.template is None else first.setdefault(task.template, position)
            for position, task in enumerate(self.tasks)
        ]
        order = sorted(range(len(self)), key=places.__getitem__)
        return TaskStream(f"{self.name}/grouped", tuple(self.tasks[position] for position in order))

    def reversed(self) -> TaskStream:
        """The last task first."""
        return TaskStream(f"{self.name}/reversed", self.tasks[::-1])

    def window(self, start: int, size: int) -> TaskStream:
        """The ``size`` tasks from position ``start`` on, fewer at the end. Raises ``InputError`` where none are."""
        if not 0 <= start < len(self) or size < 1:
            raise InputError(
                f"{self.name}: no window of {size} from {start} on; expected a size of at least 1 and a start below"
                f" {len(self)}, the number of tasks"
            )
        tasks = self.tasks[start : start + size]
        return TaskStream(f"{self.name}[{start}:{start + len(tasks)}]", tasks)

    def windows(self, size: int, step: int | None = None) -> list[TaskStream]:
        """Windows at every ``step`` tasks, by default end to end, up to the first that reaches the end of the stream.

        The last may be shorter than ``size``. With ``step`` above ``size``, the tasks between are left out.
        """
        step = size if step is None else step
        if step < 1:
            raise InputError(f"{self.name}: windows at every {step} tasks; expected a step of at least 1")
        found: list[TaskStream] = []
        for start in range(0, len(self), step):
            found.append(self.window(start, size))
            if start + size >= len(self):
                break
        return found


def in_order(name: str, *, seed: int, split: Split, templates: Sequence[str] | None) -> Iterator[Task]:
    """The tasks of a named stream, made as they are asked for. Raises, at once, what ``TaskStream.named`` does."""
    family_name, preset = PRESETS.get(name, (name, None))
    if name not in stream_names():
        if isfile(name):
            raise InputError(
                f"{name!r} is a file whose ending is none of .jsonl, .csv, .parquet; rename it to that of what it"
                " holds, one task a line or a row"
            )
        known = f"{', '.join(stream_names())}, or a file of tasks: .jsonl, .csv, .parquet"
        raise InputError(f"unknown stream {name!r}; known: {known}")
    family = environment_family(family_name)
    family.check()
    kinds = preset or family.templates() if templates is None else templates
    return family.tasks(seed=seed, templates=split_templates(kinds, split, folds=folds_of(family_name)))


def _check_number(n: int | object | None) -> None:
    number = whole_number(n)
    if n is not None and (number is None or number < 0):
        raise InputError(f"n = {str(n)[:40]!r}: expected a number of tasks, 0 or more")
