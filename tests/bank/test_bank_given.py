"""What is no bank's, no lesson's, no rollout's: one line, and nothing is stored of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.schema import ExperienceDraft, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank

TASK, ROLLOUT, VERDICT = a_task("new"), a_rollout("new"), Verdict(label="success")
DRAFT = ExperienceDraft(task=TASK, trajectories=(ROLLOUT,), verdicts=(VERDICT,))


def appended(*given: Any, **more: Any) -> Callable[[MemoryBank], object]:
    return lambda bank: bank.append(*given, *(TASK, ROLLOUT, VERDICT, [])[len(given) :], **more)


def recorded(*given: Any, **more: Any) -> Callable[[MemoryBank], object]:
    return lambda bank: bank.record(*given, *(TASK, ROLLOUT)[len(given) :], **more)


CALLS: list[tuple[Callable[[MemoryBank], object], str]] = [
    (lambda bank: appended(shown=[bank.items()[0].id])(bank), "shown: got str; expected a list of MemoryItem"),
    (lambda bank: appended(shown=bank.experiences())(bank), "shown: got Experience; expected a list of MemoryItem"),
    (lambda bank: appended(shown=bank.items()[0])(bank), "shown: got MemoryItem; expected a list"),
    (lambda bank: recorded(shown=[bank.items()[0].id])(bank), "shown: got str; expected a list of MemoryItem"),
    (appended(shown=None), "shown: got NoneType; expected a list"),
    (appended("new"), "task: got str; input should be"),
    (appended(TASK, "did it"), "trajectories: got str; expected a list"),
    (appended(TASK, [{"role": "user"}]), "trajectories.0.task_id: got dict; field required"),
    (appended(TASK, ROLLOUT, "success"), "verdicts: got str; expected a list"),
    (appended(TASK, ROLLOUT, True), "verdicts: got bool; expected a list"),
    (appended(TASK, ROLLOUT, VERDICT, a_draft()), "drafts: got MemoryDraft; expected a list"),
    (appended(TASK, ROLLOUT, VERDICT, None), "drafts: got NoneType; expected a list"),
    (appended(run_id=5), "run_id: got int; input should be a valid string"),
    (appended(polarity="good"), "polarity: got str; input should be 'success' or 'failure'"),
    (lambda bank: bank.append_many(DRAFT), "drafts: got ExperienceDraft; expected a list"),  # type: ignore[arg-type]
    (lambda bank: bank.append_many(bank.experiences()), "drafts: got Experience; expected ExperienceDraft"),  # type: ignore[arg-type]
    (recorded("text"), "task: got str; expected Task"),
    (recorded(TASK, "did it"), "trajectory: got str; expected Trajectory"),
    (recorded(run_id="a\u200bb"), "run id"),
    (lambda bank: bank.get(5), "id: got int; expected text"),  # type: ignore[arg-type]
    (lambda bank: bank.known("text", ROLLOUT), "task: got str; expected Task"),  # type: ignore[arg-type]
    (lambda bank: bank.record_failure(TASK, ValueError("x")), "error: got ValueError; expected text"),  # type: ignore[arg-type]
    (lambda bank: bank.add("title", None), "content: got NoneType; expected text"),  # type: ignore[arg-type]
    (lambda bank: bank.add("title", " "), "a lesson ('title') has no content"),
    (lambda bank: bank.add("title", "x" * 5_000), "content has 5,000 characters; expected at most"),
    (lambda bank: bank.retracted(["x"]), "drafts: got str; expected a list of MemoryDraft"),  # type: ignore[list-item]
    (lambda bank: bank.seen_tasks(None), "prefix: got NoneType; expected text"),  # type: ignore[arg-type]
    (lambda bank: bank.near_duplicates("0.9"), "min_score '0.9': expected a cosine"),  # type: ignore[arg-type]
    (lambda bank: bank.edit(bank.items()[0].id, title=5), "title: input should be"),  # type: ignore[arg-type]
    (lambda bank: bank.edit(bank.items()[0].id, title="x", note=None), "note: got NoneType; expected text"),  # type: ignore[arg-type]
    (lambda bank: bank.delete(bank.items()[0].id, note=None), "note: got NoneType; expected text"),  # type: ignore[arg-type]
    (lambda bank: bank.rollback("run:r", note=None), "note: got NoneType; expected text"),  # type: ignore[arg-type]
    (lambda bank: bank.import_jsonl(None), "path: got NoneType; expected the name of a file"),  # type: ignore[arg-type]
    (lambda bank: bank.export_jsonl(3), "path: got int; expected the name of a file"),  # type: ignore[arg-type]
    *(
        (partial(lambda at, _: open_bank(at=at), at), f"at {at!r}: expected the name of a snapshot, or a sequence")
        for at in (1.5, True, [], b"x")
    ),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_what_is_of_another_type_is_one_line(call: Callable[[MemoryBank], object], message: str) -> None:
    bank = open_bank()
    before = [add(bank)]
    with pytest.raises(InputError) as raised:
        call(bank)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert bank.experiences() == before


def test_what_can_be_gone_through_is_as_good_as_a_list() -> None:
    bank = open_bank()
    (item,) = add(bank).items
    made = bank.append(TASK, iter([ROLLOUT]), iter([VERDICT]), iter([a_draft()]), shown={"it": item}.values())  # type: ignore[arg-type]
    assert (made.trajectories, made.verdicts, made.shown) == ((ROLLOUT,), (VERDICT,), (item.id,))


def test_many_are_read_as_they_are_stored() -> None:
    """What is wrong shows where it comes; the pages before it stay."""
    bank = open_bank()

    def drafts() -> Any:
        for number in range(1_500):
            task = a_task(f"t{number}")
            yield ExperienceDraft(task=task, trajectories=(a_rollout(task.id),), verdicts=(VERDICT,))
        yield "no draft"

    with pytest.raises(InputError, match="drafts: got str; expected ExperienceDraft"):
        bank.append_many(drafts())
    assert len(bank.experiences()) == 1_500
