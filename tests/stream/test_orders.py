"""Other orders of a stream, windows of it, and its split into compile, dev and held-out streams."""

from __future__ import annotations

import copy
import itertools
import random
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from rb_dspy import Task, TaskStream
from rb_dspy.errors import InputError
from rb_dspy.stream import COMPILE_SHARES, Streams, split_streams
from rb_dspy.stream.alike import ALIKE, similarity

_WORDS = [f"word{n}" for n in range(500)]


def _task(n: int, template: str | None = None, instruction: str | None = None) -> Task:
    """A task that shares no words with another, but where it is given them."""
    own = " ".join(_WORDS[9 * n : 9 * n + 9])
    return Task(id=f"t{n}", instruction=instruction or own, template=template)


def _stream(*templates: str | None) -> TaskStream:
    return TaskStream("x", tuple(_task(n, template) for n, template in enumerate(templates)))


def _ids(stream: TaskStream) -> list[str]:
    return [task.id for task in stream]


def _parts(streams: Streams) -> tuple[TaskStream, TaskStream, TaskStream]:
    return streams.compile, streams.dev, streams.held_out


def test_a_permutation_is_that_of_its_seed() -> None:
    stream = _stream(*[None] * 30)
    one, other = stream.permuted(3), stream.permuted(4)
    assert one.name == "x/perm3"
    assert sorted(_ids(one)) == sorted(_ids(stream))
    assert one.tasks not in (stream.tasks, other.tasks)
    assert stream.reversed().permuted(3).tasks == one.tasks
    assert one.digest == "805e6ba93799d9d255ba"


def test_a_permutation_keeps_the_order_of_the_rest_when_a_task_is_left_out() -> None:
    stream = _stream(*[None] * 30)
    fewer = TaskStream("x", stream.tasks[:7] + stream.tasks[8:])
    assert _ids(fewer.permuted(3)) == [name for name in _ids(stream.permuted(3)) if name != "t7"]


def test_permutations_put_each_task_everywhere() -> None:
    stream = _stream(*[None] * 4)
    found = Counter(tuple(_ids(stream.permuted(seed))) for seed in range(2400))
    assert len(found) == 24
    assert 50 < min(found.values()) <= max(found.values()) < 150  # 100 expected, 10 the standard deviation


def test_grouped_and_reversed() -> None:
    stream = _stream("b", None, "a", "b", "", None, "a", "")
    grouped, back = stream.grouped(), stream.reversed()
    assert (grouped.name, back.name) == ("x/grouped", "x/reversed")
    assert _ids(grouped) == ["t0", "t3", "t1", "t2", "t6", "t4", "t7", "t5"]
    assert _ids(back) == [f"t{n}" for n in range(7, -1, -1)]


def test_windows_say_where_they_are() -> None:
    stream = _stream(*[None] * 7)
    assert [window.name for window in stream.windows(3)] == ["x[0:3]", "x[3:6]", "x[6:7]"]
    assert [window.name for window in stream.windows(3, step=2)] == ["x[0:3]", "x[2:5]", "x[4:7]"]
    assert [window.name for window in stream.windows(2, step=3)] == ["x[0:2]", "x[3:5]", "x[6:7]"]
    assert [window.name for window in stream.windows(9)] == ["x[0:7]"]
    assert _ids(stream.window(2, 3)) == ["t2", "t3", "t4"]
    assert stream.permuted(1).window(0, 2).name == "x/perm1[0:2]"


@pytest.mark.parametrize(("start", "size"), [(7, 1), (-1, 2), (0, 0), (0, -3)])
def test_windows_without_tasks_are_refused(start: int, size: int) -> None:
    stream = _stream(*[None] * 7)
    with pytest.raises(InputError, match=f"no window of {size} from {start} on"):
        stream.window(start, size)
    if size < 1:
        with pytest.raises(InputError, match="no window"):
            stream.windows(size, step=2)
        with pytest.raises(InputError, match=f"windows at every {size} tasks"):
            stream.windows(3, step=size)


