"""Splits of tasks that fall into folds: a fold is in one part whole."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rb_dspy import Task, TaskStream, split_streams
from rb_dspy.errors import InputError, MissingDependency
from rb_dspy.plugins import environment_family
from rb_dspy.stream import COMPILE_SHARES, PRESETS, SHARES, Streams, split_templates

pytestmark = pytest.mark.usefixtures("_families_of_a_user")

FAMILIES = """
class Family:
    instruction_tells_all = True
    check = templates = tasks = make = None

    def folds(self):
        return {}

    def fold(self, task):
        if task.env_args.get("fold") == "broken":
            raise KeyError("of no kind")
        return task.env_args.get("fold")

def rooms():
    return Family()

def halls():
    return Family()
"""


@pytest.fixture(scope="module")
def _families_of_a_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package with two families of tasks in folds is installed."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "folds_of_a_user.py").write_text(FAMILIES)
    information = folder / "folds_of_a_user-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: folds-of-a-user\nVersion: 1.0\n")
    points = [f"folded-{name} = folds_of_a_user:{name}" for name in ("rooms", "halls")]
    (information / "entry_points.txt").write_text("\n".join(["[rb_dspy.environments]", *points, ""]))
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        yield


def _task(n: int, fold: str | None = None, template: str | None = None, env: str = "folded-rooms") -> Task:
    """One that shares no words with another."""
    words = " ".join(f"word{word}" for word in range(9 * n, 9 * n + 9))
    args = {} if fold is None else {"fold": fold}
    return Task(id=f"t{n}", instruction=words, env=env, env_args=args, template=template)


def _stream(*folds: str | None) -> TaskStream:
    return TaskStream("x", tuple(_task(n, fold, f"kind {n}") for n, fold in enumerate(folds)))


def _folds(streams: Streams) -> list[set[object]]:
    return [{task.env_args.get("fold") for task in part} for part in _parts(streams)]


def _parts(streams: Streams) -> tuple[TaskStream, TaskStream, TaskStream]:
    return streams.compile, streams.dev, streams.held_out


@given(
    folds=st.lists(st.sampled_from(["train", "dev", "test", None]), max_size=12),
    seed=st.integers(),
    shares=st.fixed_dictionaries({name: st.floats(0.01, 10) for name in COMPILE_SHARES}),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fold_is_in_one_part_whatever_the_seed_the_shares_and_the_order(
    folds: list[str | None], seed: int, shares: dict[str, float]
) -> None:
    stream = _stream(*folds)
    lacking = {"train", "dev", "test"} - set(folds)
    if len(lacking) > folds.count(None):
        with pytest.raises(InputError, match=r"^x: ") as caught:
            split_streams(stream, shares=shares, seed=seed)
        assert "\n" not in str(caught.value)
        return
    streams = split_streams(stream, shares=shares, seed=seed)
    assert all(_parts(streams))
    assert sorted(task.id for part in _parts(streams) for task in part) == sorted(task.id for task in stream)
    assert [found - {None} for found in _folds(streams)] == [{fold} & set(folds) for fold in ("train", "dev", "test")]
    assert Streams(*_parts(streams)) == streams
    shuffled = TaskStream("x", tuple(random.Random(seed).sample(stream.tasks, len(stream))))
    again = split_streams(shuffled, shares=shares, seed=seed)
    assert [{task.id for task in part} for part in _parts(again)] == [
        {task.id for task in part} for part in _parts(streams)
    ]


def test_tasks_without_a_fold_make_up_for_the_shares() -> None:
    stream = _stream(*["train"] * 8, "dev", "test", *[None] * 10)
    streams = split_streams(stream)
    assert [len(part) for part in _parts(streams)] == [10, 4, 6]
    assert _folds(streams) == [{"train", None}, {"dev", None}, {"test", None}]


def test_a_stream_of_one_fold_says_which_others_it_needs() -> None:
    one = _stream("train", "train", "train", "train")
    with pytest.raises(InputError, match=r"^x: too few tasks for dev and held_out, .* folded-rooms's train;") as caught:
        split_streams(one)
    assert "expected tasks of the fold(s) dev and test, too: add some, or give check=False" in str(caught.value)
    apart = split_streams(one, check=False)
    assert all(_parts(apart))
    assert len({task.template for task in apart.compile} & {task.template for task in apart.held_out}) == 0


def test_a_template_of_two_folds_is_refused_with_two_tasks_by_name() -> None:
    tasks = (_task(0, "train", "a"), _task(1, "test", "a"), _task(2, "dev", "b"), _task(3, "test", "c"))
    said = r"'t0' of folded-rooms's fold train and 't1' of folded-rooms's fold test .* one template, or are near-dup"
    with pytest.raises(InputError, match=said) as caught:
        split_streams(TaskStream("x", tasks))
    assert "\n" not in str(caught.value)
    assert len(split_streams(TaskStream("x", tasks), check=False).compile) == 2


def test_near_duplicates_of_two_folds_are_refused() -> None:
    alike = _task(1, "test", "b").model_copy(update={"instruction": _task(0).instruction})
    tasks = (_task(0, "train", "a"), alike, _task(2, "dev", "c"))
    with pytest.raises(InputError, match=r"'t0' of .* fold train and 't1' of .* fold test cannot be told apart"):
        split_streams(TaskStream("x", tasks))


def test_a_task_without_a_fold_goes_with_its_near_duplicate() -> None:
    alike = _task(3, None, "d").model_copy(update={"instruction": _task(1).instruction})
    tasks = (_task(0, "train", "a"), _task(1, "test", "b"), _task(2, "dev", "c"), alike)
    for seed in range(5):
        streams = split_streams(TaskStream("x", tasks), seed=seed)
        assert [task.id for task in streams.held_out] == ["t1", "t3"]


def test_streams_with_a_fold_in_two_of_them_are_refused() -> None:
    a, b, c = (TaskStream("x", (_task(n, fold, f"kind {n}"),)) for n, fold in enumerate(("train", "dev", "train")))
    said = r"'t0' in compile and 't2' in held_out are of folded-rooms's fold train; expected a fold in one of them"
    with pytest.raises(InputError, match=said) as caught:
        Streams(a, b, c)
    assert "\n" not in str(caught.value)
    assert Streams(a, b, c, check=False).held_out == c
    Streams(b, a, TaskStream("x", (_task(2, "train", "kind 2", "folded-halls"),)))


def test_a_fold_that_nobody_knows_is_its_makers_mistake() -> None:
    with pytest.raises(MissingDependency, match=r"'folded-rooms' cannot be split: .* a fold 'valid', where train, dev"):
        split_streams(_stream("train", "valid", "test"))


def test_what_a_family_raises_that_is_asked_for_folds_is_its_makers_mistake() -> None:
    told = r"'folded-rooms' cannot be split: asked for folds, it raised KeyError: 'of no kind'; tell its maker"
    with pytest.raises(MissingDependency, match=told):
        split_streams(_stream("train", "broken", "test"))


@given(st.dictionaries(st.text(min_size=1), st.sampled_from(["train", "dev", "test", None]), max_size=30))
def test_templates_of_folds_are_not_drawn_and_the_others_as_ever(kinds: dict[str, str | None]) -> None:
    folds = {template: fold for template, fold in kinds.items() if fold is not None}
    without = [template for template in kinds if template not in folds]
    found: list[str] = []
    for split, fold in (("compile", "train"), ("dev", "dev"), ("held-out", "test"), ("stream", None)):
        wanted = {template for template, each in folds.items() if each == fold}
        wanted |= set(split_templates(without, split))  # type: ignore[arg-type]
        if folds and not wanted:
            with pytest.raises(InputError, match=rf"^the split '{split}' has no template: "):
                split_templates(list(kinds), split, folds=folds)  # type: ignore[arg-type]
            continue
        chosen = split_templates(list(kinds), split, folds=folds)  # type: ignore[arg-type]
        assert chosen == [template for template in kinds if template in wanted]
        found += chosen
    assert sorted(found) == sorted(kinds)


@pytest.mark.parametrize("name", ["twc", "cookingworld"])
def test_the_text_games_are_split_by_the_engines_folds(name: str) -> None:
    whole = TaskStream.named(name, n=60)
    bare = TaskStream("bare", tuple(task.model_copy(update={"template": None}) for task in whole))
    named = Streams(*(TaskStream.named(name, n=20, split=split) for split in ("compile", "dev", "held-out")))  # type: ignore[arg-type]
    for streams in (named, split_streams(whole), split_streams(whole, seed=7), split_streams(bare)):
        assert _folds(streams) == [{"train"}, {"dev"}, {"test"}]
    assert [task for part in _parts(split_streams(whole)) for task in part if task not in whole.tasks] == []
    assert {task.env_args["fold"] for task in whole} == {"train", "dev", "test"}


def test_a_split_that_no_fold_makes_says_which_there_are() -> None:
    said = (
        r"'twc/1-location-2-objects/train' .*train makes compile, dev makes dev, test makes held-out.*of train, dev, te"
    )
    with pytest.raises(InputError, match=r"^the split 'stream' has no template: .*" + said) as caught:
        TaskStream.named("twc", n=1, split="stream")
    assert "\n" not in str(caught.value)
    trained = ["twc/1-location-2-objects/train", "twc/2-locations-2-objects/train"]
    with pytest.raises(InputError, match=r"^the split 'held-out' has no template: .* those given are of train; "):
        TaskStream.named("twc", n=1, split="held-out", templates=trained)
    assert len(TaskStream.named("twc", n=4, split="compile", templates=trained)) == 4
    assert len(TaskStream.named("twc", n=4, split="held-out", templates=[])) == 0


def test_a_stream_of_the_train_fold_cannot_be_split_by_half() -> None:
    with pytest.raises(InputError, match=r"too few tasks for dev and held_out, .* are of twc's train; expected"):
        split_streams(TaskStream.named("twc", n=12, split="compile"))


@pytest.mark.parametrize(
    ("stream", "digest"),
    [("reasoning-gym", "dd988a8279dea4c88878"), ("reasoning-gym-small", "806ca6ff4ba5a7bcabbc")],
)
def test_the_splits_of_a_family_without_folds_stay_what_they_are(stream: str, digest: str) -> None:
    """Results of runs on them are compared from one version to the next."""
    templates = PRESETS.get(stream, ("", environment_family("reasoning-gym").templates()))[1]
    splits = [split_templates(templates, split) for split in SHARES]  # type: ignore[arg-type]
    assert hashlib.sha256(json.dumps(splits).encode()).hexdigest()[:20] == digest
