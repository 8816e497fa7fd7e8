"""What goes in is what comes out, once."""

import copy
import hashlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank import BankStats, MemoryBank
from rb_dspy.errors import InputError, StorageError
from rb_dspy.schema import (
    Experience,
    ExperienceDraft,
    Label,
    MemoryDraft,
    Step,
    Trajectory,
    Verdict,
)
from rb_dspy.text import normalize, without_invisible
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank


def test_append_gives_what_get_gives(bank: MemoryBank) -> None:
    task = a_task(env="shop", env_args={"page": [1, {"a": None}], "rate": 0.5}, domain="web", template="sort")
    verdict = Verdict(label="failure", reasons="wrong order", confidence=0.25)
    given = bank.append(task, a_rollout(), verdict, [a_draft()], run_id="r", distiller="lm", note="n")
    assert isinstance(given, Experience)
    assert bank.get(given.id) == given
    assert bank.experience_of("t1") == given
    assert bank.experiences() == [given]
    assert (given.task, given.trajectories, given.verdicts) == (task, (a_rollout(),), (verdict,))
    (item,) = given.items
    assert bank.get(item.id) == item
    assert bank.items() == [item]
    assert (item.title, item.description, item.content) == (a_draft().title, a_draft().description, a_draft().content)
    assert item.polarity == "failure"
    assert item.provenance.model_dump() == {
        "experience_id": given.id,
        "task_id": "t1",
        "polarity": "failure",
        "run_id": "r",
        "distiller": "lm",
        "origin": "",
    }
    assert (given.seq, item.seq, given.note, given.run_id) == (1, 2, "n", "r")


def test_an_item_is_named_by_its_visible_text(bank: MemoryBank) -> None:
    odd = [*map(chr, range(128)), "\\u0041", "\\b", '\\"', "é", "\u2028", "\u200b", "\U000e0041", "\U0001f600"]
    for place in range(3):
        texts = [["title", "description", "content"] for _ in odd]
        for number, one in enumerate(odd):
            texts[number][place] += f" {number} {one}."
        drafts = [MemoryDraft(title=title, description=when, content=what) for title, when, what in texts]
        given = bank.append(a_task(f"t{place}"), a_rollout(f"t{place}"), Verdict(label="success"), drafts)
        for item, text in zip(given.items, texts, strict=True):
            seen = [without_invisible(normalize(one)) for one in text]
            assert [item.title, item.description, item.content] == seen
            named = json.dumps(["item", *seen], separators=(",", ":")).encode()
            assert item.id == f"m{hashlib.sha256(named).hexdigest()[:20]}"
        assert bank.get(given.id) == given
    assert bank.doctor() == []


def test_reopened_bank_holds_the_same(tmp_path: Path) -> None:
    with open_bank(tmp_path / "deep" / "er" / "bank.sqlite") as bank:
        given = [add(bank, f"t{n}", lessons=n) for n in range(4)]
        found = bank.retrieve("sort the numbers", k=9)
    with open_bank(tmp_path / "deep" / "er" / "bank.sqlite", create=False) as bank:
        assert bank.experiences() == given
        assert bank.retrieve("sort the numbers", k=9) == found
        assert len(bank) == 6
    assert {file.name for file in (tmp_path / "deep" / "er").iterdir()} == {"bank.sqlite", "bank.sqlite.lock"}


def test_the_same_attempt_is_stored_once(bank: MemoryBank) -> None:
    first = add(bank, lessons=2, shown=())
    again = bank.append(
        a_task(instruction="other words"),
        a_rollout(action="another"),
        Verdict(label="failure"),
        [a_draft("Another lesson")],
        run_id="r",
        shown=first.items,
    )
    assert again == first
    assert bank.experiences() == [first]
    assert bank.stats().exposures == 0


def test_without_a_run_the_rollout_itself_is_the_attempt(bank: MemoryBank) -> None:
    first = add(bank, run_id="")
    assert add(bank, run_id="") == first
    other = bank.append(a_task(), a_rollout(action="scroll"), Verdict(label="success"), [a_draft()])
    assert bank.experiences() == [first, other]


def test_ids_depend_on_content_only() -> None:
    one, two = open_bank(), open_bank()
    add(one, "other")
    assert add(one).id == add(two).id
    assert [item.id for item in one.items()[1:]] == [item.id for item in two.items()]
    assert add(open_bank(scope="s2")).id == add(two).id


def test_several_rollouts(bank: MemoryBank) -> None:
    rollouts = [a_rollout(rollout_id=str(n), action=f"try {n}") for n in range(3)]
    verdicts = [Verdict(label="failure"), Verdict(label="success"), Verdict(label="unknown")]
    given = bank.append(a_task(), rollouts, verdicts, [a_draft()], run_id="r")
    assert bank.get(given.id) == given
    assert given.trajectories == tuple(rollouts)
    assert given.items[0].polarity == "success"
    assert bank.append(a_task(), rollouts[::-1], verdicts, [], run_id="r") == given
    assert bank.stats().by_verdict == {"success": 1}


