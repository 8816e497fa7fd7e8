"""A folder goes on with the same judge, reranker and environments, and with no others, in whatever process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import signatures
from rb_dspy.backbones import Backbones
from rb_dspy.compile.parts import OwnPart, part
from rb_dspy.compile.result import Compiled
from rb_dspy.errors import InputError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Retrieved, Task, Trajectory, Verdict
from rb_dspy.steps import Judge
from rb_dspy.testing import Lock, Prompt, Reply, scripted_lm
from tests.compile.school import compiled, environments
from tests.compile.teacher import pupil

_ROOT = Path(__file__).parents[2]


def lenient(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(label="success", reasons="always")


def strict(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(label="failure", reasons="always")


class First:
    """Shows the first few."""

    def __init__(self, few: int) -> None:
        self.few = few

    def __call__(self, query: str, found: Sequence[Retrieved]) -> Sequence[Retrieved]:
        return found[: self.few]


def opened(world: str, task: Task, rollout: str) -> Lock:
    return Lock.make(task, rollout)


def run(folder: Path, *, script: Callable[[Prompt], Reply] = pupil, **given: Any) -> Compiled:
    parts = {"environments": environments, **given}
    program = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), **parts)
    return compiled(program=MaTTS(program, k=2), optimizer="bootstrap", stage="select", budget=60, folder=folder)


def nobody(prompt: Prompt) -> Reply:
    raise AssertionError(prompt)


_PARTS: list[tuple[str, Any, Any]] = [
    ("judge", lenient, strict),
    ("judge", None, lenient),
    ("reranker", First(1), First(2)),
    ("reranker", None, First(1)),
    ("environments", partial(opened, "one"), partial(opened, "other")),
    ("environments", lambda task, rollout: Lock.make(task, "a"), lambda task, rollout: Lock.make(task, "b")),
]


@pytest.mark.stress
@pytest.mark.parametrize(("what", "one", "other"), _PARTS)
def test_a_folder_of_another_part_is_refused_and_of_the_same_one_goes_on(
    tmp_path: Path, what: str, one: Any, other: Any
) -> None:
    made = run(tmp_path, **{what: one})
    with pytest.raises(InputError, match=f"holds another compile, with other .*{what}") as caught:
        run(tmp_path, script=nobody, **{what: other})
    assert "\n" not in str(caught.value)
    again = run(tmp_path, script=nobody, **{what: one})
    assert (made.found_done, again.found_done) == (False, True)


class Remote:
    """A judge that holds what nobody can look into."""

    def __init__(self) -> None:
        self.stream = iter_forever()

    def __call__(self, task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(label=next(self.stream), reasons="as it comes")


def iter_forever() -> Iterator[Any]:
    while True:
        yield "success"


def test_what_nobody_can_tell_apart_is_refused_only_where_there_is_something_already(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not run(tmp_path, judge=Remote()).found_done
    assert "nobody can tell its judge from another, as a generator does not show what it holds" in caplog.text
    with pytest.raises(InputError) as caught:
        run(tmp_path, script=nobody, judge=Remote())
    assert str(caught.value) == (
        f"{tmp_path}: holds a compile, and nobody can tell whether its judge was this one: a generator does not show"
        " what it holds; give one that stands in a module under a name of its own (def or class), or another folder"
    )


_SCRIPT = """
import os, sys, threading
from functools import partial
from rb_dspy import Backbones, MaTTS, ReasoningBank
from rb_dspy.schema import Verdict
from rb_dspy.testing import Lock, scripted_lm
from tests.compile.teacher import pupil
from tests.compile.school import compiled

asked, last = [], int(sys.argv[2])

def script(prompt):
    asked.append(1)
    if len(asked) == last:
        os._exit(9)
    return pupil(prompt)

def made(words):
    def judge(task, trajectory):
        won = any(word in step.observation for step in trajectory.steps for word in words)
        return Verdict(label="success" if won else "failure", reasons="by its words")
    return judge

class Few:
    def __init__(self, few):
        self.few, self.lock, self.kinds = few, threading.Lock(), {"a", "b", "c", "d", "e"}
    def __call__(self, query, found):
        return found[:self.few]

