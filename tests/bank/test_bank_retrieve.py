"""The nearest, exactly; reading leaves no trace."""

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.schema import ExperienceDraft, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, finish, open_bank, start


def test_experiences_are_found_by_their_task(bank: MemoryBank) -> None:
    add(bank, "sort", "sort the list of numbers in ascending order", lessons=2)
    phone = add(bank, "phone", "find the cheapest phone in the shop", lessons=3)
    (found,) = bank.retrieve("find the cheapest laptop in the shop")
    assert (found.experience_id, found.task_id, found.instruction) == (phone.id, "phone", phone.task.instruction)
    assert found.items == phone.items
    assert 0.4 < found.score < 1
    scores = [match.score for match in bank.retrieve("find the cheapest laptop in the shop", k=5)]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert bank.retrieve("find the cheapest phone in the shop")[0].score == pytest.approx(1.0)


def test_items_are_found_by_their_own_text(bank: MemoryBank) -> None:
    drafts = [
        a_draft("Use the search box", "Typing into search beats clicking through categories."),
        a_draft("Check totals", "Add the numbers again before the final answer."),
    ]
    made = bank.append(a_task("a", "buy a lamp"), a_rollout("a"), Verdict(label="success"), drafts)
    add(bank, "b", "add the numbers again before the final answer", lessons=1)
    (found,) = bank.retrieve("add the numbers again before the final answer", unit="item")
    assert found.items == made.items[1:]
    assert (found.task_id, found.experience_id, found.instruction) == ("a", made.id, "buy a lamp")
    assert len(bank.retrieve("anything", k=np.int64(9), unit="item")) == 3


def test_experience_without_items_never_takes_a_place(bank: MemoryBank) -> None:
    kept = add(bank, "t1", "sort numbers downwards")
    for n in range(20):
        add(bank, f"empty{n}", "sort the numbers", lessons=0, label="unknown")
    assert [found.experience_id for found in bank.retrieve("sort the numbers", k=3)] == [kept.id]
    assert len(bank.experiences()) == 21


def test_the_task_itself_can_be_excluded(bank: MemoryBank) -> None:
    for run in range(5):
        add(bank, "self", "sort the numbers", run_id=f"r{run}")
    other = add(bank, "other", "sort the words")
    assert bank.retrieve("sort the numbers")[0].task_id == "self"
    for unit in ("experience", "item"):
        found = bank.retrieve("sort the numbers", k=3, unit=unit, exclude_tasks={"self", "absent"})  # type: ignore[arg-type]
        assert [match.experience_id for match in found] == [other.id]
    assert bank.retrieve("sort the numbers", k=3, exclude_tasks=("self", "other")) == []


@pytest.mark.parametrize("unit", ["experience", "item"])
def test_a_task_finds_nothing_that_it_taught_first(bank: MemoryBank, unit: Any) -> None:
    echo, sound = a_draft("Echo", "The answer is 7."), a_draft("Sound", "Sort a copy, not the list.")
    verdict = Verdict(label="success")
    bank.append(a_task("self", "sort the numbers"), a_rollout("self"), verdict, [echo])
    bank.append(a_task("shown", "sort the numbers"), a_rollout("shown"), verdict, [echo, sound])
    for number in range(40):
        bank.append(a_task(f"again{number}", "sort the numbers"), a_rollout(f"again{number}"), verdict, [echo])
    add(bank, "far", "find the cheapest phone in the shop")
    task = a_task("self", "sort the numbers")
    found = bank.retrieve(task, k=2, unit=unit)
    assert {match.task_id for match in found} == {"shown", "far"}
    assert [item.title for match in found for item in match.items if match.task_id == "shown"] == ["Sound"]
    assert [match.task_id for match in bank.retrieve(task, k=2, unit=unit, exclude_tasks={"shown"})] == ["far"]
    assert "Echo" in {item.title for match in bank.retrieve(task.instruction, k=2) for item in match.items}


def test_a_task_changes_nothing_of_what_is_refused(bank: MemoryBank) -> None:
    add(bank, "t", "sort the numbers")
    for wrong in ({"k": -1}, {"k": "2"}, {"exclude_tasks": "t"}, {"exclude_tasks": [5]}, {"exclude_tasks": None}):
        with pytest.raises(InputError, match=f"^{next(iter(wrong))} .*: expected"):
            bank.retrieve(a_task("self", "sort"), **wrong)
    with pytest.raises(InputError, match=r"^query of type int: expected text, or a Task$"):
        bank.retrieve(5)  # type: ignore[arg-type]
    assert bank.retrieve(a_task("self", "sort"), k=0) == []


