"""The nearest, exactly; reading leaves no trace."""

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.schema import Verdict
from rb_dspy.testing.embedder import HashEmbedder
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


def test_a_task_is_searched_for_by_its_key_if_it_has_one(bank: MemoryBank) -> None:
    shirt = add(bank, "shirt", "a dirty shirt lies on the floor of the kitchen")
    game = add(bank, "game", "play the game and put everything where it belongs")
    task = a_task("new", "play the game and put everything where it belongs")
    assert bank.retrieve(task)[0].experience_id == game.id
    keyed = task.model_copy(update={"key": "a dirty shirt lies on the floor of the bedroom"})
    assert bank.retrieve(keyed)[0].experience_id == shirt.id


@pytest.mark.parametrize("how", ["append", "import", "fork", "reindex"])
@pytest.mark.parametrize("mode", ["dense", "lexical"])
def test_an_experience_is_found_by_the_key_of_its_task(tmp_path: Path, how: str, mode: Any) -> None:
    with open_bank() as first, open_bank() as second:
        bank = first
        for key in ("red apple orchard", "blue submarine cable"):
            task = a_task(key[:3], "Play the game.", key=key)
            bank.append(task, a_rollout(task.id), Verdict(label="success"), [a_draft(key)])
        if how == "import":
            first.export_jsonl(tmp_path / "x.jsonl")
            second.import_jsonl(tmp_path / "x.jsonl", own=True)
            bank = second
        elif how == "fork":
            bank = first.fork()
        elif how == "reindex":
            first.reindex(HashEmbedder(64))
        asked = a_task("new", "Play the game.", key="red apple orchard")
        assert [match.task_id for match in bank.retrieve(asked, mode=mode)] == ["red"]
        assert bank.experience_of("red").task.instruction == "Play the game."  # type: ignore[union-attr]


def test_experience_without_items_never_takes_a_place(bank: MemoryBank) -> None:
    kept = add(bank, "t1", "sort numbers downwards")
    for n in range(9):
        add(bank, f"empty{n}", "sort the numbers", lessons=0, label="unknown")
    assert [found.experience_id for found in bank.retrieve("sort the numbers", k=3)] == [kept.id]


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
    for number in range(9):
        bank.append(a_task(f"again{number}", "sort the numbers"), a_rollout(f"again{number}"), verdict, [echo])
    add(bank, "far", "find the cheapest phone in the shop")
    task = a_task("self", "sort the numbers")
    found = bank.retrieve(task, k=2, unit=unit)
    assert {match.task_id for match in found} == {"shown", "far"}
    assert [item.title for match in found for item in match.items if match.task_id == "shown"] == ["Sound"]
    assert [match.task_id for match in bank.retrieve(task, k=2, unit=unit, exclude_tasks={"shown"})] == ["far"]
    assert "Echo" in {item.title for match in bank.retrieve(task.instruction, k=2) for item in match.items}


def test_newest_first_among_equals(bank: MemoryBank) -> None:
    made = [add(bank, f"t{n}", "sort the numbers") for n in range(9)]
    far = add(bank, "far", "buy a lamp")
    assert [match.experience_id for match in bank.retrieve("sort the numbers", k=3)] == [e.id for e in made[:-4:-1]]
    assert bank.retrieve("sort the numbers", k=10)[-1].experience_id == far.id


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
        assert bank.retrieve("x", k=3) == []
        with open_bank(url) as other:
            add(other, "t2")
        assert bank.retrieve("x", k=0) == []
        with pytest.raises(AssertionError):
            bank.retrieve("x")


def test_odd_queries(bank: MemoryBank) -> None:
    add(bank)
    for query in ("", " ", "\0", "\ud800", "🙂", "word " * 50_000):
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
        assert len(bank) == 2