@pytest.mark.parametrize(
    ("label", "asked", "stored"),
    [
        ("success", None, "success"),
        ("failure", None, "failure"),
        ("unknown", None, "failure"),
        ("failure", "success", "success"),
    ],
)
def test_polarity(bank: MemoryBank, label: str, asked: str | None, stored: str) -> None:
    assert add(bank, label=label, polarity=asked).items[0].polarity == stored


def test_a_draft_twice_is_one_item(bank: MemoryBank) -> None:
    given = bank.append(a_task(), a_rollout(), Verdict(label="success"), [a_draft(), a_draft("Other"), a_draft()])
    assert [item.title for item in given.items] == ["Read first", "Other"]
    assert len(bank) == 2


@pytest.mark.parametrize(
    ("rollouts", "verdicts", "words"),
    [
        ([], [], "at least one"),
        ([a_rollout()], [], "0 verdicts"),
        ([a_rollout("t2")], [Verdict(label="success")], "'t2'"),
        ([a_rollout(), a_rollout()], [Verdict(label="success")] * 2, "rollout ids"),
    ],
)
def test_parts_that_do_not_belong_together(
    bank: MemoryBank, rollouts: list[Trajectory], verdicts: list[Verdict], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        bank.append(a_task(), rollouts, verdicts, [a_draft()])
    assert bank.experiences() == []


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "a\0b", "a\u200bb", "\ud800"])
def test_names_must_be_visible(name: str) -> None:
    with pytest.raises(InputError, match="scope"):
        open_bank(scope=name)
    if name:
        with pytest.raises(InputError, match="run id"):
            add(open_bank(), run_id=name)


def test_what_was_shown_is_kept(bank: MemoryBank) -> None:
    items = add(bank, lessons=2).items
    second = add(bank, "t2", label="failure", lessons=0, shown=items)
    third = add(bank, "t3", label="unknown", lessons=0, shown=items[:1])
    assert bank.stats().exposures == 3
    assert second.shown == tuple(item.id for item in items)
    assert [experience.shown for experience in bank.experiences()] == [(), second.shown, third.shown]


def test_stats(bank: MemoryBank) -> None:
    assert bank.stats().items == 0
    add(bank, "t1", lessons=2, template="a")
    add(bank, "t2", lessons=1, template="a", label="failure")
    add(bank, "t3", lessons=0, label="unknown")
    stats = bank.stats()
    assert isinstance(stats, BankStats)
    size = stats.bytes_on_disk
    in_memory = "memory" in repr(bank) or "bank.sqlite@0" in repr(bank)
    assert (size > 20_000) == (not in_memory)
    assert stats.model_dump(exclude={"bytes_on_disk"}) == {
        "scope": "s",
        "items": 3,
        "experiences": 3,
        "experiences_with_items": 2,
        "by_polarity": {"success": 2, "failure": 1},
        "by_verdict": {"success": 1, "failure": 1, "unknown": 1},
        "by_template": {"a": 2},
        "exposures": 0,
        "pending": 0,
        "removed": 0,
        "embedder": "hash-64",
        "dimension": 64,
        "schema_version": 2,
    }


def test_the_newest_experience_of_a_task_in_a_run(bank: MemoryBank) -> None:
    first, second = add(bank, "t", run_id="one"), add(bank, "t", run_id="two", lessons=0)
    add(bank, "t", run_id="three")
    assert bank.experience_of("t", "one") == bank.get(first.id)
    assert bank.experience_of("t", "two") == second
    assert bank.experience_of("t", "nobody's") is None
    changed = bank.edit(first.items[0].id, content="Another text.")
    found = bank.experience_of("t", "one")
    assert found is not None
    assert found.id == first.id
    assert found.items == (changed,)
    bank.rollback("run:one")
    assert bank.experience_of("t", "one") is None


def test_looking_things_up(bank: MemoryBank) -> None:
    add(bank, "a/1", lessons=0)
    newest = add(bank, "a/2", run_id="r2")
    add(bank, "b_%", lessons=0)
    assert bank.seen_tasks() == {"a/1", "a/2", "b_%"}
    assert bank.seen_tasks("a/") == {"a/1", "a/2"}
    assert bank.seen_tasks("%") == set()
    assert bank.experience_of("a/2") == newest
    assert bank.experience_of("nope \ud800") is None
    for id in ("nope", "", "\ud800", "x" * 100_000):
        with pytest.raises(InputError, match="has no item or experience") as caught:
            bank.get(id)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300


NASTY = "naïve 日本 🙂 \0 \x1b[31m \u202e rtl \ud800 \r\n end"


