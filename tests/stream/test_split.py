"""Splits that share no template, no fold and nearly no text."""

from __future__ import annotations

import hashlib
import itertools
import json
import random

import pytest
from hypothesis import given, settings, strategies as st

from rb_dspy import Task, TaskStream, split_streams
from rb_dspy.errors import InputError
from rb_dspy.plugins import environment_family
from rb_dspy.stream import COMPILE_SHARES, PRESETS, SHARES, Streams, near_duplicates, split_templates

WORDS = [f"word{n}" for n in range(500)]
FOLDS = {"train": "compile", "dev": "dev", "test": "held_out"}


def task(n: int, template: str | None = None, instruction: str = "", env: str = "question") -> Task:
    """One that shares no words with another, unless its instruction is given."""
    return Task(id=f"t{n}", instruction=instruction or " ".join(WORDS[9 * n : 9 * n + 9]), template=template, env=env)


def stream(*templates: str | None) -> TaskStream:
    return TaskStream("x", [task(n, template) for n, template in enumerate(templates)])


def game(n: int, fold: str, variant: str = "1-location-2-objects") -> Task:
    """A task of a family with folds; what its template is called says the fold."""
    return task(n, f"twc/{variant}/{fold}", env="twc")


def ids(tasks: TaskStream) -> list[str]:
    return [task.id for task in tasks]


def parts(streams: Streams) -> tuple[TaskStream, TaskStream, TaskStream]:
    return streams.compile, streams.dev, streams.held_out


def pairs(*instructions: str) -> list[tuple[int, int]]:
    return list(near_duplicates([task(n, None, text) for n, text in enumerate(instructions)]))