def test_more_rows_than_one_read_gives(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rb_dspy.bank.store.sql._INDEX_PAGE", 3)
    monkeypatch.setattr("rb_dspy.bank.reading._PAGE", 3)
    made = [add(bank, f"t{n}", f"task number {n}", lessons=2) for n in range(8)]
    assert len(bank.retrieve("task", k=99)) == 8
    assert len(bank.retrieve("task", k=99, unit="item")) == 16
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


LANGUAGES = {
    "退款限额 超过100欧元的退款需要经理批准。": ("经理批准", "客户要求退款", "退"),
    "返金の上限 100ユーロを超える返金にはマネージャーの承認が必要です。": ("マネージャー", "返金を承認する", "金"),
    "환불 한도 100유로를 넘는 환불은 관리자의 승인이 필요합니다.": ("관리자가 승인", "환불하려면"),
    "วงเงินคืน การคืนเงินเกิน 100 ยูโรต้องให้ผู้จัดการอนุมัติ": ("ผู้จัดการ", "ขอคืนเงิน"),
    "Лимит возврата: возвраты свыше 100 евро одобряет менеджер.": ("менеджер",),
    "Refund limit: refunds above 100 EUR need a manager's café.": ("refund", "the MANAGER"),
}
"""Lessons, and queries that find each of them first."""


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_words_are_found_in_texts_without_spaces(bank: MemoryBank, mode: Any) -> None:
    for text in LANGUAGES:
        bank.add(text.split()[0], text)
        bank.add(f"{text[0]}-{text[-1]}", "".join(reversed(text)))  # the same characters in another order
    for text, queries in LANGUAGES.items():
        for query in queries if mode == "lexical" else queries[:1]:
            found = bank.retrieve(query, k=3, unit="item", mode=mode)
            assert text in [match.items[0].content for match in found[: 2 if len(query) == 1 else 1]], query


def test_words_of_another_scope_weigh_nothing(url: str | Path) -> None:
    """BM25 counts how rare a word is: counted over all scopes, a score would tell what the others hold."""

    def scores(bank: MemoryBank) -> list[float]:
        return [match.score for match in bank.retrieve("buy a lamp", k=9, mode="lexical")]

    with open_bank(url, "one") as one, open_bank(url, "two") as two:
        for n in range(5):
            add(one, f"t{n}", "buy a lamp" if n % 2 else "sort the numbers")
        before = scores(one)
        for n in range(9):
            add(two, f"t{n}", "buy a lamp")
        assert scores(one) == before


@pytest.mark.parametrize(
    "wrong",
    [
        *({"k": wrong} for wrong in (-1, 1.5, None, "3")),
        *({"min_score": wrong} for wrong in ("0.5", [0.5])),
        *({"exclude_tasks": wrong} for wrong in (None, 3)),
        {"min_score": float("nan")},
        {"min_score": 2},
        {"min_score": 0.5, "mode": "hybrid"},
        {"exclude_tasks": "t1"},
        *({"kinds": wrong} for wrong in ("bullet", 3, [3])),
        {"unit": "items"},
        {"mode": "both"},
        {"polarity": "unknown"},
    ],
    ids=str,
)
def test_an_argument_that_means_nothing_is_refused_in_one_line(wrong: dict[str, Any]) -> None:
    bank = open_bank()
    for query in ("sort the numbers", a_task("self")):
        with pytest.raises(InputError, match=f"^{next(iter(wrong))} ") as error:
            bank.retrieve(query, **wrong)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("call", ["retrieve", "get", "delete", "rollback", "history", "purge", "learned", "edit"])
def test_what_is_no_text_is_refused_in_one_line(call: str) -> None:
    with open_bank() as bank:
        add(bank)
        for wrong in (None, 3, ["t1"]):
            with pytest.raises(InputError, match="expected a text") as error:
                getattr(bank, call)(wrong)
            assert "\n" not in str(error.value)
        assert len(bank.retrieve("sort", k=np.int64(1), min_score=np.float32(-1))) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_any_collection_of_tasks_and_any_number(bank: MemoryBank, mode: Any) -> None:
    made = [add(bank, f"t{n}", f"sort the numbers {n}") for n in range(3)]
    for tasks, k in ((["t0"], 9), ({"t0": 1}.keys(), 2**63), (("t0", "t0"), 10**40)):
        found = bank.retrieve("sort the numbers", k=k, mode=mode, exclude_tasks=tasks)
        assert {match.experience_id for match in found} == {experience.id for experience in made[1:]}
    assert bank.retrieve("sort", k=0, mode=mode) == []
