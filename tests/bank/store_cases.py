"""Short ways to make what a store is given, as the bank would make it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rb_dspy.bank import pending
from rb_dspy.bank.admission import new_item, overall
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import NewExperience, NewItem
from rb_dspy.bank.pending import Row
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.bank.stored import stored
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Experience, Label, MemoryDraft, Polarity, Step, Task, Trajectory, Verdict

SCOPE = "s"
DIMENSION = 8


def a_store(path: Path) -> SqliteStore:
    """A file with one scope."""
    store = SqliteStore(path)
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    return store


def vector(text: str) -> Vectors:
    """A unit vector that stands for a text."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    row: Vectors = np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)
    return row / np.float32(np.linalg.norm(row))


def embed(texts: Sequence[str]) -> Vectors:
    """Unit vectors, ``(len(texts), DIMENSION)``."""
    return np.stack([vector(text) for text in texts])


def lesson(text: str, scope: str = SCOPE, id: str | None = None) -> NewItem:
    return new_item(scope, MemoryDraft(title=f"On {text}", description=f"when {text}", content=f"Do {text}."), id)


def new(
    name: str,
    *lessons: str,
    task: str = "t",
    scope: str = SCOPE,
    label: Label = "success",
    polarity: Polarity | None = None,
    shown: Sequence[str] = (),
    run_id: str = "r",
    origin: str = "",
    note: str = "",
    template: str | None = None,
) -> NewExperience:
    """An experience ``name`` that gave an item for each of ``lessons``."""
    verdicts = (Verdict(label=label, reasons=f"judged {name}", confidence=0.5),)
    items = tuple(lesson(text, scope) for text in lessons)
    step = Step(thought="hm", action=f"act {name}", observation="seen")
    return NewExperience(
        id=name,
        task=Task(id=task, instruction=f"solve {task}", env_args={"deep": [1, None]}, template=template),
        trajectories=(Trajectory(task_id=task, rollout_id=name, steps=(step,), answer="42"),),
        verdicts=verdicts,
        items=items,
        polarity=polarity or ("success" if label == "success" else "failure"),
        label=overall(verdicts),
        run_id=run_id,
        distiller="lm",
        note=note,
        origin=origin,
        created_at="2026-01-01T00:00:00+00:00",
        shown=tuple(shown),
        vector=vector(f"solve {task}") if items else None,
        item_vectors=tuple(vector(item.content) for item in items),
    )


def append(
    store: BankStore, scope: str, batch: Sequence[NewExperience], *, refuse_removed: bool = False
) -> list[Experience]:
    """Place experiences; what is stored of them, in order."""
    placed = store.place(scope, batch, refuse_removed=refuse_removed)
    return [stored(new, scope, where) for new, where in zip(batch, placed, strict=True)]


def give(store: BankStore, name: str, *lessons: str, **given: object) -> Experience:
    """Append one experience."""
    scope = given.get("scope", SCOPE)
    assert isinstance(scope, str)
    (made,) = append(store, scope, [new(name, *lessons, **given)])  # type: ignore[arg-type]
    return made


def rollout(task: str, *, run_id: str = "r", shown: Sequence[str] = ()) -> Row:
    """A rollout that waits to be learned from."""
    made = new("0", task=task)
    return pending.row(SCOPE, made.task, made.trajectories[0], run_id=run_id, shown=shown)


def pending_id(row: Row) -> str:
    """The id of the experience that a rollout alone becomes."""
    return pending.group_id(SCOPE, [row.key])


def waiting(store: BankStore) -> list[str]:
    """The tasks of the rollouts that wait to be learned from, in order."""
    return [row.task.id for row in store.pending(SCOPE)]


def contents(store: BankStore, at: int | None = None) -> list[str]:
    """The items' contents, in order."""
    return [item.content for item in store.items(SCOPE, at)]


def names(store: BankStore, at: int | None = None) -> list[str]:
    """The experiences' ids, in order."""
    return [experience.id for experience in store.experiences(SCOPE, after=0, limit=1000, at=at)]
