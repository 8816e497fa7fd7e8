"""A search, or a list, of items of some kinds only; and items that were learned from several tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience, ItemDraft, MemoryDraft, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, open_bank


def a_bullet(content: str, **data: Any) -> ItemDraft:
    return ItemDraft(title="bullet", description="", content=content, kind="bullet", data=data)


def learn(bank: MemoryBank, task: str, *drafts: MemoryDraft, **kwargs: Any) -> Experience:
    task_, verdict = a_task(task, f"sort numbers {task}"), Verdict(label="success")
    return bank.append(task_, a_rollout(task), verdict, drafts, **{"run_id": "r"} | kwargs)


def shown(bank: MemoryBank, kinds: Sequence[str] | None, k: int = 1, **kwargs: Any) -> list[str]:
    return [item.kind for match in bank.retrieve("sort numbers", k, kinds=kinds, **kwargs) for item in match.items]


@pytest.mark.parametrize("unit", ["item", "experience"])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("forked", [False, True], ids=["bank", "fork"])
def test_only_items_of_a_kind_are_returned(url: str | Path, unit: Any, mode: Any, forked: bool) -> None:
    with open_bank(url) as opened:
        for number in range(8):
            learn(opened, f"t{number}", a_draft("Sort numbers", f"Sort numbers {number}."))
        learn(opened, "far", a_bullet("numbers, and many other words of all sorts"), a_draft("Sort numbers", "twice"))
        bank = opened.fork() if forked else opened
        if forked:
            learn(bank, "own", a_bullet("numbers of the fork"))
        how = {"unit": unit, "mode": mode}
        assert shown(bank, ["bullet"], **how) == ["bullet"]
        assert shown(bank, {"bullet", "case"}, 99, **how) == ["bullet"] * (1 + forked)
        assert len(shown(bank, ["lesson"], 3, **how)) == 3
        assert (shown(bank, [], 9, **how), shown(bank, ["none"], 9, **how)) == ([], [])
        assert len(shown(bank, None, 99, **how)) == len(bank) == 10 + forked
        assert shown(bank, ["bullet"], 9, marks={"stale": "yes"}, **how) == []
        learn(bank, "last", retired={each.id: "not used" for each in bank.items(kinds=["bullet"])})
        assert shown(bank, ["bullet"], 9, **how) == []


def test_items_of_a_kind(bank: MemoryBank) -> None:
    lesson, bullet = learn(bank, "t1", a_draft(), a_bullet("One.")).items
    other = learn(bank, "t2", a_bullet("Two."), a_bullet("One.")).items[0]
    assert [item.id for item in bank.items(kinds=["bullet"])] == [bullet.id, other.id]
    assert bank.items([lesson.id, bullet.id], ["bullet"]) == bank.items([bullet.id])
    assert (bank.items(kinds=[]), len(bank.items(kinds={"bullet", "lesson"})), len(bank)) == ([], 3, 3)
    with pytest.raises(InputError, match="kinds"):
        bank.items(kinds="bullet")


@pytest.mark.parametrize("unit", ["item", "experience"])
def test_a_task_is_not_shown_an_item_that_was_learned_from_it_among_others(bank: MemoryBank, unit: Any) -> None:
    learn(bank, "t1", a_bullet("sort numbers"))
    learn(bank, "t3", a_bullet("sort numbers, merged", tasks=["t1", "t2"]))
    learn(bank, "t4", a_bullet("other words", tasks="t1", more=["t1"]))

    def found(task: str) -> list[str]:
        matches = bank.retrieve(a_task(task, "sort numbers"), 9, unit=unit)
        return sorted(item.content for match in matches for item in match.items)

    assert found("t1") == ["other words"]
    assert found("t2") == ["other words", "sort numbers"]
    assert found("t3") == ["other words", "sort numbers"]
    assert len(found("t5")) == 3
    for number in range(9):
        learn(bank, f"n{number}", a_bullet(f"sort numbers, {number}", tasks=["own", "t1"]))
    assert [match.items[0].content for match in bank.retrieve(a_task("own", "sort numbers"), 1, unit=unit)] != []


@pytest.mark.parametrize("unit", ["item", "experience"])
def test_a_known_task_is_not_shown_what_was_learned_from_all_tasks(bank: MemoryBank, unit: Any) -> None:
    first = learn(bank, "t1", a_bullet("sort numbers"))
    whole = learn(bank, "t2", a_bullet("sort all numbers", tasks="all")).items[0]

    def found(task: str) -> bool:
        matches = bank.retrieve(a_task(task, "sort numbers"), 9, unit=unit)
        assert bank.is_from(whole, task) != any(whole in match.items for match in matches)
        return any(whole in match.items for match in matches)

    assert [found(task) for task in ("t1", "t2", "t3")] == [False, False, True]
    bank.delete(first.id)  # which leaves what was written from it
    assert [found(task) for task in ("t1", "t3")] == [False, True]
