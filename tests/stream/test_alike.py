"""Which tasks count as near-duplicates."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rb_dspy import Task
from rb_dspy.stream.alike import ALIKE, near_duplicates, similarity


def _tasks(*instructions: str) -> list[Task]:
    return [Task(id=str(n), instruction=instruction) for n, instruction in enumerate(instructions)]


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
def test_the_same_thing_said_again_is_alike(one: str, other: str) -> None:
    assert similarity(*_tasks(one, other)) >= ALIKE
    assert list(near_duplicates(_tasks(one, other), lambda *_: True)) == [(0, 1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Write a function that sorts a list of words by length.", "Write a function that adds up a list of prices."),
        (
            "A train leaves at nine and takes an hour. When is it there?",
            "A baker sells nine loaves. How many are left?",
        ),
        ("the dog bit the man", "the man bit the dog"),
        ("([{", "}])"),
        ("请把下面的句子翻译成英文。", "他昨天在图书馆里看了一本书。"),
    ],
)
def test_other_things_in_some_of_the_same_words_are_not_alike(one: str, other: str) -> None:
    assert similarity(*_tasks(one, other)) < ALIKE
    assert list(near_duplicates(_tasks(one, other), lambda *_: True)) == []


_loops = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12).map(" ".join)
_cuts = st.tuples(st.integers(0, 30), st.integers(1, 30)).map(
    lambda cut: " ".join(f"w{n}" for n in range(cut[0], sum(cut)))
)


@given(st.lists(_loops, max_size=14) | st.lists(_cuts, max_size=14), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_no_pair_is_missed_and_none_is_made_up(texts: list[str], kinds: int) -> None:
    tasks = _tasks(*texts)

    def matters(one: int, other: int) -> bool:
        return one % kinds != other % kinds

    pairs = [
        (one, other)
        for one, other in itertools.combinations(range(len(tasks)), 2)
        if matters(one, other) and similarity(tasks[one], tasks[other]) >= ALIKE
    ]
    assert sorted(near_duplicates(tasks, matters)) == pairs


def test_worlds_that_look_the_same_are_told_apart_by_their_arguments() -> None:
    def world(name: str, seed: int, env: str = "cookingworld") -> Task:
        return Task(id=name, instruction="Cook the meal in the cookbook.", env=env, env_args={"seed": seed})

    tasks = [world("a", 1), world("b", 2), world("c", 1), world("d", 1, "twc"), world("e", 1, "question")]
    assert list(near_duplicates(tasks, lambda *_: True)) == [(0, 2)]
    assert similarity(world("e", 1, "question"), world("f", 2, "question")) == 1