program = ReasoningBank(
    backbones=Backbones(agent=scripted_lm(script)),
    environments=partial(lambda world, task, rollout: Lock.make(task, rollout), "WORLD"),
    judge=made({"opens", "springs"}),
    reranker=Few(2),
)
compiled(program=MaTTS(program, k=2), optimizer="bootstrap", stage="select", budget=60, folder=sys.argv[1])
print("asked", len(asked))
"""


@pytest.mark.stress
def test_what_has_no_name_is_known_again_in_another_process_and_in_another_place_of_its_file(tmp_path: Path) -> None:
    def process(text: str, last: int) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        environment.pop("PYTHONHASHSEED", None)
        command = [sys.executable, str(script), str(tmp_path / "here"), str(last)]
        return subprocess.run(command, cwd=_ROOT, env=environment, check=False, capture_output=True, text=True)

    stopped = process(_SCRIPT, 30)
    assert stopped.returncode == 9, stopped.stderr
    other = process(_SCRIPT.replace("WORLD", "OTHER"), 0)
    assert "holds another compile, with other environments" in other.stderr
    moved = process(f"# a comment\n\n{_SCRIPT}", 0)
    assert moved.returncode == 0, moved.stderr
    asked = re.search(r"asked (\d+)", moved.stdout)
    whole = process(_SCRIPT.replace("sys.argv[1]", "None"), 0)
    in_all = re.search(r"asked (\d+)", whole.stdout)
    assert asked
    assert in_all
    assert int(asked[1]) + 29 == int(in_all[1])


def closure(number: int) -> Callable[[], int]:
    return lambda: number


def local(number: int) -> Any:
    class Local:
        def look(self) -> int:
            return 1 if number else 2

    return Local()


@dataclass(frozen=True)
class Ranker:
    weights: tuple[float, ...]
    api_key: str = ""


class Slotted:
    __slots__ = ("__inner",)

    def __init__(self, inner: int) -> None:
        self.__inner = inner


class Counted(dict[str, int]):
    """A dict with another name."""


class Thorough(Judge):
    """A judge of somebody's own."""

    def __init__(self, rounds: int, instructions: str = "") -> None:
        super().__init__()
        self.rounds = rounds
        self.inner = dspy.Predict(signatures.Judge.with_instructions(instructions or "Judge."))


class Reasons(dspy.Module):
    """A judge made of dspy's own modules."""

    def __init__(self, instructions: str) -> None:
        super().__init__()
        self.think = dspy.ChainOfThought(dspy.Signature("task, trajectory -> label", instructions))
        self.look = dspy.ReAct("task -> answer", tools=[lenient])


class Below(Lock):
    """Has its factory from another class."""


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (closure, 1, 2),
        (local, 1, 0),
        (lambda many: Ranker((many,)), 0.5, 0.6),
        (Slotted, 1, 2),
        (lambda n: Counted(a=n), 1, 2),
        (Thorough, 1, 2),
        (lambda text: Thorough(1, text), "Judge well.", "Judge ill."),
        (Reasons, "Judge well.", "Judge ill."),
        (lambda n: partial(opened, world=n), "a", "b"),
        (lambda name: scripted_lm(pupil, model=name), "a/b", "a/c"),
        (lambda n: First(n).__call__, 1, 2),
        (lambda kind: kind.make, Lock, Below),
        (lambda n: cache(closure(n)), 1, 2),
        (lambda text: re.compile(text).search, "a" * 300 + "b", "a" * 300 + "c"),
    ],
)
def test_values_tell_and_nothing_else_does(make: Callable[[Any], Any], one: Any, other: Any) -> None:
    first, again, second = part(make(one)), part(make(one)), part(make(other))
    assert first.name == again.name != second.name
    assert (first.untold, second.untold) == ("", "")


@cache
def remembered() -> None: ...


def test_what_stands_in_a_module_is_told_by_its_name_alone() -> None:
    assert part(lenient).name == f"{__name__}.lenient"
    assert part(Lock.make).name == f"{Lock.__module__}.Lock.make"
    assert part(First).name == f"{__name__}.First"
    assert part(remembered).name == f"{__name__}.remembered"


def test_no_key_counts() -> None:
    assert part(Ranker((1.0,), api_key="one")).name == part(Ranker((1.0,), api_key="other")).name


def test_what_holds_itself_is_told() -> None:
    def ring(size: int) -> First:
        first = First(size)
        first.again = {"a": [first]}  # type: ignore[attr-defined]
        return first

    assert part(ring(1)) == part(ring(1)) != part(ring(2))


class Proxy:
    """Hands on what it does not know, and nobody is there."""

    def __init__(self, there: int = 0) -> None:
        self.there = there

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Locked:
    """Does not let anybody look at what it has a place for."""

    __slots__ = ("open",)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Locked
        raise RuntimeError(name)


def test_who_raises_whatever_he_is_asked_breaks_no_compile() -> None:
    assert part(Proxy()).name.startswith(f"{__name__}.Proxy")
    assert part(Locked()) == OwnPart(part(Locked()).name, "a Locked does not show what it holds")


def test_what_cannot_be_told_is_said() -> None:
    with open(os.devnull) as file:
        for thing in (file, iter_forever(), First(iter_forever())):  # type: ignore[arg-type]
            assert "does not show what it holds" in part(thing).untold
    deep: Any = "end"
    for _ in range(100):
        deep = [deep]
    assert part(partial(strict, deep)).untold == "a list holds too much to look at"
