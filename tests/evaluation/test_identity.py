"""Names of code in the plan of an evaluation: equal for the same code and state in any process, else different."""

from __future__ import annotations

import functools
import itertools
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import Outcome, Verdict, evaluate
from rb_dspy.environments import make_environment
from rb_dspy.environments.named import environment_factory
from rb_dspy.errors import InputError
from rb_dspy.evaluation.identity import UNNAMED, identity, stable
from rb_dspy.testing import Lock, locks, scripted_program as program, toys


def scorer(text: str) -> float:
    return len(text) / 2


def other_scorer(text: str) -> float:
    return len(text) / 3


def desk(task: Any, scale: float = 1.0) -> float:
    return scorer(task) * scale


class Desk:
    """An environment factory with state."""

    limit = 3

    def __init__(self, level: object) -> None:
        self.level = level

    def __call__(self, task: Any, rollout_id: str) -> Any:
        return self.level

    def made(self, task: Any) -> Any:
        return task


class Step(dspy.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.write = dspy.Predict("task -> action")


class Sealed:
    """An object that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not this")


def closing(value: object) -> Any:
    return lambda task, rollout_id: value


def changed(source: str, **names: Any) -> Any:
    """The function ``desk`` of a notebook, which has no file."""
    space = {"__name__": "notebook", **names}
    exec(source, space)
    return space["desk"]


DIFFERENT: dict[str, list[Any]] = {
    "lambdas of one line": [lambda task: Verdict(label="success"), lambda task: Verdict(label="failure")],
    "what is closed over": [closing(1), closing(2), closing("1"), closing({"a": {1, 2}}), closing({"a": {1, 3}})],
    "defaults": [desk, changed("def desk(task, scale=2.0): return scorer(task) * scale", scorer=scorer)],
    "a helper": [
        changed("def desk(task): return scorer(task)", scorer=scorer),
        changed("def desk(task): return scorer(task)", scorer=other_scorer),
    ],
    "partials": [functools.partial(desk, scale=2), functools.partial(desk, scale=3), desk],
    "state": [Desk(1), Desk(2), Desk([1, {"a": None}]), Desk(random.Random(1)), Desk(random.Random(2))],
    "iterators": [closing(itertools.count(1)), closing(itertools.count(2)), closing(iter([1, 2]))],
    "bound methods": [Desk(1).made, Desk(2).made, Desk(1).__call__],
    "steps": [Step(1), Step(2)],
    "named environments": [environment_factory(f"{__name__}:{name}") for name in ("Lock", "toys")],
    "classes": [Desk, Lock, type("Desk", (Desk,), {"limit": 4, "__module__": __name__, "__qualname__": "Desk"})],
    "ours": [make_environment, toys],
}


@pytest.mark.parametrize("values", DIFFERENT.values(), ids=list(DIFFERENT))
def test_code_and_state_tell_values_apart(values: list[Any]) -> None:
    names = [identity(value) for value in values]
    assert len(set(names)) == len(names)
    assert [identity(value) for value in values] == names, "nothing is used up"
    assert not [name for name in names if name.startswith(UNNAMED)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closing({"a": 1, "b": {2, 3}}), closing({"b": {3, 2}, "a": 1})),
        (Desk([1]), Desk([1])),
        (Step(1), Step(1)),
        (functools.partial(desk, scale=2), functools.partial(desk, scale=2)),
    ],
)
def test_equal_code_and_state_have_one_name(one: Any, other: Any) -> None:
    assert identity(one) == identity(other)


def test_a_name_is_the_same_in_another_process() -> None:
    script = (
        "from tests.evaluation import test_identity as t; import json;"
        "print(json.dumps([t.identity(v) for vs in t.DIFFERENT.values() for v in vs]))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(Path.home())},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_what_has_no_name_is_never_taken_for_another(tmp_path: Path) -> None:
    connections = [sqlite3.connect(":memory:") for _ in range(2)]
    one, other = (Desk(each) for each in connections)
    assert identity(one).startswith(UNNAMED)
    assert identity(one) != identity(other)
    assert "Connection" in identity(one)
    assert identity(closing(Sealed())).startswith(UNNAMED)
    assert stable({"a": identity(one)}) == stable({"a": identity(other)}), "the folder of a command does not move"
    held = [lock_with(each) for each in connections]
    tasks = locks(2)
    made = [program() for _ in held]
    for each, environments in zip(made, held, strict=True):
        each.environments = environments
    evaluate(["none", "bank"], tasks, program=made[0], orders=1, folder=tmp_path)
    evaluate(["none", "bank"], tasks, program=made[0], orders=1, folder=tmp_path)
    with pytest.raises(InputError, match=r"environments is .*Connection.*attribute id"):
        evaluate(["none", "bank"], tasks, program=made[1], orders=1, folder=tmp_path)
    for connection in connections:
        connection.close()
    one.id, other.id = "desk one", "desk two"  # type: ignore[attr-defined]
    assert not identity(one).startswith(UNNAMED)
    assert identity(one) != identity(other)


def lock_with(connection: sqlite3.Connection) -> Any:
    return lambda task, rollout_id: (connection, toys(task, rollout_id))[1]


class Opened(Lock):
    """A lock that any code opens."""

    def outcome(self) -> Outcome:
        return Outcome(reward=1.0, success=True)


@pytest.mark.parametrize("part", ["environments", "judge", "reranker", "retrieve", "program"])
def test_another_part_in_the_same_folder_is_another_evaluation(tmp_path: Path, part: str) -> None:
    first, second = program(), program()
    if part == "environments":
        second.environments = lambda task, rollout_id: Opened("1")
    elif part == "judge":
        first.judge, second.judge = DIFFERENT["lambdas of one line"]
    elif part == "reranker":
        second.retrieve.reranker = lambda query, found: found[::-1]
    elif part == "retrieve":
        second.retrieve = Step(1)
    else:
        second.__class__ = type("Mine", (type(second),), {"__module__": __name__})
    evaluate(["none", "bank"], locks(2), program=first, orders=1, folder=tmp_path)
    with pytest.raises(InputError, match=rf"has another evaluation: arms\.none\..*{part}.* was .* is "):
        evaluate(["none", "bank"], locks(2), program=second, orders=1, folder=tmp_path)
