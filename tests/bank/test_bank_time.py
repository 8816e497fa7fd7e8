"""Forks, snapshots, and states of the past."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError, StorageError
from rb_dspy.schema import Verdict
from tests.bank.helpers import a_draft, add, open_bank

VERDICT = Verdict(label="success", reasons="seen")


def _state(bank: MemoryBank) -> tuple[object, ...]:
    found = [(hit.score, hit.experience_id) for hit in bank.retrieve("sort the numbers", k=50)]
    lessons = [(hit.score, hit.items) for hit in bank.retrieve("read the page", k=50, unit="item")]
    return bank.items(), bank.experiences(), len(bank), bank.seen_tasks(), found, lessons


def test_a_fork_and_its_bank_do_not_see_each_other(url: str | Path) -> None:
    with open_bank(url) as bank:
        add(bank, "t1", lessons=2)
        before = _state(bank)
        fork = bank.fork()
        add(bank, "t2")
        assert _state(fork) == before
        after = _state(bank)
        add(fork, "t3")
        fork.delete(fork.items()[0].id)
        fork.edit(fork.items()[0].id, content="Otherwise.")
        fork.rollback("run:r", dry_run=True)
        assert _state(bank) == after
        assert sorted(item.content for item in fork.items()) == ["Otherwise.", a_draft().content]
        assert fork.seen_tasks() == {"t1", "t3"}


def test_a_fork_answers_as_a_bank_of_the_same_content(url: str | Path) -> None:
    with open_bank(url) as bank, open_bank() as whole:
        for n in range(12):
            add(bank, f"t{n}", f"sort {n} numbers", lessons=2)
            add(whole, f"t{n}", f"sort {n} numbers", lessons=2)
        fork = bank.fork()
        for n in range(12, 24):
            add(fork, f"t{n}", f"sort {n} numbers", lessons=2)
            add(whole, f"t{n}", f"sort {n} numbers", lessons=2)
        for gone in (whole.items()[3].id, whole.items()[30].id):
            fork.delete(gone)
            whole.delete(gone)
        for unit in ("experience", "item"):
            for mode in ("dense", "lexical", "hybrid"):
                asked = {"k": 7, "unit": unit, "mode": mode, "exclude_tasks": ["t5"], "polarity": "success"}
                found, expected = (each.retrieve("sort 13 numbers", **asked) for each in (fork, whole))  # type: ignore[arg-type]
                assert len(found) == len(expected)
                if mode == "dense":  # how rare a word is, is counted in the fork and below it by itself
                    assert found == expected


def test_a_thousand_forks_at_once() -> None:
    with open_bank() as bank:
        add(bank)
        forks = [bank.fork() for _ in range(1000)]
        for number, fork in enumerate(forks[::100]):
            add(fork, f"own{number}")
        assert [len(fork) for fork in forks[::100]] == [2] * 10
        assert {len(fork) for fork in (bank, *forks[1::100])} == {1}


def test_forks_are_used_from_threads_while_their_bank_goes_on(url: str | Path) -> None:
    with open_bank(url) as bank:
        for n in range(10):
            add(bank, f"t{n}")
        forks = [bank.fork() for _ in range(4)]
        wrong: list[object] = []

        def use(fork: MemoryBank, name: int) -> None:
            for n in range(5):
                add(fork, f"f{name}/{n}")
                found = fork.retrieve("sort the numbers", k=100, unit="item")
                if len(found) != 11 + n:
                    wrong.append((name, n, len(found)))

        threads = [threading.Thread(target=use, args=(fork, name)) for name, fork in enumerate(forks)]
        for thread in threads:
            thread.start()
        for n in range(10, 15):
            add(bank, f"t{n}")
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(bank) == 15


def test_a_fork_ends_with_its_bank(url: str | Path) -> None:
    bank = open_bank(url)
    add(bank)
    fork = bank.fork()
    bank.close()
    with pytest.raises(StorageError):
        fork.retrieve("sort")


def test_a_snapshot_is_found_again_exactly(url: str | Path) -> None:
    with open_bank(url) as bank:
        for task in ("t1", "t2", "t3"):
            add(bank, task, lessons=2)
        bank.delete(bank.items()[0].id)
        before = _state(bank)
        made = bank.snapshot("before the night")
        add(bank, "t4")
        bank.edit(bank.items()[0].id, title="Changed")
        bank.rollback("run:r")
        assert bank.snapshots() == [made]
    with open_bank(url, at="before the night") as then:
        assert _state(then) == before
        for write in (
            lambda: add(then, "t5"),
            lambda: then.delete(then.items()[0].id),
            lambda: then.snapshot("another"),
        ):
            with pytest.raises(StorageError, match="snapshot"):
                write()
        fork = then.fork()
        add(fork, "t5")
        assert len(fork) == len(then) + 1
    with open_bank(url, at=made.seq) as then:
        assert _state(then) == before
    with open_bank(url, at=0) as nothing:
        assert (len(nothing), nothing.retrieve("sort", k=3)) == (0, [])
    with open_bank(url) as bank:
        assert len(bank) == 0


def test_a_snapshot_s_name_is_for_one_state(url: str | Path) -> None:
    with open_bank(url) as bank:
        add(bank, "t1")
        first = bank.snapshot("one")
        assert bank.snapshot("one") == first
        add(bank, "t2")
        with pytest.raises(InputError, match="one"):
            bank.snapshot("one")
        second = bank.snapshot("two")
        assert second.seq > first.seq
        assert second.digest != first.digest
    with pytest.raises(InputError, match=r"no snapshot 'tow'; did you mean 'two'\?"):
        open_bank(url, at="tow")
    for number in (99, -1):
        with pytest.raises(InputError, match=rf"no state {number} of scope 's'; expected 0 to \d+$"):
            open_bank(url, at=number)


def test_equal_histories_have_equal_digests(url: str | Path) -> None:
    digests = set()
    with open_bank(url) as one, open_bank() as two:
        for bank in (one, two):
            add(bank, "t1")
    with open_bank(url) as one:
        fork = one.fork()
        assert one.snapshot("now").digest == fork.snapshot("then").digest
        digests.add(one.snapshot("now").digest)
        add(one, "t2")
        digests.add(one.snapshot("later").digest)
    assert len(digests) == 2


def test_no_state_is_in_the_middle_of_a_write(url: str | Path) -> None:
    with open_bank(url) as bank:
        first = add(bank, "t1", lessons=3)
        bank.edit(first.items[0].id, title="Changed")
        edit = bank.history(first.items[0].id)[-1]
        add(bank, "t2")
        assert bank.fork().snapshot("now").seq == bank.snapshot("now").seq
    for at in range(first.seq, first.seq + 4):
        with open_bank(url, at=at) as then:
            assert (len(then), len(then.experiences()[0].items)) == (3, 3)
    with open_bank(url, at=edit.seq) as then:
        assert "Changed" in {item.title for item in then.items()}
        assert len(then) == 3
