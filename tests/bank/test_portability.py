"""A scope leaves as a file and comes back the same; a file from elsewhere is checked before any of it counts."""

import json
import math
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.portability import experiences
from rb_dspy.errors import InputError, RBError, StorageError
from rb_dspy.schema import Experience, ExperienceDraft, MemoryDraft, MemoryItem, Step, Trajectory, Verdict
from rb_dspy.testing.embedder import HashEmbedder
from rb_dspy.text import normalise
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank


def filled(url: Path | None = None) -> MemoryBank:
    """A bank with something of everything: shared and edited items, origins, exposures, notes, things that are gone."""
    bank = open_bank(url)
    first = add(bank, "t1", lessons=2, distiller="lm", label="failure")
    add(bank, "t2", lessons=0, note="nothing to learn", label="unknown")
    again = [MemoryDraft(title=item.title, description=item.description, content=item.content) for item in first.items]
    bank.append(
        a_task("t3", env="shop", env_args={"page": [1, {"a": None}], "odd": math.inf}, domain="web", template="sort"),
        [a_rollout("t3", "0"), a_rollout("t3", "1", "jump")],
        [Verdict(label="failure"), Verdict(label="success", reasons="ok", confidence=0.25)],
        [again[0], a_draft("own"), again[1]],
        distiller="other",
        origin="a friend",
        shown=first.items,
    )
    add(bank, "t4", lessons=1, origin="enemy")
    bank.edit(first.items[1].id, title="Edited é 😀", note="clearer")
    bank.rollback("origin:enemy")
    return bank


def some(bank: MemoryBank, number: int) -> list[str]:
    """Ids of that many new experiences."""
    drafts = (
        ExperienceDraft(task=a_task(f"t{n}"), trajectories=(a_rollout(f"t{n}"),), verdicts=(Verdict(label="unknown"),))
        for n in range(number)
    )
    return [experience.id for experience in bank.append_many(drafts)]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def exported(bank: MemoryBank, path: Path) -> bytes:
    bank.export_jsonl(path)
    return path.read_bytes()


def meaning(bank: MemoryBank) -> list[Any]:
    """All experiences without what is the bank's own: numbers, and the scope's name."""
    found = [experience.model_dump(exclude={"seq", "scope"}) for experience in bank.experiences()]
    for experience in found:
        for item in experience["items"]:
            del item["seq"], item["scope"]
    return found


@pytest.mark.parametrize(("source", "target"), [(None, None), ("a.sqlite", "b.sqlite"), ("a.sqlite", "a.sqlite")])
def test_what_was_exported_is_imported_whole(tmp_path: Path, source: str | None, target: str | None) -> None:
    bank = filled(tmp_path / source if source else None)
    data = exported(bank, tmp_path / "a.jsonl")
    other = open_bank(tmp_path / target if target else None, scope="another")
    assert [e.id for e in other.import_jsonl(tmp_path / "a.jsonl")] == [e.id for e in bank.experiences()]
    assert meaning(other) == meaning(bank)
    head, *body = exported(other, tmp_path / "b.jsonl").splitlines()
    assert body == data.splitlines()[1:]
    assert json.loads(head) == json.loads(data.splitlines()[0]) | {"scope": "another"}
    assert len(other) == len(bank) == 3
    assert other.retrieve("sort the numbers", k=9), "vectors are made anew"


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    head, first, *_ = exported(filled(), tmp_path / "a.jsonl").splitlines()
    assert json.loads(head) == {
        "format": "rb_dspy-bank",
        "version": 1,
        "scope": "s",
        "embedder": "hash-64",
        "dimension": 64,
        "experiences": 3,
    }
    assert list(json.loads(first)) == [
        *("id", "task", "trajectories", "verdicts", "items", "run_id", "note", "origin", "shown", "created_at")
    ]
    assert {tuple(item) for item in json.loads(first)["items"]} == {
        ("id", "title", "description", "content", "polarity", "distiller")
    }


def test_importing_twice_repeats_nothing_and_what_was_rolled_back_stays_away(tmp_path: Path) -> None:
    bank = filled()
    before = exported(bank, tmp_path / "a.jsonl")
    assert [e.id for e in bank.import_jsonl(tmp_path / "a.jsonl")] == [e.id for e in bank.experiences()]
    assert exported(bank, tmp_path / "b.jsonl") == before
    gone = bank.experiences()[0].id
    bank.delete(gone)
    bank.import_jsonl(tmp_path / "a.jsonl")
    assert gone not in {e.id for e in bank.experiences()}


