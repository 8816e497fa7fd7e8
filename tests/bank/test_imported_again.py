"""A bank that is exported again and again into another: what an agent was shown there has a name of its own here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import Experience, MemoryItem, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank

SAID = "Lesson 0 of t1"


@pytest.fixture(params=["memory", "sqlite"])
def ours(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MemoryBank]:
    with open_bank(None if request.param == "memory" else tmp_path / "ours.sqlite") as bank:
        yield bank


@pytest.fixture
def again(ours: MemoryBank, tmp_path: Path) -> Callable[[MemoryBank], list[Experience]]:
    def imported(theirs: MemoryBank) -> list[Experience]:
        theirs.export_jsonl(tmp_path / "a.jsonl")
        return list(ours.import_jsonl(tmp_path / "a.jsonl"))

    return imported


Again = Callable[[MemoryBank], list[Experience]]


def taken(ours: MemoryBank) -> MemoryItem:
    """A lesson of our own, with the id that a lesson of theirs has."""
    return ours.edit(add(ours, "t1", run_id="ours").items[0].id, title="says something else here")


@pytest.mark.parametrize("change", ["nothing", "edit", "delete", "edit there", "learn anew"])
@pytest.mark.parametrize("scope", ["s", "theirs"])
def test_the_lesson_that_was_shown_is_the_one_that_came_before(
    ours: MemoryBank, again: Again, change: str, scope: str
) -> None:
    own = taken(ours)
    theirs = open_bank(scope=scope)
    first = add(theirs, "t1")
    came = again(theirs)[0].items[0]
    assert came.id != own.id
    if change in ("edit", "learn anew"):
        ours.edit(came.id, title="says it better")
    elif change == "delete":
        ours.delete(came.id)
    elif change == "edit there":
        theirs.edit(first.items[0].id, title="says it better there")
    if change == "learn anew":
        add(ours, "t1", run_id="anew")
    add(theirs, "t2", shown=first.items)
    learned = again(theirs)[-1]
    assert learned.shown == (came.id,)
    assert ours.doctor() == []
    assert learned.id not in ours.rollback(own.id, dry_run=True).experiences
    assert learned.id in ours.rollback(first.id, dry_run=True).experiences  # also where it was deleted meanwhile


@pytest.mark.parametrize("change", ["edit", "delete"])
def test_a_lesson_that_took_the_id_of_one_that_said_the_same_is_still_what_was_shown(
    ours: MemoryBank, again: Again, change: str
) -> None:
    """No id was taken here: both lessons became one."""
    own = add(ours, "t1", run_id="ours").items[0]
    theirs = open_bank(scope="theirs")
    first = add(theirs, "t1")
    again(theirs)
    ours.edit(own.id, title="says it better") if change == "edit" else ours.delete(own.id)
    add(theirs, "t2", shown=first.items)
    assert again(theirs)[-1].shown == (own.id,)


def test_each_of_several_lessons_is_found_again_whatever_was_done_to_it(ours: MemoryBank, again: Again) -> None:
    add(ours, "t1", run_id="ours", lessons=2)
    theirs = open_bank(scope="theirs")
    first = add(theirs, "t1", lessons=4)
    for item in ours.items():
        ours.edit(item.id, title=f"{item.id} says something else")
    came = [item.id for item in again(theirs)[0].items]
    for item in came[:3]:
        ours.edit(item, title=f"{item} is edited here")
    ours.delete(came[0])
    theirs.edit(first.items[3].id, title="is edited there")
    for number, item in enumerate(theirs.items()):
        add(theirs, f"u{number}", shown=[item])
    ids = {there.id: here for there, here in zip(first.items, came, strict=True)}
    expected = {experience.id: (ids[experience.shown[0]],) for experience in theirs.experiences()[1:]}
    again(theirs)
    stored = {experience.id: experience.shown for experience in ours.experiences()}
    assert {id: stored[id] for id in expected} == expected


def test_what_another_experience_brings_now_is_what_was_shown(ours: MemoryBank, again: Again) -> None:
    """The text comes again, with an id of its own: the first that is stored with it gives it."""
    taken(ours)
    theirs = open_bank()
    first = add(theirs, "t1")
    ours.edit(again(theirs)[0].items[0].id, title="says it better")
    theirs.append(a_task("t2"), a_rollout("t2"), first_verdict(first), [a_draft(SAID)], run_id="r")
    add(theirs, "t3", shown=first.items)
    _, second, learned = again(theirs)
    assert learned.shown == (second.items[0].id,)
    assert second.items[0].title == SAID


def test_no_lesson_of_another_is_named_where_none_came_with_the_experience(ours: MemoryBank, again: Again) -> None:
    """The attempt was learned from here as well, and gave two other lessons: none of them was shown."""
    own = taken(ours)
    ours.append(
        a_task("t1"), a_rollout("t1"), first_verdict(ours.experiences()[0]), [a_draft("x"), a_draft("y")], run_id="r"
    )
    theirs = open_bank()
    first = add(theirs, "t1")
    add(theirs, "t2", shown=first.items)
    (shown,) = again(theirs)[-1].shown
    assert shown not in {item.id for item in ours.items()}
    assert ours.rollback(own.id, dry_run=True).experiences == ()


def first_verdict(experience: Experience) -> Verdict:
    return experience.verdicts[0]
