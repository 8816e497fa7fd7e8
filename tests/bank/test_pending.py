"""Rollouts that are recorded and not learned from yet: what survives, what is learned from once, what nobody sees."""

from __future__ import annotations

import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.store.base import PendingRow
from rb_dspy.errors import InputError
from rb_dspy.schema import ExperienceDraft, RoleUsage, Step, Trajectory, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank, start

SUCCESS = Verdict(label="success", reasons="seen")
HOSTILE = (
    "soft\xadhyphen zero\u200bwidth \u202eright-to-left\u202c nul\0 half \ud800 \u2028 line \x1b[31m '); DROP TABLE x"
)


def learn(bank: MemoryBank, *rollouts: Trajectory, task_id: str = "t1", run_id: str = "r", lesson: str = "One") -> str:
    verdicts = [SUCCESS] * len(rollouts)
    return bank.append(a_task(task_id), rollouts, verdicts, [a_draft(lesson)], run_id=run_id).id


def draft(number: int) -> ExperienceDraft:
    task, rollout = a_task(f"d{number}"), a_rollout(f"d{number}")
    return ExperienceDraft(task=task, trajectories=(rollout,), verdicts=(SUCCESS,), drafts=(a_draft(f"D{number}"),))


def pending_tasks(bank: MemoryBank, **asked: str) -> list[str]:
    return [pending.task.id for pending in bank.pending(**asked)]


# Recording


def test_a_recorded_rollout_comes_back_whole(bank: MemoryBank) -> None:
    item = add(bank, "t0").items[0]
    gone = add(bank, "gone").items[0]
    task = a_task(env="directory", env_args={"answer": ["4711", None, 1.5]}, template="x")
    used = a_rollout().model_copy(update={"usage": {"agent": RoleUsage(calls=2, prompt_tokens=7)}})
    bank.record(task, used, run_id="r2", shown=[item, gone])
    bank.delete(gone.id)
    (pending,) = bank.pending()
    assert (pending.task, pending.trajectories, pending.run_id) == (task, (used,), "r2")
    assert (pending.shown, pending.tries, pending.error) == ((item,), 0, "")
    assert pending.bank is bank
    assert "t1" not in bank.seen_tasks()
    assert bank.stats().pending == 1


def test_ground_truth_is_kept_until_it_is_learned(bank: MemoryBank) -> None:
    for number, reward in (("0", 0.25), ("1", 0.75), ("2", None)):
        bank.record(a_task(), a_rollout(rollout_id=number), run_id="r2", reward=reward)
    bank.record(a_task(), a_rollout(), run_id="r2", reward=1.0)  # the same again
    bank.record(a_task("t2"), a_rollout("t2"))
    assert [pending.reward for pending in bank.pending()] == [0.5, None]


def test_rollouts_of_one_task_and_run_wait_together_by_number(bank: MemoryBank) -> None:
    for number in ("10", "2", "b", "0"):
        bank.record(a_task(), a_rollout(rollout_id=number), run_id="r2")
    bank.record(a_task("t2"), a_rollout("t2"), run_id="r2")
    bank.record(a_task(), a_rollout(), run_id="r3")
    ids = [[each.rollout_id for each in pending.trajectories] for pending in bank.pending()]
    assert ids == [["0", "2", "10", "b"], ["0"], ["0"]]
    assert pending_tasks(bank, run_id="r2") == ["t1", "t2"]
    assert pending_tasks(bank, task_id="t1") == ["t1", "t1"]
    assert pending_tasks(bank, task_id="t1", run_id="r3") == ["t1"]
    assert pending_tasks(bank, run_id="none") == []


def test_without_a_run_each_rollout_waits_by_itself(bank: MemoryBank) -> None:
    for action in ("one", "two", "one"):  # the first and the last are the same rollout
        bank.record(a_task(), a_rollout(action=action))
    assert [pending.trajectories[0].steps[0].action for pending in bank.pending(run_id="")] == ["one", "two"]
    learn(bank, a_rollout(action="one"), run_id="")
    assert [pending.trajectories[0].steps[0].action for pending in bank.pending()] == ["two"]