def test_more_experiences_than_one_page_or_digit(tmp_path: Path) -> None:
    bank = open_bank()
    some(bank, 1201)
    assert bank.export_jsonl(tmp_path / "a.jsonl") == 1201
    assert [e.id for e in open_bank().import_jsonl(tmp_path / "a.jsonl")] == [e.id for e in bank.experiences()]


def test_an_empty_scope_is_a_header(tmp_path: Path) -> None:
    assert open_bank().export_jsonl(tmp_path / "a.jsonl") == 0
    assert lines(tmp_path / "a.jsonl")[0]["experiences"] == 0
    assert open_bank().import_jsonl(tmp_path / "a.jsonl") == []


def test_a_bank_of_another_embedder_can_be_imported(tmp_path: Path) -> None:
    exported(bank := filled(), tmp_path / "a.jsonl")
    other = open_bank(embedder=HashEmbedder(32, salt="x"))
    other.import_jsonl(tmp_path / "a.jsonl")
    assert meaning(other) == meaning(bank)
    assert other.retrieve("sort the numbers", k=9)


def test_an_origin_marks_all_that_was_imported_so_that_it_can_go_again(tmp_path: Path) -> None:
    exported(filled(), tmp_path / "a.jsonl")
    bank = open_bank()
    mine = add(bank, "mine")
    brought = bank.import_jsonl(tmp_path / "a.jsonl", origin="file from a stranger")
    assert {e.origin for e in brought} == {"file from a stranger"}
    assert {p.origin for item in bank.items() for p in item.provenances} == {"file from a stranger", ""}
    bank.rollback("origin:file from a stranger")
    assert bank.experiences() == [mine]


@pytest.mark.parametrize("target", [None, "b.sqlite"])
def test_what_was_learned_under_a_lesson_that_is_here_already_goes_with_it(tmp_path: Path, target: str | None) -> None:
    theirs = open_bank(scope="theirs")
    first = add(theirs, "t1")
    add(theirs, "t2", shown=first.items)
    theirs.export_jsonl(tmp_path / "a.jsonl")
    bank = open_bank(tmp_path / target if target else None, scope="ours")
    (known,) = add(bank, "t1", run_id="ours").items
    given, influenced = bank.import_jsonl(tmp_path / "a.jsonl")
    assert (given.items[0].id, influenced.shown) == (known.id, (known.id,))
    assert known.id != first.items[0].id
    assert bank.doctor() == []
    assert bank.rollback(known.id).experiences == (influenced.id,)
    bank.close()


@pytest.mark.parametrize("target", [None, "b.sqlite"])
def test_what_was_learned_under_a_lesson_that_gets_another_id_goes_with_it(tmp_path: Path, target: str | None) -> None:
    theirs = open_bank()
    first = add(theirs, "t1")
    add(theirs, "t2", shown=first.items)
    theirs.export_jsonl(tmp_path / "a.jsonl")
    bank = open_bank(tmp_path / target if target else None)
    (edited,) = add(bank, "t1", run_id="ours").items
    assert edited.id == first.items[0].id
    bank.edit(edited.id, title="says something else here")
    given, influenced = bank.import_jsonl(tmp_path / "a.jsonl")
    assert given.items[0].title == first.items[0].title
    assert given.items[0].id != edited.id
    assert influenced.shown == (given.items[0].id,)
    assert bank.doctor() == []
    assert bank.rollback(edited.id, dry_run=True).experiences == ()
    assert bank.rollback(given.items[0].id).experiences == (influenced.id,)
    bank.close()


def test_a_lesson_that_was_edited_here_is_still_what_was_shown_where_it_came_from(tmp_path: Path) -> None:
    bank = open_bank()
    (item,) = add(bank, "t1").items
    copy = open_bank()
    copy.import_jsonl(_of(tmp_path, bank))
    add(copy, "t2", shown=[item])
    bank.edit(item.id, title="says it better")
    assert bank.import_jsonl(_of(tmp_path, copy))[-1].shown == (item.id,)


