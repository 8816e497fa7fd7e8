"""Which tasks count as near-duplicates."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rb_dspy import Task, TaskStream, split_streams
from rb_dspy.errors import InputError
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
        ("What is 3 + 4?", "What is 12 + 1,250.5?"),
        ("-3, -6, -12, -24, ?", "-1, -6, -18, -54, ?"),
        ("Add 3", "add 5"),
        ("请计算3加5。", "请计算12加7。"),
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
        ("What is 12 * 7?", "What is 12 + 7 - 3?"),
        ("Read report1.txt and report2.txt.", "Read report3.txt and report4.txt."),
        ("([{", "}])"),
        ("请把下面的句子翻译成英文。", "他昨天在图书馆里看了一本书。"),
    ],
)
def test_other_things_in_some_of_the_same_words_are_not_alike(one: str, other: str) -> None:
    assert similarity(*_tasks(one, other)) < ALIKE
    assert list(near_duplicates(_tasks(one, other), lambda *_: True)) == []


def test_kinds_that_are_named_may_differ_in_numbers_only() -> None:
    def kind(number: int, template: str | None) -> Task:
        return Task(id=str(number), instruction=f"What is {number} + {number * 7}?", template=template)

    named = [kind(3, "sums of one digit"), kind(50, "sums of two"), kind(4, "sums of one digit")]
    assert list(near_duplicates(named, lambda *_: True)) == []
    assert similarity(named[0], named[1]) < ALIKE
    assert list(near_duplicates([*named, kind(6, None)], lambda *_: True)) == [(0, 3), (1, 3), (2, 3)]
    assert similarity(named[0], kind(6, None)) == 1


def test_kinds_of_short_tasks_lie_in_one_part_without_their_templates_and_are_no_false_alarm_with_them() -> None:
    kinds = ("chain_sum", "decimal_chain_sum", "number_sequence", "products", "rotate_matrix", "spell_backward")
    stream = TaskStream.named("reasoning-gym", n=60, seed=1, templates=kinds)
    bare = TaskStream("bare", tuple(task.model_copy(update={"template": None}) for task in stream))
    split = split_streams(bare)
    parts = {task.id: part.name for part in (split.compile, split.dev, split.held_out) for task in part}
    for kind in kinds[:5]:
        assert len({parts[task.id] for task in stream if task.template == kind}) == 1, kind
    tasks = stream.tasks
    assert list(near_duplicates(tasks, lambda one, other: tasks[one].template != tasks[other].template)) == []


_loops = st.lists(st.sampled_from("abc12"), min_size=1, max_size=12).map(" ".join)
_cuts = st.tuples(st.integers(0, 30), st.integers(1, 30)).map(
    lambda cut: " ".join(f"w{n}" for n in range(cut[0], sum(cut)))
)


@given(st.lists(_loops, max_size=14) | st.lists(_cuts, max_size=14), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_no_pair_is_missed_and_none_is_made_up(texts: list[str], kinds: int) -> None:
    tasks = [
        task.model_copy(update={"template": "t" if len(task.instruction) % 3 else None}) for task in _tasks(*texts)
    ]

    def matters(one: int, other: int) -> bool:
        return one % kinds != other % kinds

    pairs = [
        (one, other)
        for one, other in itertools.combinations(range(len(tasks)), 2)
        if matters(one, other) and similarity(tasks[one], tasks[other]) >= ALIKE
    ]
    assert sorted(near_duplicates(tasks, matters)) == pairs


FAMILIES = """
class Family:
    check = templates = tasks = make = None

    def __init__(self, name, **says):
        self.name = name
        vars(self).update(says)

def maze():
    return Family("user-maze", instruction_tells_all=False)

def quiz():
    return Family("user-quiz", instruction_tells_all=True)

def silent():
    return Family("user-silent")
"""


@pytest.fixture
def _families_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with three families is installed."""
    (tmp_path / "families_of_a_user.py").write_text(FAMILIES)
    information = tmp_path / "families_of_a_user-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: families-of-a-user\nVersion: 1.0\n")
    points = [f"user-{name} = families_of_a_user:{name}" for name in ("maze", "quiz", "silent")]
    (information / "entry_points.txt").write_text("\n".join(["[rb_dspy.environments]", *points, ""]))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_families_of_a_user")
@pytest.mark.parametrize(
    ("env", "pairs"),
    [
        ("user-maze", [(0, 2)]),
        ("user-quiz", [(0, 1), (0, 2), (1, 2)]),
        ("user-silent", [(0, 1), (0, 2), (1, 2)]),
        ("of-a-factory", [(0, 1), (0, 2), (1, 2)]),
    ],
)
def test_a_family_says_itself_whether_its_instructions_tell_its_tasks_apart(
    env: str, pairs: list[tuple[int, int]]
) -> None:
    """One that says nothing is taken to tell all: what looks the same stays on one side of a split."""
    instruction = "Find the way out."
    tasks = [Task(id=str(n), instruction=instruction, env=env, env_args={"seed": n % 2}) for n in range(3)]
    assert list(near_duplicates(tasks, lambda *_: True)) == pairs
    many = [Task(id=str(n), instruction=instruction, env=env, env_args={"seed": n}) for n in range(6)]
    if len(pairs) == 1:
        assert len(split_streams(TaskStream("mazes", tuple(many))).compile) == 3
    else:
        with pytest.raises(InputError, match="near-duplicates"):
            split_streams(TaskStream("mazes", tuple(many)))


def test_worlds_that_look_the_same_are_told_apart_by_their_arguments() -> None:
    def world(name: str, seed: int, env: str = "cookingworld") -> Task:
        return Task(id=name, instruction="Cook the meal in the cookbook.", env=env, env_args={"seed": seed})

    tasks = [world("a", 1), world("b", 2), world("c", 1), world("d", 1, "twc"), world("e", 1, "question")]
    assert list(near_duplicates(tasks, lambda *_: True)) == [(0, 2)]
    assert similarity(world("e", 1, "question"), world("f", 2, "question")) == 1