def test_recording_again_changes_nothing(bank: MemoryBank) -> None:
    bank.record(a_task(), a_rollout(action="first"), run_id="r2")
    bank.record_failure(a_task(), "no judge", run_id="r2")
    bank.record(a_task(), a_rollout(action="second"), run_id="r2")
    (pending,) = bank.pending()
    assert (pending.trajectories, pending.tries) == ((a_rollout(action="first"),), 1)


def test_nothing_of_a_task_is_recorded_that_the_run_has_learned_from(bank: MemoryBank) -> None:
    learn(bank, a_rollout())
    learn(bank, a_rollout(), run_id="")
    bank.record(a_task(), a_rollout(rollout_id="7"), run_id="r")
    bank.record(a_task(), a_rollout())
    assert bank.pending() == []


@pytest.mark.parametrize("run_id", ["r", ""])
def test_what_was_learned_and_removed_is_not_recorded_again(bank: MemoryBank, run_id: str) -> None:
    bank.delete(learn(bank, a_rollout(), run_id=run_id))
    with pytest.raises(InputError):
        bank.record(a_task(), a_rollout(), run_id=run_id)
    with pytest.raises(InputError):
        learn(bank, a_rollout(), run_id=run_id)
    assert bank.pending() == []
    assert bank.learned("r") == set()


@pytest.mark.parametrize(
    ("trajectory", "run_id"), [(a_rollout("another"), "r2"), (a_rollout(), "\u200b"), (a_rollout(), "x" * 201)]
)
def test_what_does_not_belong_together_is_refused(bank: MemoryBank, trajectory: Trajectory, run_id: str) -> None:
    with pytest.raises(InputError):
        bank.record(a_task(), trajectory, run_id=run_id)
    assert bank.pending() == []


@pytest.mark.parametrize("run_id", ["r2", ""])
def test_any_text_can_be_recorded_and_learned_from(bank: MemoryBank, run_id: str) -> None:
    step = Step(thought=HOSTILE, action=HOSTILE, observation=HOSTILE)
    rollout = Trajectory(task_id="t1", rollout_id=HOSTILE, steps=(step,), answer=HOSTILE, first_observation=HOSTILE)
    task = a_task(instruction=HOSTILE, env_args={HOSTILE: HOSTILE}, template=HOSTILE, domain=HOSTILE)
    bank.record(task, rollout, run_id=run_id)
    bank.record_failure(task, HOSTILE, run_id=run_id, trajectories=[rollout])
    (pending,) = bank.pending()
    assert (pending.task, pending.trajectories, pending.tries) == (task, (rollout,), 1)
    assert "soft\xadhyphen zero\u200bwidth \u202eright" in pending.trajectories[0].steps[0].action
    draft = a_draft(HOSTILE[:30], HOSTILE.replace("\ud800", ""))
    experience = bank.append(task, rollout, SUCCESS, [draft], run_id=run_id, note=HOSTILE)
    assert bank.pending() == []
    assert "soft\xadhyphen" in bank.retrieve("soft", unit="item", mode="hybrid")[0].items[0].content
    assert bank.get(experience.id) == experience
    assert bank.doctor() == []


# Learning


def test_append_ends_the_wait_of_its_run_and_task_only(bank: MemoryBank) -> None:
    for task, run_id, rollout_id in (("t1", "r2", "0"), ("t1", "r2", "1"), ("t2", "r2", "0"), ("t1", "r3", "0")):
        bank.record(a_task(task), a_rollout(task, rollout_id), run_id=run_id)
    bank.record(a_task(), a_rollout())
    expected = bank.pending()[0].id
    rollouts = bank.pending()[0].trajectories
    assert learn(bank, *rollouts, run_id="r2") == expected
    assert [(pending.task.id, pending.run_id) for pending in bank.pending()] == [("t2", "r2"), ("t1", "r3"), ("t1", "")]
    assert bank.learned("r2") == {"t1"}