def _crafted(path: Path, *given: tuple[str, list[tuple[str, str]], list[str]]) -> list[str]:
    """An export of experiences: task, ids and contents of items, ids that were shown. Ids of the experiences."""
    bank = open_bank()
    ids = [add(bank, task, lessons=0).id for task, _, _ in given]
    bank.export_jsonl(path)
    head, *body = lines(path)
    for line, (_, items, shown) in zip(body, given, strict=True):
        common = {"title": "x", "description": "", "polarity": "success", "distiller": ""}
        line["items"] = [{"id": id, "content": content, **common} for id, content in items]
        line["shown"] = shown
    path.write_text("".join(json.dumps(part) + "\n" for part in (head, *body)))
    return ids


M = "m" + "0" * 20
"""The id of an item."""


@pytest.mark.parametrize("target", [None, "b.sqlite"])
@pytest.mark.parametrize("taken", ["here", "in the file"])
def test_the_id_that_it_gets_is_nobody_elses(tmp_path: Path, target: str | None, taken: str) -> None:
    bank = open_bank(tmp_path / target if target else None)
    _crafted(tmp_path / "a.jsonl", ("here", [(M, "what M says here")], []))
    bank.import_jsonl(tmp_path / "a.jsonl")
    wanted = ("giver", [(M, "what M says there")], [])
    (giver,) = _crafted(tmp_path / "a.jsonl", wanted)
    with open_bank() as same:  # what it would get
        same.import_jsonl(_of(tmp_path, bank))
        (first,) = same.import_jsonl(tmp_path / "a.jsonl")
        usual = first.items[0].id
    assert (first.id, usual != M) == (giver, True)
    other = "other", [(usual, "another text")], []
    if taken == "here":
        _crafted(tmp_path / "a.jsonl", other)
        bank.import_jsonl(tmp_path / "a.jsonl")
    _crafted(tmp_path / "a.jsonl", *[other][: taken != "here"], wanted, ("learner", [], [M, usual]))
    *_, given, learner = bank.import_jsonl(tmp_path / "a.jsonl")
    assert given.items[0].id not in (M, usual)
    assert learner.shown == (given.items[0].id, usual)
    assert bank.doctor() == []
    bank.close()


def _of(folder: Path, bank: MemoryBank) -> Path:
    bank.export_jsonl(folder / "copy.jsonl")
    return folder / "copy.jsonl"


def test_of_two_lessons_with_one_text_the_first_is_what_was_shown(tmp_path: Path) -> None:
    twin = "m" + "1" * 20
    said = "Do this."
    _crafted(tmp_path / "a.jsonl", ("t0", [], [twin]), ("t1", [(M, said)], []), ("t2", [(twin, said)], []))
    bank = open_bank()
    shown, first, second = bank.import_jsonl(tmp_path / "a.jsonl")
    assert [item.id for item in (*first.items, *second.items)] == [M, M]
    assert shown.shown == (M,)


@pytest.mark.parametrize("target", [None, "c.sqlite"])
def test_a_lesson_is_kept_where_all_ids_that_it_would_have_are_those_of_edited_ones(
    tmp_path: Path, target: str | None
) -> None:
    def learn(bank: MemoryBank, task: str) -> Experience:
        return bank.append(a_task(task), a_rollout(task), Verdict(label="success"), [a_draft("said")], run_id="r")

    before = open_bank()
    before.edit(learn(before, "t1").items[0].id, title="edited")
    second = learn(before, "t2")
    assert learn(before, "t3").items[0].id == second.items[0].id
    before.edit(second.items[0].id, title="edited too")
    before.delete(second.id)  # only the third experience has the id that was made for it
    before.export_jsonl(tmp_path / "a.jsonl")
    bank = open_bank(tmp_path / target if target else None)
    bank.import_jsonl(tmp_path / "a.jsonl")
    learned = [learn(place, "t2") for place in (bank.fork(), bank)]
    assert [experience.items[0].title for experience in learned] == ["said", "said"]
    assert learned[0].items[0].id == learned[1].items[0].id
    assert [item.title for item in bank.items()] == ["edited", "edited too", "said"]
    assert bank.doctor() == []
    bank.close()