def test_newest_first_among_equals(bank: MemoryBank) -> None:
    made = [add(bank, f"t{n}", "sort the numbers") for n in range(50)]
    far = add(bank, "far", "buy a lamp")
    assert [match.experience_id for match in bank.retrieve("sort the numbers", k=3)] == [e.id for e in made[:-4:-1]]
    assert bank.retrieve("sort the numbers", k=51)[-1].experience_id == far.id


def test_min_score(bank: MemoryBank) -> None:
    add(bank, "same", "sort the numbers")
    add(bank, "far", "buy a lamp")
    assert [match.task_id for match in bank.retrieve("sort the numbers", k=5, min_score=1.0)] == ["same"]
    assert len(bank.retrieve("sort the numbers", k=5, min_score=-1.0)) == 2
    assert bank.retrieve("walk the dog", k=5, min_score=0.99) == []


class Forbidden:
    id = "hash-64"
    dimension = 64

    def embed(self, texts: list[str]) -> np.ndarray:
        raise AssertionError("embedded")


def test_nothing_is_embedded_for_nothing(url: str | Path) -> None:
    with open_bank(url, embedder=Forbidden()) as bank:
        assert bank.retrieve("x") == []
        add(bank, "t", lessons=0)
        assert bank.retrieve("x", k=3) == []
        with open_bank(url) as other:
            add(other, "t2")
        assert bank.retrieve("x", k=0) == []
        with pytest.raises(AssertionError):
            bank.retrieve("x")


def test_bad_arguments() -> None:
    bank = open_bank()
    for arguments in ({"k": -1}, {"unit": "step"}, {"exclude_tasks": "t1"}):
        with pytest.raises(InputError):
            bank.retrieve("x", **arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        bank.retrieve(None)  # type: ignore[arg-type]


def test_odd_queries(bank: MemoryBank) -> None:
    add(bank)
    for query in ("", " ", "\0", "\ud800", "🙂", "word " * 500_000):
        assert len(bank.retrieve(query, k=100_000)) == 1


def test_retrieve_never_writes(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        for n in range(30):
            add(bank, f"t{n}", f"task number {n}")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    version = sqlite3.connect(path)
    seen = version.execute("PRAGMA data_version").fetchone()
    with open_bank(path) as bank:  # create=True, and still nothing to write
        for unit in ("experience", "item"):
            assert len(bank.retrieve("task number 7", k=5, unit=unit)) == 5  # type: ignore[arg-type]
        bank.stats()
        bank.experiences()
        assert version.execute("PRAGMA data_version").fetchone() == seen
    version.close()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


ADDS = """
import sys, tests.bank.helpers as h
with h.open_bank(sys.argv[1]) as bank:
    h.add(bank, sys.argv[2], "buy a lamp")
"""


def test_appends_of_another_process_are_found(url: str | Path) -> None:
    with open_bank(url) as bank:
        add(bank, "mine", "sort the numbers")
        assert len(bank.retrieve("x", k=9)) == 1
        open_bank(url).close()  # must not drop the locks that this process holds through `bank`
        finish(start(ADDS, str(url), "theirs"))
        assert [match.task_id for match in bank.retrieve("buy a lamp", k=9)] == ["theirs", "mine"]
        add(bank, "mine too", "walk the dog")
        finish(start(ADDS, str(url), "theirs too"))
        assert len(bank) == 4
        assert len(bank.retrieve("x", k=9)) == 4


def test_more_rows_than_one_read_gives(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rb_dspy.bank.store.sql._INDEX_PAGE", 7)
    monkeypatch.setattr("rb_dspy.bank.store.sql._PAGE", 7)
    monkeypatch.setattr("rb_dspy.bank.reading._PAGE", 7)
    made = [add(bank, f"t{n}", f"task number {n}", lessons=2) for n in range(30)]
    assert len(bank.retrieve("task", k=99)) == 30
    assert len(bank.retrieve("task", k=99, unit="item")) == 60
    assert bank.experiences() == made


@pytest.mark.parametrize("unit", ["experience", "item"])
@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_words_find_what_shares_them(bank: MemoryBank, unit: Any, mode: Any) -> None:
    for task, text in {"a": "sort the numbers", "b": "buy a lamp", "c": "walk the dog"}.items():
        draft = a_draft(text.title(), f"To {text}, begin at once.")
        bank.append(a_task(task, text), a_rollout(task), Verdict(label="success"), [draft])
    found = bank.retrieve('a LAMP, please: "NOT" AND * (', k=2, unit=unit, mode=mode)
    assert found[0].task_id == "b"
    assert all(match.score > 0 for match in found)
    assert bank.retrieve("lamp", k=2, unit=unit, mode="lexical", exclude_tasks=["b"]) == []
    assert bank.retrieve("zebra", unit=unit, mode="lexical") == []
    bank.append(a_task("d", "buy a lamp again"), a_rollout("d"), Verdict(label="success"), [a_draft("Lamp")])
    assert {match.task_id for match in bank.retrieve("lamp", k=9, unit=unit, mode="lexical")} == {"b", "d"}


def test_words_of_another_scope_weigh_nothing(url: str | Path) -> None:
    """BM25 counts how rare a word is: counted over all scopes, a score would tell what the others hold."""

    def scores(bank: MemoryBank) -> list[float]:
        return [match.score for match in bank.retrieve("buy a lamp", k=9, mode="lexical")]

    with open_bank(url, "one") as one, open_bank(url, "two") as two:
        for n in range(5):
            add(one, f"t{n}", "buy a lamp" if n % 2 else "sort the numbers")
        before = scores(one)
        for n in range(50):
            add(two, f"t{n}", "buy a lamp")
        assert scores(one) == before


def test_min_score_is_for_cosines() -> None:
    with pytest.raises(InputError, match="min_score is a cosine"):
        open_bank().retrieve("x", min_score=0.5, mode="hybrid")
    with pytest.raises(InputError, match="mode 'both'"):
        open_bank().retrieve("x", mode="both")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"k": k} for k in (2.5, "3", None, True, -1, float("nan"))),
        *({"min_score": score} for score in ("0.5", float("nan"), float("inf"), True, 2, -(10**5000), [0.5])),
        *({"exclude_tasks": tasks} for tasks in (None, [5], "t1", 5, [None], [b"t1"], ["t1", 5])),
        *({"query": query} for query in (None, b"x", 5, ["x"])),
        *({"unit": unit} for unit in (None, ["item"], "items")),
        *({"mode": mode} for mode in (None, ["dense"], "")),
        *({"polarity": polarity} for polarity in ("unknown", True, ["success"])),
    ],
    ids=lambda wrong: "-".join(f"{name} {value!r:.20}" for name, value in wrong.items() if value != -(10**5000)),
)
def test_what_is_no_argument_is_refused_in_one_line(wrong: dict[str, Any]) -> None:
    bank = open_bank()
    add(bank)
    for target in (bank, open_bank()):
        with pytest.raises(InputError) as error:
            target.retrieve(**{"query": "sort the numbers"} | wrong)
        assert next(iter(wrong)) in str(error.value)
        assert len(str(error.value)) < 200
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_any_collection_of_tasks_and_any_number(bank: MemoryBank, mode: Any) -> None:
    made = [add(bank, f"t{n}", f"sort the numbers {n}") for n in range(3)]
    for tasks in (["t0"], {"t0"}, ("t0", "t0"), frozenset(["t0"]), {"t0": 1}.keys()):
        for k in (9, 2**63, 10**40):
            found = bank.retrieve("sort the numbers", k=k, mode=mode, exclude_tasks=tasks)
            assert {match.experience_id for match in found} == {experience.id for experience in made[1:]}
    assert bank.retrieve("sort", k=0, mode=mode) == []
    if mode == "dense":
        for score in (-1, 0, 0.0, np.float32(0.1), np.float64(0.1)):
            assert len(bank.retrieve("sort the numbers", k=9, min_score=score)) == 3  # type: ignore[arg-type]


