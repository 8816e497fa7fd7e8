"""Which drafts are fit for a bank."""

from __future__ import annotations

import pytest

from rb_dspy.schema import MemoryDraft, Task, Trajectory
from rb_dspy.steps.attempts import answer_key, same_answers
from rb_dspy.steps.drafts import admissible


def draft(title: str, content: str = "", description: str = "When it fits.") -> MemoryDraft:
    return MemoryDraft(title=title, description=description, content=content or f"Do as {title} says, always.")


def task(instruction: str = "Do it.") -> Task:
    return Task(id="t", instruction=instruction)


def kept(*drafts: MemoryDraft, instruction: str = "Do it.", limit: int = 3) -> list[str]:
    return [one.title for one in admissible(drafts, task(instruction), limit).drafts]


def test_the_first_ones_are_taken_as_they_are() -> None:
    given = [draft("One", "Look left before you cross."), draft("Two", "Count the change they give you.")]
    found = admissible(given, task(), 3)
    assert found.drafts == tuple(given)
    assert found.note == ""


def test_nothing_gives_a_note() -> None:
    assert admissible([], task(), 3).note == "the distiller proposed nothing"


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        (draft("ONE", "Something else entirely, to be sure."), False),
        (draft("Two", "look LEFT, before you cross!"), False),
        (draft("Two", "Look left before you cross roads."), False),
        (draft("Two", "Look left and right before you cross any road at all."), True),
    ],
)
def test_overlap_is_same_title_or_nearly_the_same_words(other: MemoryDraft, fits: bool) -> None:
    assert kept(draft("One", "Look left before you cross."), other) == (["One", other.title] if fits else ["One"])


@pytest.mark.parametrize(
    ("instruction", "content", "fits"),
    [
        ("Add 123,456 and 7.", "The sum has 123,456 in it.", False),
        ("Add 123,456 and 7.", "Add the digits; 7 is easy.", True),  # short numbers are everybody's
        ("Open https://shop.example/cart now.", "Go to https://shop.example/cart first.", False),
        ('Find the "golden goose egg" here.', 'The "golden goose egg" is upstairs.', False),
        ('Find the "golden goose egg" here.', "A golden goose egg is precious.", True),  # not as a quotation
        ("Find 'gold' here.", "Search 'gold' again.", True),  # too short to be anybody's
        ("Calculate 516 * -491.", "Product: 516 * -491 = -252336.", False),
        ("Calculate 516 * -491.", "Numbers like 516 are split into 500 and 16.", True),  # one may be anybody's
        ("Turn by 90 degrees, then by 45.", "After a turn by 90 degrees look again.", True),
        ("Turn by 90 degrees, then by 90.", "After a turn by 90 degrees, 90 more are half a turn.", True),
        ("Add 7 and 5.", "Add 7 and 5 in any order.", True),  # single digits are everywhere
        ("Sort 12 files of 3.5 MB.", "Of 12 files and 30 folders the files come first.", True),
    ],
)
def test_what_quotes_the_task_is_dropped(instruction: str, content: str, fits: bool) -> None:
    found = admissible([draft("One", content)], task(instruction), 3)
    assert bool(found.drafts) == fits
    assert ("quotes this task" in found.note) != fits


def test_quotations_are_looked_for_everywhere() -> None:
    for quoting in (draft("About 99,999", "x y"), draft("One", "x y", description="For 99,999 only.")):
        assert kept(quoting, instruction="Count to 99,999.") == []


def test_each_draft_that_is_dropped_has_its_reason() -> None:
    given = [draft("", "No title."), draft("One", "Look left."), draft("ONE", "x"), draft("Two", "Order 1234 is late.")]
    found = admissible([*given, draft("Three", "Stop.")], task("Find 1234."), 1)
    assert found.dropped == ("empty", "overlap", "quote", "surplus")
    assert len(found.drafts) + len(found.dropped) == 5


def test_what_is_dropped_takes_no_place() -> None:
    given = [draft("", "No title."), draft("Bare", " "), draft("One", "Look left."), draft("Two", "Stop the clock.")]
    found = admissible(given, task(), 2)
    assert [one.title for one in found.drafts][-2:] == ["One", "Two"]
    surplus = admissible([*given, draft("Three", "Write names down.")], task(), 2)
    assert "'Three' is beyond the limit of 2" in surplus.note


def rollout(answer: str | None) -> Trajectory:
    return Trajectory(task_id="t", answer=answer)


def test_answers_are_the_same_whatever_their_case_and_white_space() -> None:
    assert same_answers([rollout(a) for a in ("Forty Two", " forty\n two ", None, "42", None)]) == [2, 2, 0, 1, 0]
    assert answer_key(rollout("Straße")) == answer_key(rollout("STRASSE"))
    assert answer_key(rollout("")) != answer_key(rollout(None))
    assert same_answers([]) == []