def test_two_lessons_that_say_the_same_come_in_as_one_and_can_leave_again(tmp_path: Path) -> None:
    bank = open_bank()
    (first, second) = add(bank, "t1", lessons=2).items
    bank.export_jsonl(tmp_path / "a.jsonl")
    header, line = lines(tmp_path / "a.jsonl")
    line["items"][1] |= {name: line["items"][0][name] for name in ("title", "description", "content")}
    (tmp_path / "b.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    other = open_bank()
    (came,) = other.import_jsonl(tmp_path / "b.jsonl")
    assert [item.id for item in came.items] == [first.id]
    assert second.id not in [item.id for item in other.items()]
    other.export_jsonl(tmp_path / "c.jsonl")
    assert len(open_bank().import_jsonl(tmp_path / "c.jsonl")) == 1


@pytest.mark.parametrize("target", [None, "b.sqlite"])
def test_an_import_cannot_pass_for_what_one_learns_later(tmp_path: Path, target: str | None) -> None:
    mine, rollout, verdict = a_task("mine"), a_rollout("mine"), Verdict(label="success")
    with open_bank() as bank:
        own = bank.append(mine, rollout, verdict, [], run_id="r").id
        other = add(bank, "other", run_id="r").id
        bank.export_jsonl(tmp_path / "a.jsonl")
    header, _, line = lines(tmp_path / "a.jsonl")
    assert line["id"] == other
    header["experiences"], line["id"] = 1, own
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    with open_bank(tmp_path / target if target else None) as bank:
        bank.import_jsonl(tmp_path / "a.jsonl", origin="stranger")
        with pytest.raises(InputError, match=f"{own}, is that of an imported experience of another task .'other'"):
            bank.append(mine, rollout, verdict, [], run_id="r")
        assert bank.append(mine, rollout, verdict, [], run_id="another").task == mine


def test_a_fork_is_exported_with_what_lies_under_it(tmp_path: Path) -> None:
    bank = filled()
    fork = bank.fork()
    assert exported(fork, tmp_path / "a.jsonl") == exported(bank, tmp_path / "b.jsonl")
    add(fork, "t9")
    assert fork.export_jsonl(tmp_path / "a.jsonl") == 4


def test_an_edited_item_and_its_old_text_live_side_by_side_after_the_import_too(tmp_path: Path) -> None:
    bank = open_bank()
    (old,) = add(bank, "t1").items
    bank.edit(old.id, title="clearer")
    (twin,) = bank.append(a_task("t2"), a_rollout("t2"), Verdict(label="failure"), [a_draft("Lesson 0 of t1")]).items
    assert twin.id != old.id
    data = exported(bank, tmp_path / "a.jsonl")
    other = open_bank()
    other.import_jsonl(tmp_path / "a.jsonl")
    assert exported(other, tmp_path / "b.jsonl") == data
    assert [(i.id, i.title) for i in other.items()] == [(old.id, "clearer"), (twin.id, "Lesson 0 of t1")]


# What may stand in a text: everything, surrogates and control characters as well.
NASTY = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(
    ["\ud83d\ude00", "\udc80", "\u2028\u0085\x1c", '\\"[{', "\ufeff", "\x00", "ﬁ\u0301", " \t\n "]
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3),
    max_leaves=6,
)
# A distiller's answer holds no lone surrogates; few different lessons, so that some come again.
LESSONS = (st.sampled_from("abcd") | st.text(max_size=5).map(lambda text: f"x{text}")).map(a_draft)
ATTEMPTS = st.fixed_dictionaries(
    {
        "task": st.integers(0, 5),
        "env_args": st.dictionaries(NASTY, ANY_JSON, max_size=2),
        "texts": st.tuples(NASTY, NASTY, NASTY, NASTY, NASTY),
        "labels": st.lists(st.sampled_from(["success", "failure", "unknown"]), min_size=1, max_size=2),
        "lessons": st.lists(LESSONS, max_size=3),
        "run_id": st.sampled_from(["", "r", "monday é"]),
        "polarity": st.sampled_from([None, "success", "failure"]),
        "origin": st.sampled_from(["", "friend", "[/x]"]),
        "shown": st.booleans(),
        "then": st.sampled_from(["nothing", "edit", "delete item", "delete", "rollback"]),
    }
)