# Near-duplicates


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "Zoe's shelf is half as long as Tom's shelf. Ann's shelf is a third as long as Zoe's. If Ann's is 5 feet"
            " long, how long is Tom's shelf?",
            "Tom's shelf is 30 feet long. Zoe's shelf is half as long as Tom's shelf. Ann's shelf is a third as long"
            " as Zoe's. How long is Ann's shelf?",
        ),
        ("Translate to French: the cat sat on the mat.", "TRANSLATE to   French: The cat sat on the rug!"),
        ("请把下面的句子翻译成英文：我喜欢猫。", "请把下面的句子翻译成英文：我喜欢狗。"),
        ("Count it", "count IT"),
        ("Ｆｉｎｄ the file no. ②", "find the file no. 2"),
        ("?", "?"),
    ],
)
def test_the_same_thing_asked_again_is_a_near_duplicate(one: str, other: str) -> None:
    assert pairs(one, "Something quite different is asked here.", other) == [(0, 2)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Write a function that sorts a list of words by length.", "Write a function that adds up a list of prices."),
        (
            "A train leaves at nine and takes an hour. When is it there?",
            "A baker sells nine loaves. How many are left?",
        ),
        ("the dog bit the man", "the man bit the dog"),
        ("What is 12 * 7?", "What is 12 + 7 - 3?"),
        ("([{", "}])"),
        ("请把下面的句子翻译成英文。", "他昨天在图书馆里看了一本书。"),
    ],
)
def test_other_things_in_some_of_the_same_words_are_not(one: str, other: str) -> None:
    assert pairs(one, other) == []


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=9).map(" ".join), max_size=10))
@settings(max_examples=100)
def test_no_pair_is_missed_and_none_is_made_up(texts: list[str]) -> None:
    def rows(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        return {tuple(words[start : start + 3]) for start in range(max(1, len(words) - 2))}

    expected = [
        (one, other)
        for one, other in itertools.combinations(range(len(texts)), 2)
        if len(rows(texts[one]) & rows(texts[other])) >= 0.4 * len(rows(texts[one]) | rows(texts[other]))
    ]
    assert sorted(pairs(*texts)) == expected


def test_worlds_that_look_the_same_are_told_apart_by_their_arguments() -> None:
    def world(name: str, seed: int, env: str = "cookingworld") -> Task:
        return Task(id=name, instruction="Cook the meal in the cookbook.", env=env, env_args={"seed": seed})

    assert list(near_duplicates([world("a", 1), world("b", 2), world("c", 1), world("d", 1, "twc")])) == [(0, 2)]
    assert list(near_duplicates([world("e", 1, "question"), world("f", 2, "question")])) == [(0, 1)]
    assert list(near_duplicates([world("g", 1, "of-a-factory"), world("h", 2, "of-a-factory")])) == [(0, 1)]


# Splits

templates = st.none() | st.sampled_from(["a", "b", "c", "d", "e"])
instructions = st.lists(st.sampled_from(["go", "to", "the", "red", "door"]), min_size=1, max_size=8).map(" ".join)


@given(
    tasks=st.lists(st.tuples(templates, instructions), max_size=20),
    seed=st.integers(),
    shares=st.fixed_dictionaries({name: st.floats(0.01, 10) for name in COMPILE_SHARES}),
    check=st.booleans(),
)
@settings(max_examples=60)
def test_a_split_is_a_partition_with_nothing_alike_in_two_parts(
    tasks: list[tuple[str | None, str]], seed: int, shares: dict[str, float], check: bool
) -> None:
    whole = TaskStream("x", [task(n, *each) for n, each in enumerate(tasks)])
    try:
        streams = split_streams(whole, shares=shares, seed=seed, check=check)
    except InputError:
        assert check or len({template or n for n, (template, _) in enumerate(tasks)}) < 3
        return
    assert all(parts(streams))
    assert sorted(ids(whole)) == sorted(itertools.chain.from_iterable(map(ids, parts(streams))))
    for part in parts(streams):
        assert ids(part) == [name for name in ids(whole) if name in ids(part)], "in the order of the stream"
    for one, other in itertools.combinations(parts(streams), 2):
        assert not {task.template for task in one} & {task.template for task in other} - {None}
        if check:
            assert not [pair for pair in near_duplicates([*one, *other]) if pair[0] < len(one) <= pair[1]]
    if check:
        assert Streams(*parts(streams)) == streams
    shuffled = TaskStream("x", random.Random(seed).sample(whole.tasks, len(whole)))
    again = split_streams(shuffled, shares=shares, seed=seed, check=check)
    assert [set(ids(part)) for part in parts(again)] == [set(ids(part)) for part in parts(streams)]


def test_shares_are_met_and_the_seed_draws() -> None:
    whole = stream(*[f"kind {n % 20}" for n in range(40)])
    splits = [split_streams(whole, seed=seed) for seed in range(3)]
    assert [[len(part) for part in parts(split)] for split in splits] == [[16, 8, 16]] * 3
    assert len({split.held_out.digest for split in splits}) == 3
    assert [part.name for part in parts(splits[0])] == ["x/compile", "x/dev", "x/held_out"]
    assert splits[0].compile.digest == "38692957067c6536e8ac", "of every version and process"
    other = split_streams(whole, shares={"compile": 1, "dev": 1, "held_out": 8})
    assert [len(part) for part in parts(other)] == [4, 4, 32]
    assert [len(part) for part in parts(split_streams(stream(*["big"] * 30, "b", "c")))] == [30, 1, 1]


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), None])
def test_shares_that_make_no_split_are_refused(wrong: float | None) -> None:
    shares = {"compile": 1.0, "dev": 1.0} | ({} if wrong is None else {"held_out": wrong})
    with pytest.raises(InputError):
        split_streams(stream("a", "b", "c"), shares=shares)


def test_too_few_kinds_of_task_are_refused_in_one_line() -> None:
    same = "Find the shortest path from the first node to the last one in graph number"
    alike = TaskStream("x", [task(n, f"kind {n}", f"{same} {n}") for n in range(4)])
    for few in (stream(), stream("a", "b", "a"), alike):
        with pytest.raises(InputError) as caught:
            split_streams(few)
        assert "\n" not in str(caught.value)
    assert all(parts(split_streams(alike, check=False)))


def test_streams_that_share_a_template_or_a_text_are_refused_with_two_tasks_by_name() -> None:
    a, b, c = (TaskStream("x", [task(n, template)]) for n, template in enumerate(["door", "lock", "door"]))
    with pytest.raises(InputError, match=r"'t0' in compile and 't2' in held_out"):
        Streams(a, b, c)
    assert Streams(a, b, c, check=False).held_out == c
    Streams(TaskStream("x", [*a, *c]), b, TaskStream("x", [task(3)]))
    told = "Jana has 27 puppies. Two thirds of them are Pomeranians, and a third of these are girls. How many girls?"
    d, e = TaskStream("x", [task(4, None, told)]), TaskStream("x", [task(5, None, told.replace("27", "54"))])
    with pytest.raises(InputError, match=r"'t4' in dev and 't5' in held_out"):
        Streams(a, d, e)
    Streams(a, TaskStream("x", [*d, *e]), b)


