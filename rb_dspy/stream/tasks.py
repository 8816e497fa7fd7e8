"""Ordered tasks: named streams of the installed environments, and files of tasks."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pydantic

from rb_dspy.config import Split
from rb_dspy.environments.reasoning_gym import SMALL_MODEL_TEMPLATES
from rb_dspy.errors import InputError, InvalidTask, RBError
from rb_dspy.plugins import environment_family, environment_names
from rb_dspy.schema import Task

SHARES: dict[str, float] = {"compile": 0.3, "dev": 0.15, "stream": 0.35, "held-out": 0.2}
"""How many of a family's templates each split gets."""

PRESETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reasoning-gym-small": ("reasoning-gym", SMALL_MODEL_TEMPLATES),
}
"""Stream name -> environment family and templates; every family's own name is a stream of all its templates."""


def stream_names() -> list[str]:
    """Names that ``TaskStream.named`` takes."""
    return sorted([*environment_names(), *PRESETS])


@dataclass(frozen=True)
class TaskStream:
    """Tasks in a fixed order, under a name. Iterable; ``len`` is the number of tasks."""

    name: str
    tasks: tuple[Task, ...]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

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

        Splits share no template. Deterministic for name, seed, split and templates. Raises ``InputError`` for a name or
        template that does not exist, ``MissingDependency`` where the environment cannot run here.
        """
        family_name, preset = PRESETS.get(name, (name, None))
        if name not in stream_names():
            raise InputError(f"unknown stream {name!r}; known: {', '.join(stream_names())}, or a .jsonl file of tasks")
        family = environment_family(family_name)
        family.check()
        chosen = split_templates(templates or preset or family.templates(), split)
        fresh = (task for task in family.tasks(seed=seed, templates=chosen) if task.id not in skip)
        return cls(name, tuple(islice(fresh, n)))

    @classmethod
    def from_jsonl(cls, path: str | Path, *, n: int | None = None, skip: Collection[str] = ()) -> TaskStream:
        """Tasks from JSON Lines: one object a line with at least ``instruction``; ``id`` defaults to the line's number.

        Raises ``InputError`` or ``InvalidTask`` that names the file and the line.
        """
        path = Path(path)
        tasks: list[Task] = []
        for number, line in _lines(path):
            try:
                fields = json.loads(line)
                if not isinstance(fields, dict):
                    raise InputError(f"{path}:{number}: expected a JSON object with 'instruction'")
                tasks.append(Task.model_validate({"id": f"{path.stem}/{number}", **fields}))
            except json.JSONDecodeError as exc:
                raise InputError(f"{path}:{number}: not JSON: {exc.msg}") from None
            except InvalidTask as exc:
                raise InvalidTask(f"{path}:{number}: {exc}") from None
            except pydantic.ValidationError as exc:
                first = exc.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise InvalidTask(f"{path}:{number}: {where}: {first['msg'].lower()}") from None
        if not tasks:
            raise InputError(f"{path}: holds no task; expected one JSON object a line with 'instruction'")
        task_id, times = Counter(task.id for task in tasks).most_common(1)[0]
        if times > 1:
            raise InputError(f"{path}: the task id {task_id!r} stands {times} times; ids must differ")
        fresh = [task for task in tasks if task.id not in skip]
        return cls(path.stem, tuple(fresh[:n]))


def split_templates(templates: Sequence[str], split: Split, *, shares: dict[str, float] = SHARES) -> list[str]:
    """The templates of ``split``, in their own order; the splits are disjoint and together give all.

    Drawn once with a fixed seed, so a template stays in its split across runs and machines.
    """
    if split == "all":
        return list(templates)
    drawn = sorted(templates)
    random.Random("rb_dspy template split").shuffle(drawn)
    start = 0.0
    for name, share in shares.items():
        end = start + share * len(drawn)
        if name == split:
            chosen = set(drawn[round(start) : round(end)])
            return [template for template in templates if template in chosen]
        start = end
    raise InputError(f"unknown split {split!r}; known: all, {', '.join(shares)}")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected JSON Lines, one task a line") from None
    except UnicodeDecodeError as exc:
        raise InputError(f"{path}: not UTF-8 text ({exc.reason} at byte {exc.start}); save it as UTF-8") from None
    except OSError as exc:
        raise RBError(f"{path}: cannot be read: {exc.strerror}") from None