def _attempt(bank: MemoryBank, made: dict[str, Any]) -> None:
    thought, action, observation, answer, reasons = made["texts"]
    task = a_task(f"t{made['task']}", env_args=made["env_args"])
    step = Step(thought=thought, action=action, observation=observation)
    rollouts = [
        Trajectory(task_id=task.id, rollout_id=str(n), steps=(step,) * n, answer=answer)
        for n in range(len(made["labels"]))
    ]
    try:
        bank.append(
            task,
            rollouts,
            [Verdict(label=label, reasons=reasons) for label in made["labels"]],
            made["lessons"],
            run_id=made["run_id"],
            polarity=made["polarity"],
            distiller=reasons,
            note=thought,
            origin=made["origin"],
            shown=bank.items()[-2:] if made["shown"] else [],
        )
    except InputError as exc:
        if "removed since" not in str(exc):
            raise
    items = bank.items()
    if made["then"] == "edit" and items:
        said = f"{items[0].id}, edit {len(bank.history(items[0].id))}: {normalise(thought)}"
        if said.strip() not in {item.content for item in items}:  # an import may have brought it
            bank.edit(items[0].id, content=said)
    elif made["then"] == "delete item" and items:
        bank.delete(items[-1].id)
    elif made["then"] == "delete":
        bank.delete(bank.experiences()[0].id) if bank.experiences() else None
    elif made["then"] == "rollback" and any(experience.origin == "friend" for experience in bank.experiences()):
        bank.rollback("origin:friend")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ATTEMPTS, max_size=6))
def test_any_bank_survives_the_round_trip(tmp_path: Path, attempts: list[dict[str, Any]]) -> None:
    bank = open_bank()
    for made in attempts:
        _attempt(bank, made)
    data = exported(bank, tmp_path / "a.jsonl")
    same, other = open_bank(), open_bank(scope="ü")
    for copy in (same, other):
        copy.import_jsonl(tmp_path / "a.jsonl")
        assert [item.model_dump(exclude={"seq", "scope"}) for item in copy.items()] == [
            item.model_dump(exclude={"seq", "scope"}) for item in sorted(bank.items(), key=_first_line(bank))
        ]
    assert exported(same, tmp_path / "b.jsonl") == data
    assert exported(other, tmp_path / "b.jsonl").split(b"\n", 1)[1] == data.split(b"\n", 1)[1]