@pytest.mark.stress
def test_a_small_scope_beside_a_large_one_answers_in_full(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path, "small") as small, open_bank(path, "large") as large:
        for n in range(10):
            add(small, f"t{n}", f"task number {n}")
        drafts = (
            ExperienceDraft(
                task=a_task(f"t{n}", f"task number {n}"),
                trajectories=(a_rollout(f"t{n}"),),
                verdicts=(Verdict(label="success"),),
                drafts=(a_draft(f"Lesson {n}"),),
                run_id="r",
            )
            for n in range(20_000)
        )
        assert len(large.append_many(drafts)) == 20_000
        for unit in ("item", "experience"):
            for mode in ("dense", "lexical", "hybrid"):
                found = small.retrieve("task number of the lesson", k=10, unit=unit, mode=mode)  # type: ignore[arg-type]
                assert len({match.task_id for match in found}) == 10
                assert len(large.retrieve("task number of the lesson", k=10, unit=unit, mode=mode)) == 10  # type: ignore[arg-type]
        assert (len(small), len(large)) == (10, 20_000)


def test_a_notebook_shows_what_a_bank_holds() -> None:
    with open_bank() as bank:
        assert "0 items" in bank._repr_html_()
        for n in range(12):
            bank.add(f"Lesson <{n}>", "Read & act.")
        shown = bank._repr_html_()
        assert "12 items" in shown
        assert shown.index("Lesson &lt;11&gt;") < shown.index("Lesson &lt;2&gt;")
        assert "Lesson &lt;1&gt;" not in shown
        assert "Read &amp; act." in shown