_templates = st.none() | st.sampled_from(["a", "b", "c", "d", "e"])
_instructions = st.lists(st.sampled_from(["go", "to", "the", "red", "door"]), min_size=1, max_size=8).map(" ".join)


@given(
    tasks=st.lists(st.tuples(_templates, _instructions), max_size=25),
    seed=st.integers(),
    shares=st.fixed_dictionaries({name: st.floats(0.01, 10) for name in COMPILE_SHARES}),
    check=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_split_is_a_partition_with_nothing_alike_in_two_parts(
    tasks: list[tuple[str | None, str]], seed: int, shares: dict[str, float], check: bool
) -> None:
    stream = TaskStream("x", tuple(_task(n, *task) for n, task in enumerate(tasks)))
    try:
        streams = split_streams(stream, shares=shares, seed=seed, check=check)
    except InputError:
        together = {template or f"none {n}" for n, (template, _) in enumerate(tasks)}
        assert check or len(together) < 3
        return
    parts = _parts(streams)
    assert all(parts)
    assert sorted(_ids(stream)) == sorted(name for part in parts for name in _ids(part))
    for part in parts:
        assert _ids(part) == [name for name in _ids(stream) if name in _ids(part)]
    for one, other in itertools.combinations(parts, 2):
        assert not {task.template for task in one} & {task.template for task in other} - {None}
        if check:
            assert all(similarity(a, b) < ALIKE for a in one for b in other)
    if check:
        assert Streams(*parts) == streams
    shuffled = random.Random(seed).sample(stream.tasks, len(stream))
    again = split_streams(TaskStream("x", tuple(shuffled)), shares=shares, seed=seed, check=check)
    assert [set(_ids(part)) for part in _parts(again)] == [set(_ids(part)) for part in parts]


def test_shares_are_met_and_the_seed_draws() -> None:
    stream = _stream(*[f"kind {n % 20}" for n in range(40)])
    splits = [split_streams(stream, seed=seed) for seed in range(3)]
    assert [[len(part) for part in _parts(split)] for split in splits] == [[20, 8, 12]] * 3
    assert len({split.held_out.digest for split in splits}) == 3
    assert [part.name for part in _parts(splits[0])] == ["x/compile", "x/dev", "x/held_out"]
    other = split_streams(stream, shares={"compile": 1, "dev": 1, "held_out": 8})
    assert [len(part) for part in _parts(other)] == [4, 4, 32]
    uneven = _stream(*["big"] * 30, "b", "c")
    assert [len(part) for part in _parts(split_streams(uneven))] == [30, 1, 1]
    assert splits[0].compile.digest == "1f0153182c8cccc790f3"


def test_a_split_is_the_same_in_another_process() -> None:
    code = (
        "from rb_dspy import Task, TaskStream; from rb_dspy.stream import split_streams;"
        "tasks = tuple(Task(id=f't{n}', instruction=f'w{n} ' * 9, template=str(n % 7)) for n in range(30));"
        "print(split_streams(TaskStream('x', tasks)).held_out.digest)"
    )
    tasks = tuple(Task(id=f"t{n}", instruction=f"w{n} " * 9, template=str(n % 7)) for n in range(30))
    own = split_streams(TaskStream("x", tasks)).held_out.digest
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == own + "\n"


@pytest.mark.parametrize(
    "shares",
    [
        {"compile": 0.5, "dev": 0.5},
        {"compile": 1, "dev": 1, "held_out": 0},
        {"compile": 1, "dev": 1, "held_out": -1},
        {"compile": 1, "dev": 1, "held_out": float("nan")},
        {"compile": 1, "dev": 1, "held_out": float("inf")},
        {"compile": 1, "dev": 1, "held_out": 1, "test": 1},
    ],
)
def test_shares_that_make_no_split_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"expected a number above 0 for each of compile, dev, held_out"):
        split_streams(_stream("a", "b", "c"), shares=shares)


