"""A scope shows nothing of another: no id, no score, no count, no gap in its numbers."""

from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import UnknownScope
from rb_dspy.schema import Verdict
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank


def test_a_small_scope_beside_a_large_one_gets_all_it_asks_for(url: str | Path) -> None:
    with open_bank(url, "large") as large:
        for n in range(10):
            drafts = [a_draft(f"Sort {m} of {n}") for m in range(20)]
            task = a_task(f"t{n}", "sort the numbers")
            large.append(task, a_rollout(f"t{n}"), Verdict(label="success"), drafts, run_id="r")
        assert len(large) == 200
    with open_bank(url, "small") as small, open_bank() as alone:
        for n in range(10):
            add(small, f"s{n}", f"walk dog number {n}")
            add(alone, f"s{n}", f"walk dog number {n}")
        for k in (1, 5, 10):
            for unit in ("experience", "item"):
                found, expected = (bank.retrieve("sort 3 numbers", k=k, unit=unit) for bank in (small, alone))  # type: ignore[arg-type]
                assert [match.task_id for match in found] == [match.task_id for match in expected]
                assert [match.score for match in found] == pytest.approx([match.score for match in expected], abs=1e-4)


def test_unknown_scope_names_the_known(url: str | Path) -> None:
    for scope in ("customers", "internal"):
        open_bank(url, scope).close()
    expected = r"no scope 'costumers'; did you mean 'customers'\? known: customers, internal"
    with pytest.raises(UnknownScope, match=expected):
        open_bank(url, "costumers", create=False)
    with open_bank(url, "internal", create=False) as bank:
        assert bank.scopes() == ["customers", "internal"]


def test_shown_lessons_of_another_scope_leave_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    with open_bank() as theirs, MemoryBank.open(None, scope="own", embedder=HashEmbedder()) as own:
        shown = add(theirs, "t1", lessons=2).items
        mine = add(own, "t1", lessons=1).items
        learned = own.append(a_task("t2"), a_rollout("t2"), Verdict(label="success"), [], shown=[*shown, *mine])
        assert learned.shown == tuple(item.id for item in mine)
        own.record(a_task("t3"), a_rollout("t3"), shown=shown)
        assert own.pending()[0].shown == ()
    assert [record.getMessage() for record in caplog.records] == [
        "scope 'own': 2 shown lessons or experiences of other scopes are not noted"
    ] * 2