# Folds


@given(st.lists(st.sampled_from(["train", "dev", "test", None]), max_size=10), st.integers(0, 9))
@settings(max_examples=40)
def test_a_fold_is_in_its_part_whatever_the_seed(folds: list[str | None], seed: int) -> None:
    whole = TaskStream("x", [game(n, fold) if fold else task(n) for n, fold in enumerate(folds)])
    if len(FOLDS.keys() - set(folds)) > folds.count(None):
        with pytest.raises(InputError):
            split_streams(whole, seed=seed)
        return
    streams = split_streams(whole, seed=seed)
    assert all(parts(streams))
    for part, tasks in zip(FOLDS.values(), parts(streams), strict=True):
        assert {FOLDS[each.template.rpartition("/")[2]] for each in tasks if each.template} <= {part}
    assert Streams(*parts(streams)) == streams


def test_streams_with_a_fold_in_two_of_them_are_refused_with_two_tasks_by_name() -> None:
    """Two templates of one fold may be about the same things."""
    one, other = [name for name in environment_family("twc").templates() if name.endswith("/train")][:2]
    a, b, c = (TaskStream("x", [task(n, name, env="twc")]) for n, name in enumerate((one, None, other)))
    with pytest.raises(InputError, match=r"'t0' in compile and 't2' in held_out"):
        Streams(a, b, c)
    Streams(a, b, c, check=False)
    Streams(TaskStream("x", [*a, *c]), b, TaskStream("x", [task(3)]))


def test_near_duplicates_of_two_folds_cannot_be_split() -> None:
    alike = game(1, "test").model_copy(update={"instruction": game(0, "train").instruction})
    whole = TaskStream("x", [game(0, "train"), alike, game(2, "dev")])
    with pytest.raises(InputError, match=r"'t0'.*'t1'"):
        split_streams(whole)


def test_a_task_without_a_fold_goes_with_its_near_duplicate() -> None:
    alike = task(3, None, game(1, "test").instruction)
    whole = TaskStream("x", [game(0, "train"), game(1, "test"), game(2, "dev"), alike])
    assert [ids(split_streams(whole, seed=seed).held_out) for seed in range(5)] == [["t1", "t3"]] * 5


# Templates of named streams


@given(st.integers(0, 60), st.randoms(use_true_random=False))
def test_splits_of_templates_are_a_partition_in_order(count: int, order: random.Random) -> None:
    names = [f"template {number}" for number in range(count)]
    order.shuffle(names)
    found = [split_templates(names, split) for split in SHARES]
    assert sorted(itertools.chain.from_iterable(found)) == sorted(names)
    for part in found:
        assert part == [name for name in names if name in part]
    assert split_templates(names, "all") == names


def test_templates_with_folds_go_where_their_fold_goes() -> None:
    known = environment_family("twc").templates()
    for split, fold in (("compile", "train"), ("dev", "dev"), ("held_out", "test")):
        chosen = split_templates(known, split, env="twc")  # type: ignore[arg-type]
        assert chosen == [name for name in known if name.endswith(f"/{fold}")]
    with pytest.raises(InputError):
        split_templates(known, "stream", env="twc")


@pytest.mark.parametrize(
    ("name", "digest"),
    [("reasoning-gym", "dd988a8279dea4c88878"), ("reasoning-gym-small", "806ca6ff4ba5a7bcabbc")],
)
def test_the_splits_of_a_family_stay_what_they_are(name: str, digest: str) -> None:
    """Results on them are compared from one version to the next."""
    names = PRESETS.get(name, ("", environment_family("reasoning-gym").templates()))[1]
    found = [split_templates(names, split, env="reasoning-gym") for split in SHARES]
    assert hashlib.sha256(json.dumps(found).encode()).hexdigest()[:20] == digest