def test_too_few_kinds_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"x: 3 tasks, but 2 groups of.*add tasks of other templates") as caught:
        split_streams(_stream("a", "b", "a"))
    assert "check" not in str(caught.value)
    with pytest.raises(InputError, match=r"x: 0 tasks, but 0 group"):
        split_streams(_stream())
    same = "Find the shortest path from the first node to the last one in graph number"
    alike = TaskStream("x", tuple(_task(n, f"kind {n}", f"{same} {n}") for n in range(4)))
    with pytest.raises(InputError, match=r"x: 4 tasks, but 1 group of.*near-duplicates.*check=False"):
        split_streams(alike)
    assert all(_parts(split_streams(alike, check=False)))
    said = str(caught_of(alike))
    assert f"'t0' ('{same[:59]}…') and 't1' ('{same[:59]}…') have a similarity of 0.8" in said
    assert said.endswith(
        "expected at least 3, one for each split: add tasks that differ more, leave out of their texts what many of"
        " them say, or give check=False to keep only templates apart"
    )
    sums = TaskStream("x", tuple(_task(n, None, f"What is {n} + {n}?") for n in range(4)))
    said = str(caught_of(sums))
    assert "near-duplicates: 't0' ('What is 0 + 0?') and 't1' ('What is 1 + 1?') differ in numbers only;" in said
    assert "name the kind of each as its template" in said


def caught_of(stream: TaskStream) -> InputError:
    with pytest.raises(InputError) as caught:
        split_streams(stream)
    return caught.value


def test_streams_that_share_a_template_are_refused() -> None:
    a, b, c = (TaskStream("x", (_task(n, template),)) for n, template in enumerate(["door", "lock", "door"]))
    with pytest.raises(InputError, match=r"'t0' in compile and 't2' in held_out have the template 'door'") as caught:
        Streams(a, b, c)
    assert "\n" not in str(caught.value)
    assert Streams(a, b, c, check=False).held_out == c
    Streams(TaskStream("x", (*a.tasks, *c.tasks)), b, TaskStream("x", (_task(3),)))


def test_streams_with_near_duplicates_are_refused() -> None:
    told = "Jana has 27 puppies. Two thirds of them are Pomeranians, and a third of these are girls. How many girls?"
    again = told.replace("27", "54").replace("Jana", "Maria")
    a, b, c = (TaskStream("x", (_task(n, None, text),)) for n, text in enumerate((None, told, again)))
    with pytest.raises(InputError, match=r"'t1' in dev and 't2' in held_out are near-duplicates") as caught:
        Streams(compile=a, dev=b, held_out=c)
    assert "\n" not in str(caught.value)
    assert re.search(r"similarity 0\.[4-9]\d\)", str(caught.value))
    kept = Streams(a, b, c, check=False)
    assert copy.deepcopy(kept) == kept
    both = TaskStream("x", (*b.tasks, *c.tasks))
    Streams(a, both, TaskStream("x", (_task(3),)))


def test_the_families_can_be_split() -> None:
    for name, shares in (
        ("reasoning-gym", [0.5, 0.2, 0.3]),
        ("twc", [1 / 3, 1 / 3, 1 / 3]),  # as many of each fold, and a fold is not split
        ("cookingworld", [1 / 3, 1 / 3, 1 / 3]),
    ):
        stream = TaskStream.named(name, n=90)
        streams = split_streams(stream)
        sizes = [len(part) / len(stream) for part in _parts(streams)]
        assert sizes == pytest.approx(shares, abs=0.05)
        Streams(*_parts(streams))
        Streams(*(TaskStream.named(name, n=40, split=split) for split in ("compile", "dev", "held-out")))  # type: ignore[arg-type]


def test_who_names_no_templates_is_told_that_they_would_help() -> None:
    tasks = tuple(_task(n, None, f"What is {n} + {7 * n}?") for n in range(9))
    with pytest.raises(InputError, match=r"differ in numbers only.* name the kind of each as its template"):
        split_streams(TaskStream("sums", tasks))