def test_text_that_cannot_be_stored_is_made_storable(bank: MemoryBank) -> None:
    trajectory = Trajectory(
        task_id="t1",
        rollout_id=NASTY,
        first_observation=NASTY,
        steps=(Step(thought=NASTY, action=NASTY, observation=NASTY),),
        answer=NASTY,
    )
    draft = MemoryDraft.model_construct(title=NASTY, description=NASTY, content=NASTY)
    task = a_task(env_args={"raw": NASTY}, template=NASTY)
    given = bank.append(task, trajectory, Verdict(label="success", reasons=NASTY), [draft], distiller=NASTY, note=NASTY)
    assert bank.get(given.id) == given
    (item,) = given.items
    expected = "naïve 日本 🙂 \u2400 \u241b[31m \u202e rtl \ufffd \r\n end"
    assert (item.title, item.description, item.content, given.note) == (expected,) * 4
    assert given.task.env_args == {"raw": NASTY}
    assert bank.retrieve(NASTY, unit="item")[0].items == (item,)
    assert bank.retrieve(NASTY, exclude_tasks=[NASTY])
    bank.stats()


def test_ten_megabytes(url: str | Path) -> None:
    bank, text = open_bank(url), "0123456789" * 1_000_000
    draft = MemoryDraft.model_construct(title="long", description="long", content=text)
    given = bank.append(a_task(), a_rollout(observation=text), Verdict(label="success"), [draft])
    assert bank.get(given.id) == given
    assert bank.get(given.items[0].id).content == text  # type: ignore[union-attr]
    assert bank.retrieve(text)[0].experience_id == given.id
    bank.close()


def test_a_bank_is_a_handle() -> None:
    bank = open_bank(":memory:")
    add(bank)
    assert copy.copy(bank) is bank
    assert copy.deepcopy({"bank": bank})["bank"] is bank
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(bank)
    assert repr(bank) == "MemoryBank(':memory:', scope='s')"
    assert open_bank()
    assert len(open_bank()) == 0
    bank.close()
    bank.close()
    for use in (lambda: bank.retrieve("x"), bank.items, lambda: len(bank), lambda: add(bank)):
        with pytest.raises(StorageError, match="closed"):
            use()


def drafts(count: int) -> Iterator[ExperienceDraft]:
    for number in range(count):
        task = a_task(f"t{number}", f"solve {number}")
        more = {"trajectories": (a_rollout(task.id),), "verdicts": (Verdict(label="success"),), "run_id": "r"}
        yield ExperienceDraft(task=task, drafts=(a_draft(f"On {number}"),), **more)


def test_pages_that_were_stored_before_an_error_stay(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[ExperienceDraft]:
        yield from drafts(11)
        raise KeyError("the file ends here")

    monkeypatch.setattr("rb_dspy.bank.writing._BATCH", 5)
    with pytest.raises(KeyError):
        bank.append_many(broken())
    assert len(bank) == 10
    twice = [draft for draft in drafts(11) for _ in range(2)]
    assert bank.append_many(twice)[::2] == [experience.id for experience in bank.experiences()]
    assert bank.seen_tasks() == {f"t{number}" for number in range(11)}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((a_task("new"), "did it", Verdict(label="success"), []), "trajectories.0: "),
        ((a_task("new"), [{"role": "user"}], Verdict(label="success"), []), "trajectories.0.task_id: field required"),
        ((a_task("new"), a_rollout("new"), "success", []), "verdicts.0: "),
        ((a_task("new"), a_rollout("new"), Verdict(label="success"), ["text"]), "has no title"),
    ],
)
def test_parts_of_another_type_are_refused_in_one_line(parts: tuple[Any, ...], words: str) -> None:
    bank = open_bank()
    with pytest.raises(InputError, match=words) as caught:
        bank.append(*parts)
    assert "\n" not in str(caught.value)
    assert bank.experiences() == []


def test_a_lesson_written_by_hand_has_a_content_of_limited_length() -> None:
    for content, words in ((" ", "has no content"), ("x" * 5_000, "content has 5,000 characters")):
        with pytest.raises(InputError, match=words):
            open_bank().add("title", content)


def test_the_last_experiences_with_a_label(bank: MemoryBank) -> None:
    labels: list[Label] = ["success", "failure", "success", "unknown", "success"]
    for number, label in enumerate(labels):
        bank.append(a_task(f"t{number}"), a_rollout(f"t{number}"), Verdict(label=label), [])

    def found(*last: int, label: Label | None = None) -> list[str]:
        return [each.task.id for each in bank.experiences(*last, label=label)]

    assert found(2) == ["t3", "t4"]
    assert found(label="success") == ["t0", "t2", "t4"]
    assert found(2, label="success") == ["t2", "t4"]
    assert found(9, label="failure") == ["t1"]
    assert found(0) == []