FEW = st.fixed_dictionaries(
    {
        "task": st.integers(0, 2),
        "env_args": st.just({}),
        "texts": st.just(("",) * 5),
        "labels": st.just(["success"]),
        "lessons": st.lists(st.sampled_from("ab").map(a_draft), min_size=1, max_size=2),
        "run_id": st.sampled_from(["q", "r"]),
        "polarity": st.none(),
        "origin": st.just(""),
        "shown": st.just(True),
        "then": st.sampled_from(["nothing", "edit"]),
    }
)
"""Attempts of which the same come again, here and there."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FEW, max_size=4), st.lists(FEW, max_size=4), st.lists(FEW, max_size=2), st.lists(FEW, max_size=2))
def test_what_was_shown_elsewhere_is_here_what_says_the_same_or_came_with_it(
    tmp_path: Path,
    theirs: list[dict[str, Any]],
    ours: list[dict[str, Any]],
    then_theirs: list[dict[str, Any]],
    then_ours: list[dict[str, Any]],
) -> None:
    """And no other item that lives here: a rollback of that one would take what has nothing to do with it."""
    there, here = open_bank(), open_bank()
    for attempts in ((theirs, ours), (then_theirs, then_ours)):
        for bank, each in zip((there, here), attempts, strict=True):
            for made in each:
                _attempt(bank, made)
        known = {experience.id for experience in here.experiences()}
        there.export_jsonl(tmp_path / "a.jsonl")
        here.import_jsonl(tmp_path / "a.jsonl")
        texts = {item.id: item for item in there.items()}
        lives = {item.id: item for item in here.items()}
        for experience in there.experiences():
            if experience.id in known:
                continue
            stored = here.get(experience.id)
            assert isinstance(stored, Experience)
            both_one = stored.shown * (2 if len(stored.shown) < len(experience.shown) else 1)
            for id, named in zip(experience.shown, both_one, strict=True):
                if item := lives.get(named):
                    assert _text(item) == _text(texts[id]) or _givers(item) & _givers(texts[id])


def _givers(item: MemoryItem) -> set[str]:
    return {source.experience_id for source in item.provenances}


def _text(item: MemoryItem) -> tuple[str, ...]:
    return item.title, item.description, item.content


def _first_line(bank: MemoryBank) -> Callable[[Any], int]:
    """Where an item first stands in an export: an edit gives it a later number, an import an earlier one again."""
    order: dict[str, int] = {}
    for experience in bank.experiences():
        for item in experience.items:
            order.setdefault(item.id, len(order))
    return lambda item: order[item.id]


# What a file may look like, and what not


@pytest.fixture
def file(tmp_path: Path) -> Path:
    filled().export_jsonl(tmp_path / "a.jsonl")
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\n \n" + data.replace(b"\n", b"\n\n\t\n"),
        lambda data: data.rstrip(b"\n"),
        lambda data: b"\n".join(json.dumps(json.loads(line), indent=None).encode() for line in data.splitlines()),
    ],
    ids=["byte-order mark", "CRLF", "blank lines", "no last line end", "ASCII, with blanks"],
)
def test_what_other_programs_make_of_the_file_is_accepted(
    file: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    before = file.read_bytes()
    file.write_bytes(change(before))
    bank = open_bank()
    assert len(bank.import_jsonl(file)) == 3
    assert exported(bank, tmp_path / "b.jsonl") == before


Change = Callable[[list[Any]], object]


def _set(number: int, *keys: Any) -> Callable[[Any], Change]:
    """A change that sets what is found in a line under some keys."""

    def to(value: Any) -> Change:
        def change(parts: list[Any]) -> None:
            place = parts[number]
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = value

        return change

    return to


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (_set(0, "format")("parquet"), 1, "not an export of a bank"),
        (_set(0, "version")(2), 1, "version 2 of the format, written by a newer rb_dspy; expected at most 1"),
        (_set(0, "version")("1.x"), 1, "version: input should be a valid integer"),
        (_set(0, "version")(True), 1, "version: input should be a valid integer"),
        (_set(0, "version")(0), 1, "version: input should be greater than or equal to 1"),
        (_set(0, "version")("1"), 1, "version: input should be a valid integer"),
        (_set(0, "version")(1.0), 1, "version: input should be a valid integer"),
        (_set(0, "experiences")("3"), 1, "experiences: input should be a valid integer"),
        (_set(0, "dimension")(True), 1, "dimension: input should be a valid integer"),
        (_set(0, "extra")(1), 1, "extra: extra inputs are not permitted"),
        (_set(0, "experiences")(4), 4, "the file ends after 3 experiences; expected the 4"),
        (_set(0, "experiences")(2), 4, "expected the 2"),
        (lambda parts: parts.pop(2), 3, "the file ends after 2 experiences"),
        (_set(2, "id")("e123"), 3, "id: string should match pattern"),
        (_set(2, "id")("e" + "0" * 20 + "\n"), 3, "id: string should match pattern"),
        (_set(2, "task", "instruction")(""), 3, "the instruction is empty"),
        (_set(2, "task", "secret")("x"), 3, "task.secret: extra inputs"),
        (_set(2, "verdicts")([]), 3, "1 trajectories and 0 verdicts"),
        (_set(2, "verdicts", 0, "confidence")(math.nan), 3, "verdicts.0.confidence: "),
        (_set(2, "verdicts", 0, "label")("great"), 3, "verdicts.0.label: "),
        (_set(2, "trajectories", 0, "task_id")("t9"), 3, "a trajectory is of the task 't9'"),
        (_set(3, "trajectories", 1, "rollout_id")("0"), 4, "rollout ids"),
        (_set(2, "origin")("\x00"), 3, "origin '\\x00'"),
        (_set(2, "run_id")("\u202e"), 3, "run id"),
        (_set(2, "created_at")("yesterday"), 3, "created_at 'yesterday'; expected an ISO 8601 time"),
        (_set(2, "shown")([""]), 3, "shown.0: "),
        (lambda parts: parts[2].pop("note"), 3, "note: field required"),
        (lambda parts: parts.insert(3, parts[2]), 4, "stands in line 3 already"),
        (_set(1, "items", 0, "id")("x1"), 2, "items.0.id: "),
        (_set(1, "items", 0, "polarity")("success"), 2, "new items from a success and from a failure"),
        (_set(1, "items", 0, "distiller")("another"), 2, "items of several distillers"),
        (_set(1, "items", 0, "title")("x" * 201), 2, "title of 201 characters; expected at most 200"),
        (_set(1, "items", 0, "title")(" \n"), 2, "no title; expected some text"),
        (_set(1, "items", 0, "content")(""), 2, "no content; expected some text"),
        (_set(1, "items", 0, "content")("another text"), 4, "has another text than in line 2"),
        (lambda parts: parts[1]["items"].append(parts[1]["items"][0]), 2, "stands twice in this experience"),
        (lambda parts: parts.__setitem__(2, [1]), 3, "not an object"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_nothing_is_stored(
    file: Path, change: Change, line: int, message: str
) -> None:
    parts = lines(file)
    change(parts)
    file.write_text("".join(json.dumps(part) + "\n" for part in parts))
    bank = open_bank()
    with pytest.raises(InputError) as error:
        bank.import_jsonl(file)
    assert str(error.value).startswith(f"{file}:{line}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert bank.experiences() == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b'{"format": ',
        b"PK\x03\x04\xff\xfe",
        "{}".encode("utf-16"),
        b'{"format": "parquet"}',
        b'"text"',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_export_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(InputError):
        open_bank().import_jsonl(tmp_path / "a.jsonl")


def test_a_file_that_was_cut_off_is_refused_wherever_it_was_cut(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    for length in range(0, len(data) - 2, 97):
        file.write_bytes(data[:length])
        with pytest.raises(InputError):
            open_bank().import_jsonl(file)


def test_a_place_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_bank().import_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(InputError):
        open_bank().import_jsonl(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError):
        open_bank().import_jsonl(tmp_path / "pipe")


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 20_000_000,
        b'{"a":' * 100_000,
        b"[" + b"[]," * 5_000_000 + b"[]]",
        b'"' * 20_000_000,
        b'{"a":"' + b'\\"' * 10_000_000,
        b"\\" * 20_000_000,
        b"1" * 20_000_000,
        b" " * 70_000_000 + b"{}",
    ],
    ids=lambda given: f"{given[:8]!r}…",
)
def test_bombs_do_not_go_off(file: Path, bomb: bytes) -> None:
    file.write_bytes(file.read_bytes() + bomb + b"\n")
    started = time.process_time()
    with pytest.raises(InputError) as error:
        open_bank().import_jsonl(file)
    assert len(str(error.value)) < len(str(file)) + 300
    assert time.process_time() - started < 10


def test_brackets_in_texts_are_no_depth(tmp_path: Path) -> None:
    bank = open_bank()
    text = "[{" * 500 + '\\"[' + "\\" * 3 + '"'
    bank.append(
        a_task(env_args={"ends": "in \\", text: text}),
        a_rollout(action=text),
        Verdict(label="success", reasons=text),
        [],
    )
    data = exported(bank, tmp_path / "a.jsonl")
    other = open_bank()
    other.import_jsonl(tmp_path / "a.jsonl")
    assert exported(other, tmp_path / "b.jsonl") == data


# Where the file goes


def test_a_lesson_that_says_nothing_is_named_and_not_written(tmp_path: Path) -> None:
    bank = open_bank()
    add(bank, "fine")
    try:
        made = bank.append(a_task(), a_rollout(), Verdict(label="success"), [MemoryDraft(title="x", content="")])
    except InputError:
        return  # a bank that admits none has none to write
    with pytest.raises(InputError, match=f"item {made.items[0].id}: no content"):
        bank.export_jsonl(tmp_path / "a.jsonl")
    bank.delete(made.items[0].id)
    assert bank.export_jsonl(tmp_path / "a.jsonl") == 2


class _Breaks:
    """A store whose second page cannot be read."""

    def __init__(self, bank: MemoryBank) -> None:
        self._store: Any = bank._store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def experiences(self, scope: str, *, after: int, limit: int, at: int | None = None) -> list[Experience]:
        if after:
            raise StorageError("the disk is gone")
        return list(self._store.experiences(scope, after=after, limit=1, at=at))


def test_an_export_that_breaks_leaves_what_was_there(tmp_path: Path) -> None:
    from rb_dspy.bank import portability

    (tmp_path / "a.jsonl").write_text("as before")
    with pytest.raises(StorageError, match="the disk is gone"):
        portability.write(cast(BankStore, _Breaks(filled())), "s", tmp_path / "a.jsonl")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.jsonl", "as before")]


def test_an_export_replaces_a_file_keeps_its_mode_and_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "a.jsonl"
    target.write_text("old")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to(target)
    filled().export_jsonl(str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert lines(target)[0]["experiences"] == 3
    assert [file.name for file in target.parent.iterdir()] == ["a.jsonl"]


def test_an_open_bank_is_neither_written_over_nor_read_as_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor opened: closing it would drop the locks that SQLite holds on it for this process."""
    (tmp_path / "link").symlink_to(tmp_path / "bank.sqlite")
    with open_bank(tmp_path / "bank.sqlite") as bank:
        add(bank, "t1")
        before = {file.name: file.stat().st_ino for file in tmp_path.iterdir()}
        opened: list[str] = []
        real = Path.open
        monkeypatch.setattr(Path, "open", lambda path, *given: opened.append(path.name) or real(path, *given))
        for name in ("bank.sqlite", "bank.sqlite-wal", "bank.sqlite-shm", "bank.sqlite.lock", "link"):
            with pytest.raises(InputError, match="perhaps a bank"):
                bank.export_jsonl(tmp_path / name)
            with pytest.raises(InputError, match="perhaps a bank"):
                bank.import_jsonl(tmp_path / name)
        assert opened == []
        assert {file.name: file.stat().st_ino for file in tmp_path.iterdir()} == before