def test_a_run_learns_from_a_task_once(bank: MemoryBank) -> None:
    first = learn(bank, a_rollout(), a_rollout(rollout_id="1"))
    bank.record(a_task(), a_rollout(), run_id="other")
    assert learn(bank, a_rollout(rollout_id="5"), lesson="Two") == first
    assert learn(bank, a_rollout(action="other"), lesson="Two") == first
    assert "Two" not in [item.title for item in bank.items()]
    assert bank.known(a_task(), a_rollout(rollout_id="9"), run_id="r") == bank.get(first)
    assert len(bank.pending()) == 1


def test_threads_that_learn_from_one_task_of_a_run_learn_once(bank: MemoryBank) -> None:
    for number in range(8):
        bank.record(a_task(), a_rollout(rollout_id=str(number)), run_id="r2")
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda number: learn(bank, a_rollout(rollout_id=str(number)), run_id="r2"), range(8)))
    assert len(ids) == 1
    assert (bank.pending(), bank.learned("r2")) == ([], {"t1"})


def test_failures_are_counted_without_their_keys(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "plainlooking4711")
    for number in ("0", "1"):
        bank.record(a_task(), a_rollout(rollout_id=number), run_id="r2")
        bank.record(a_task("t2"), a_rollout("t2", number))
    bank.record_failure(a_task(), "first", run_id="r2")
    bank.record_failure(a_task(), "401 plainlooking4711 sk-proj-abc_DEF-123456 Bearer abc.def-ghi", run_id="r2")
    bank.record_failure(a_task("t2"), "broke", trajectories=[a_rollout("t2", "1")])
    bank.record_failure(a_task("t3"), "nothing waits", run_id="r2")
    found = [(pending.task.id, pending.tries, pending.error) for pending in bank.pending()]
    assert found == [("t1", 2, "401 [redacted] [redacted] [redacted]"), ("t2", 0, ""), ("t2", 1, "broke")]


def test_a_failure_counts_for_its_own_rollout_and_says_how_many_there_were(bank: MemoryBank) -> None:
    one, two = a_rollout(action="one"), a_rollout(action="two")  # of one task, with one rollout id
    for rollout in (one, two):
        bank.record(a_task(), rollout)
    assert [bank.record_failure(a_task(), "broke", trajectories=[one]) for _ in range(2)] == [1, 2]
    assert bank.record_failure(a_task(), "broke", trajectories=[a_rollout(action="three")]) == 0
    assert [(pending.trajectories, pending.tries) for pending in bank.pending()] == [((one,), 2), ((two,), 0)]


