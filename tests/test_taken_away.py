"""What a person took away from a bank is not learned again by itself, word for word."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rb_dspy import MaTTS, MemoryBank, ReasoningBank, RunReport, Task, run_stream
from rb_dspy.cli.summary import print_summary
from rb_dspy.cli.work.results import as_json
from rb_dspy.schema import Experience, MemoryDraft, MemoryItem, Trajectory, Verdict
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply
from tests.worlds import answers, backbones, item, lock

LESSON = MemoryDraft(
    title="Restart it",
    description="When a task is of this kind; not elsewhere.",
    content="Restart whatever is stuck.",
)
OTHER = item("Look first", "Read the sign beside the lock.")

Way = Callable[[ReasoningBank, Task, MemoryBank, str], Experience]
"""How a program learns from a task, in a run of this name."""


def says_the_same(prompt: Prompt) -> Reply:
    """Whatever happened, the same two lessons."""
    if "memory_items" not in prompt.wants:
        return answers(prompt)
    drafts = [item(LESSON.title, LESSON.content), OTHER]
    return {"analysis": "Hm.", "memory_items": [{**draft, "evidence": [1]} for draft in drafts]}


def program() -> ReasoningBank:
    return ReasoningBank(backbones=backbones(says_the_same), environments=Lock.make)


def by_the_loop(program: ReasoningBank, task: Task, bank: MemoryBank, run_id: str) -> Experience:
    return program(task=task, bank=bank, run_id=run_id).experience  # type: ignore[no-any-return]


def by_the_async_loop(program: ReasoningBank, task: Task, bank: MemoryBank, run_id: str) -> Experience:
    return asyncio.run(program.acall(task=task, bank=bank, run_id=run_id)).experience  # type: ignore[no-any-return]


def by_learn(program: ReasoningBank, task: Task, bank: MemoryBank, run_id: str) -> Experience:
    return program.learn(task, [{"role": "assistant", "content": "I am done."}], bank, run_id=run_id)


def by_contrast(program: ReasoningBank, task: Task, bank: MemoryBank, run_id: str) -> Experience:
    return MaTTS(program, k=2)(task=task, bank=bank, run_id=run_id).experience  # type: ignore[no-any-return]


def by_each_rollout(program: ReasoningBank, task: Task, bank: MemoryBank, run_id: str) -> Experience:
    return MaTTS(program, k=2, mode="vanilla")(task=task, bank=bank, run_id=run_id).experience  # type: ignore[no-any-return]


def by_resume(program: ReasoningBank, task: Task, bank: MemoryBank, run_id: str) -> Experience:
    return program.resume(bank.ingest(task, Trajectory(task_id=task.id), run_id=run_id)).experience  # type: ignore[no-any-return]


WAYS = (by_the_loop, by_the_async_loop, by_learn, by_contrast, by_each_rollout, by_resume)


def contents(bank: MemoryBank) -> list[str]:
    return [item.content for item in bank.items()]


def the_lesson(bank: MemoryBank) -> MemoryItem:
    (found,) = (item for item in bank.items() if item.content == LESSON.content)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_lesson_that_was_deleted_is_not_learned_again(bank: MemoryBank, way: Way) -> None:
    way(program(), lock("Abus", 1), bank, "monday")
    gone = the_lesson(bank)
    bank.delete(gone.id, note="wrong")
    when = bank.history(gone.id)[-1].created_at
    learned = way(program(), lock("Abus", 2), bank, "tuesday")
    assert contents(bank) == [OTHER["content"]] == [item.content for item in learned.items]
    assert f"dropped: 'Restart it' is what {gone.id} said when it was deleted at {when}" in learned.note
    assert bank.pending() == []


@pytest.mark.parametrize("way", WAYS)
def test_the_text_before_an_edit_is_not_learned_again(bank: MemoryBank, way: Way) -> None:
    way(program(), lock("Abus", 1), bank, "monday")
    changed = bank.edit(the_lesson(bank).id, content="Page security.")
    when = bank.history(changed.id)[-1].created_at
    learned = way(program(), lock("Abus", 2), bank, "tuesday")
    assert sorted(contents(bank)) == ["Page security.", OTHER["content"]]
    assert f"dropped: 'Restart it' is what {changed.id} said before it was edited at {when}" in learned.note


def test_what_was_written_before_and_waited_is_held_to_it_too(bank: MemoryBank) -> None:
    task = lock("Abus", 2)
    by_the_loop(program(), lock("Abus", 1), bank, "monday")
    waits = bank.ingest(task, Trajectory(task_id=task.id), run_id="tuesday")
    waits.distilled([LESSON], verdicts=[Verdict(label="failure")])
    bank.delete(the_lesson(bank).id)
    report = run_stream(program(), [task], bank, run_id="tuesday")
    assert LESSON.content not in contents(bank)
    (result,) = report.results
    assert (result.resumed, result.proposed, result.dropped) == (True, 1, {"retracted": 1})


@pytest.mark.parametrize("source", ["run:monday", "the experience"])
def test_a_rollback_judges_the_run_and_not_its_lessons(bank: MemoryBank, source: str) -> None:
    first = by_the_loop(program(), lock("Abus", 1), bank, "monday")
    bank.rollback(first.id if source == "the experience" else source)
    assert contents(bank) == []
    by_the_loop(program(), lock("Abus", 2), bank, "tuesday")
    assert LESSON.content in contents(bank)


def test_a_lesson_that_was_itself_rolled_back_is_not_learned_again(bank: MemoryBank) -> None:
    by_the_loop(program(), lock("Abus", 1), bank, "monday")
    bank.rollback(the_lesson(bank).id)
    learned = by_the_loop(program(), lock("Abus", 2), bank, "tuesday")
    assert LESSON.content not in contents(bank)
    assert "said when it was rolled back at " in learned.note


@pytest.mark.parametrize("how", ["append", "ingest"])
def test_what_a_caller_puts_there_himself_is_his_word(bank: MemoryBank, how: str) -> None:
    by_the_loop(program(), lock("Abus", 1), bank, "monday")
    bank.delete(the_lesson(bank).id)
    task, verdict = lock("Abus", 2), Verdict(label="success")
    if how == "append":
        bank.append(task, Trajectory(task_id=task.id), verdict, [LESSON])
    else:
        mine = bank.ingest(task, Trajectory(task_id=task.id))
        mine.distilled([LESSON], verdicts=[verdict])
        mine.admitted()
    assert LESSON.content in contents(bank)
    again = by_the_loop(program(), lock("Abus", 3), bank, "tuesday")  # now that it is there again
    assert LESSON.content in [item.content for item in again.items]


def test_an_import_is_its_callers_word_too(bank: MemoryBank, tmp_path: Path) -> None:
    with MemoryBank.open(None, scope=bank.scope, embedder=HashEmbedder()) as theirs:
        by_the_loop(program(), lock("Yale", 1), theirs, "theirs")
        theirs.export_jsonl(tmp_path / "theirs.jsonl")
    by_the_loop(program(), lock("Abus", 1), bank, "monday")
    bank.delete(the_lesson(bank).id)
    bank.import_jsonl(tmp_path / "theirs.jsonl")
    assert LESSON.content in contents(bank)


def test_another_scope_knows_nothing_of_it(tmp_path: Path) -> None:
    banks = [MemoryBank.open(tmp_path / "b.sqlite", scope=scope, embedder=HashEmbedder()) for scope in ("a", "b")]
    for bank in banks:
        by_the_loop(program(), lock("Abus", 1), bank, "monday")
    banks[0].delete(the_lesson(banks[0]).id)
    for bank in banks:
        by_the_loop(program(), lock("Abus", 2), bank, "tuesday")
    assert [LESSON.content in contents(bank) for bank in banks] == [False, True]
    for bank in banks:
        bank.close()


def test_a_fork_knows_what_was_taken_away_before_it_and_keeps_its_own_to_itself(tmp_path: Path) -> None:
    with MemoryBank.open(tmp_path / "b.sqlite", scope="s", embedder=HashEmbedder()) as bank:
        by_the_loop(program(), lock("Abus", 1), bank, "monday")
        before = bank.fork()
        bank.delete(the_lesson(bank).id)
        after = bank.fork()
        after_that = after.fork()
        for each in (after, after_that, bank):
            by_the_loop(program(), lock("Abus", 2), each, "tuesday")
            assert LESSON.content not in contents(each)
        by_the_loop(program(), lock("Abus", 2), before, "tuesday")
        assert LESSON.content in contents(before)
        before.delete(the_lesson(before).id)
        by_the_loop(program(), lock("Abus", 3), before, "wednesday")
        assert LESSON.content not in contents(before)


def test_a_run_counts_what_was_left_out(bank: MemoryBank) -> None:
    run_stream(program(), [lock("Abus", 1)], bank, run_id="monday")
    bank.delete(the_lesson(bank).id)
    report = run_stream(program(), [lock("Abus", 2)], bank, run_id="tuesday")
    (result,) = report.results
    assert (result.proposed, result.dropped) == (2, {"retracted": 1})
    assert json.loads(json.dumps(as_json(result)["dropped"])) == {"retracted": 1}
    assert report.summary().dropped_items == {"retracted": 1}
    assert _told(report) == "lessons dropped 1 of 2 proposed (1 taken away from the bank before)"


def _told(report: RunReport) -> str:
    out = io.StringIO()
    print_summary(Console(file=out, width=100), report)
    lines = (" ".join(line.split()) for line in out.getvalue().splitlines())
    return next(line for line in lines if line.startswith("lessons dropped"))