def test_places_that_cannot_hold_an_export_are_refused(tmp_path: Path) -> None:
    bank = filled()
    (tmp_path / "bank.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    os.mkfifo(tmp_path / "pipe")
    places: list[tuple[Path | str, str]] = [
        (tmp_path, "a folder"),
        (tmp_path / "none" / "a.jsonl", "no such folder"),
        (tmp_path / "bank.sqlite", "a database, perhaps a bank"),
        (tmp_path / "bank.sqlite-wal", "a database, perhaps a bank"),
        (tmp_path / "pipe", "a pipe"),
        ("a\0b", "NUL"),
    ]
    for place, message in places:
        with pytest.raises(InputError, match=message):
            bank.export_jsonl(place)
    with pytest.raises(RBError):
        bank.export_jsonl(tmp_path / ("x" * 300))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bank.sqlite", "pipe"]


def test_a_damaged_item_does_not_keep_the_rest_from_leaving(tmp_path: Path) -> None:
    with filled(tmp_path / "bank.sqlite") as bank:
        shared = bank.experiences()[0].items[0]
        assert len(shared.provenances) == 2
    with sqlite3.connect(tmp_path / "bank.sqlite") as connection:
        first = "SELECT min(rowid) FROM items WHERE id = ?"
        connection.execute(f"UPDATE items SET content = 'x' WHERE rowid = ({first})", [shared.id])
    connection.close()
    with open_bank(tmp_path / "bank.sqlite") as bank:
        bank.export_jsonl(tmp_path / "a.jsonl")
    other = open_bank()
    assert len(other.import_jsonl(tmp_path / "a.jsonl")) == 3
    assert [p.task_id for item in other.items() if item.id == shared.id for p in item.provenances] == ["t3"]


class _Counted:
    """A store whose pages are counted."""

    def __init__(self, bank: MemoryBank) -> None:
        self._store: Any = bank._store
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def experiences(self, scope: str, **given: Any) -> list[Experience]:
        self.pages += 1
        assert self.pages < 10
        return list(self._store.experiences(scope, **given))


def run(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_numbers_that_nothing_has_are_not_paged_through(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank.sqlite") as bank:
        ids = some(bank, 1001)
        bank.delete(ids[3])
    run(tmp_path / "bank.sqlite", f"UPDATE scopes SET seq = {1 << 39}")
    with open_bank(tmp_path / "bank.sqlite") as bank:
        for kept in (bank, bank.fork()):
            counted = _Counted(kept)
            found = experiences(cast(BankStore, counted), "s")
            assert [experience.id for experience in found] == [id for id in ids if id != ids[3]]
            assert counted.pages <= 4
        assert bank.export_jsonl(tmp_path / "a.jsonl") == 1000


@pytest.mark.parametrize(
    "sound", [{1200}, {1, 1200}, {500, 501}, {499, 1001, 1003}, set()], ids=lambda sound: f"{sorted(sound)}"
)
def test_damaged_pages_do_not_end_the_list(tmp_path: Path, sound: set[int]) -> None:
    with open_bank(tmp_path / "bank.sqlite") as bank:
        ids = some(bank, 1200)
    named = ",".join(map(str, sound))
    run(tmp_path / "bank.sqlite", f"UPDATE experiences SET payload = x'00' WHERE key & 2047 NOT IN ({named})")
    with open_bank(tmp_path / "bank.sqlite") as bank:
        for kept in (bank, bank.fork()):
            assert [experience.id for experience in kept.experiences()] == [ids[n - 1] for n in sorted(sound)]