def test_keys_are_compared_without_reading_what_waits(url: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bank(url) as bank:
        for number in range(3):
            bank.record(a_task("p"), a_rollout("p", str(number)), run_id="q")
        read = []
        monkeypatch.setattr("rb_dspy.bank.store.sql.PendingRow", lambda *row: read.append(row[1]) or PendingRow(*row))
        bank.append_many([draft(1), draft(2)])
        bank.delete(bank.items()[0].id, dry_run=True)
        assert bank.stats().pending == 3
        assert set(read) == {None}


# Taken away


def test_pending_rollouts_can_be_taken_away(bank: MemoryBank) -> None:
    lesson = add(bank, "t0").items[0]
    for task, run_id in (("t1", "r2"), ("t2", "r3"), ("t3", "")):
        bank.record(a_task(task), a_rollout(task), run_id=run_id, shown=[lesson] if task == "t3" else [])
    first, second, third = (pending.id for pending in bank.pending())
    assert bank.delete(first, dry_run=True).pending == (first,)
    assert len(bank.pending()) == 3
    assert bank.delete(first).pending == (first,)
    assert bank.rollback("run:r3").pending == (second,)
    assert bank.rollback(lesson.id).pending == (third,)
    assert bank.pending() == []


# Who sees what


def test_a_fork_and_its_bank_do_not_see_what_the_other_records() -> None:
    with open_bank() as bank:
        bank.record(a_task("below"), a_rollout("below"), run_id="r")
        fork = bank.fork()
        fork.record(a_task("above"), a_rollout("above"), run_id="r")
        assert (pending_tasks(bank), pending_tasks(fork)) == (["below"], ["above"])
        learn(fork, a_rollout("below"), task_id="below")
        assert (pending_tasks(bank), bank.learned("r"), fork.learned("r")) == (["below"], set(), {"below"})


def test_scopes_do_not_see_each_other(place: str | Path | None) -> None:
    with open_bank(place, "one") as one, open_bank(place, "two") as two:
        lesson = add(two, "theirs").items[0]
        one.record(a_task(), a_rollout(), run_id="r", shown=[lesson])
        assert one.pending()[0].shown == ()
        assert (two.pending(), two.learned("r"), one.learned("r")) == ([], {"theirs"}, set())
        learn(two, a_rollout())
        two.record_failure(a_task(), "theirs", run_id="r")
        assert [(pending.task.id, pending.tries) for pending in one.pending()] == [("t1", 0)]
        one.rollback("run:r")
        assert (one.pending(), two.learned("r")) == ([], {"theirs", "t1"})


DIES = """
import os, signal, sys
from tests.bank.helpers import a_rollout, a_task, open_bank
bank = open_bank(sys.argv[1])
bank.record(a_task(), a_rollout(), run_id="r")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_killed_process_leaves_its_rollout_pending(url: str | Path) -> None:
    process = start(DIES, str(url))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    with open_bank(url) as bank:
        assert (pending_tasks(bank), bank.learned("r"), len(bank)) == (["t1"], set(), 0)
        learn(bank, a_rollout())
        assert (len(bank.experiences()), bank.pending(), bank.doctor()) == (1, [], [])


def test_a_damaged_rollout_is_named_left_out_and_can_be_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        bank.record(a_task(), a_rollout(), run_id="r")
        bank.record(a_task("t2"), a_rollout("t2"), run_id="r")
        damaged = bank.pending()[0].id
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE pending SET payload = x'00' WHERE task_id = 't1'")
    connection.close()
    with open_bank(path) as bank:
        assert pending_tasks(bank) == ["t2"]
        (finding,) = bank.doctor()
        assert damaged in finding.where
        assert bank.delete(damaged).pending == (damaged,)
        assert (bank.doctor(), pending_tasks(bank)) == ([], ["t2"])


# Lessons written by hand, and lessons that were taken away


def test_a_lesson_written_by_hand_is_found_by_its_own_text(bank: MemoryBank) -> None:
    add(bank, "t0", "bake a cake")
    item = bank.add("Refunds", "Ask Dana first.", "when money goes back to a customer")
    assert (item.polarity, item.provenance.origin) == ("success", "user")
    for unit in ("experience", "item"):
        (found,) = bank.retrieve("Refunds when money goes back to a customer Ask Dana first.", unit=unit)
        assert [each.id for each in found.items] == [item.id]
    before = len(bank)
    assert bank.add(" Refunds", "Ask Dana first. ", "when money goes back to a customer") == item
    assert bank.add("Refunds", "Ask Dana last.").id != item.id
    assert len(bank) == before + 1
    bank.delete(item.id)
    again = bank.add("Refunds", "Ask Dana first.", "when money goes back to a customer")
    assert bank.get(again.id) == again
    learned = add(bank, "t1").items[0]
    added = bank.add(learned.title, learned.content, learned.description, origin="Ada")
    assert (added.id, [source.origin for source in added.provenances]) == (learned.id, ["", "Ada"])


def test_lessons_that_were_taken_away_are_not_learned_again_unasked(bank: MemoryBank) -> None:
    item = add(bank, "t1").items[0]
    bank.delete(item.id)
    draft = a_draft(item.title)
    kept = bank.append(a_task("t2"), a_rollout("t2"), SUCCESS, [draft, a_draft("Other")], run_id="r", again=False)
    assert [each.title for each in kept.items] == ["Other"]
    assert item.id in kept.note
    asked = bank.append(a_task("t3"), a_rollout("t3"), SUCCESS, [draft], run_id="r")
    assert [each.title for each in asked.items] == [item.title]
