"""Lessons in the environment's own words: what a small model garbles, and what must stay as it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from rb_dspy import Backbones
from rb_dspy.config import ContrastConfig, DistillConfig
from rb_dspy.schema import MemoryDraft, Step, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill
from rb_dspy.steps.statements import in_own_words, statements
from rb_dspy.testing import scripted_lm

ALERT = "Disk usage on the hosts of falcon is at 97 percent. To which team does this ticket go?"
TICKET = "I was charged twice for order 64115. Which queue? Answer with its code only."
PAID = "What is the total of all orders that are paid?"
OWNER = "The service falcon is owned by team Turin."
CODE = "orders.state 41 means paid"
CENTS = "orders.total is in cents"
DOOR = "The front door is locked."
ROWS = " ".join(f"Row {number} of the table is free." for number in range(500))


SEARCHED = Step(action="search(order 64115)", observation="Order 64115: 2 payments.")


def rollout(*said: str, action: str = "Lima", feedback: str = "") -> Trajectory:
    steps = tuple(Step(action=action, observation=each) for each in said)
    return Trajectory(task_id="t", steps=steps, answer=action, feedback=feedback)


def reworded(title: str, content: str, trajectory: Trajectory, instruction: str = ALERT, **known: Any) -> MemoryDraft:
    draft = MemoryDraft(title=title, description="", content=content)
    return in_own_words(draft, Task(id="t", instruction=instruction), statements([trajectory]), **known)


GARBLED = [
    "The environment said that the service falcon is owned by team Turin, which is incorrect. The correct owner is"
    " team Falcon.",
    "The disk of falcon was full, at 97 percent. The service falcon is owned by team Turin, not Lima.",
    "It is important to note that the service falcon is owned by Turin as its team.",
]


@pytest.mark.parametrize("content", GARBLED)
@pytest.mark.parametrize("said", [f"Wrong. {OWNER}", f"Wrong: {OWNER}", f"Your answer is wrong.\r\n{OWNER}"])
def test_a_garbled_fact_is_stored_as_the_environment_stated_it(content: str, said: str) -> None:
    assert reworded("Owner", content, rollout(said)) == MemoryDraft(title="Owner", description="", content=OWNER)


@pytest.mark.parametrize(
    ("title", "content", "said", "expected"),
    [
        ("Paid", "41 in orders.state means paid.", f"To know: {CODE}; {CENTS}.", f"{CODE}."),
        ("Paid", f"{CODE} and {CENTS}.", f"0\nThe result is wrong. To know: {CODE}; {CENTS}.", f"{CODE}; {CENTS}."),
        ("Paid", f"0 orders were found, which is wrong: {CODE}.", f"0\nWrong. To know: {CODE}", f"{CODE}."),
        ("Door", "The front door is locked.", f"{DOOR} The front door is open.", DOOR),
        ("Row", "Row 7 of the table is free.", ROWS, "Row 7 of the table is free."),
    ],
)
def test_a_lesson_keeps_the_statements_that_it_repeats_and_no_similar_ones(
    title: str, content: str, said: str, expected: str
) -> None:
    assert reworded(title, content, rollout(said, action="SELECT 1"), PAID).content == expected


@pytest.mark.parametrize(
    ("content", "said", "why"),
    [
        ("Falcon is not owned by team Lima.", "You said: falcon is owned by team Lima.", "the agent's own claim"),
        ("The service falcon is owned by team Turin.", "The service falcon is owned by team Porto.", "another name"),
        (
            "Refunds of falcon above 100 EUR need form 12B.",
            "Refunds of falcon above 100 EUR need it. The form is 12B.",
            "more",
        ),
        ("Check the disk of falcon before you page anybody.", OWNER, "a rule of its own"),
        ("Open the door of falcon.", "The door of falcon is open.", "advice, not what was seen"),
        ("It opens with 42.", "It opens.", "a remark is no value"),
        ("退款需要经理批准, falcon。", "超过100欧元的退款需要经理批准。", "no words to compare"),
    ],
)
def test_other_lessons_stay_in_the_distillers_words(content: str, said: str, why: str) -> None:
    assert reworded("A title", content, rollout(said)).content == content, why


@pytest.mark.parametrize(
    ("content", "said", "action", "feedback"),
    [
        ("Refunds go to team Rome, not to team Quito.", "-", "Quito", "Refunds go to team Quito? No, to team Rome."),
        (
            "The owner of billing-api is not team Quito.",
            "Your answer: The owner of billing-api is team Quito. Result: rejected.",
            "submit(team Quito)",
            "",
        ),
        (
            "The owner of billing-api is not team Quito.",
            "You told us that the owner of billing-api is team Quito. Rejected.",
            "submit(team Quito)",
            "",
        ),
        (
            "Refunds over 500 EUR need approval by a manager.",
            "Refunds over 500 EUR never need approval by a manager.",
            "read()",
            "",
        ),
        (
            "Invoices above 500 EUR are paid by the finance team within two days.",
            "Invoices above 500 EUR are paid by the finance team within two days without any checks.",
            "read()",
            "",
        ),
        (
            "The owner of falcon is team lima, not quito.",
            '{"owner": "lima"}',
            "read()",
            "The owner of falcon is not team quito.",
        ),
        (
            "Never run the cleanup script before the backup.",
            "Run the cleanup script before the backup? Never.",
            "run()",
            "",
        ),
        (
            "Refunds were approved by team Rome until May, since then by Oslo.",
            'Refunds were approved by team Rome. {"since May": "Oslo"}',
            "read()",
            "",
        ),
        (
            "Refunds are approved by the finance team, except on Sundays.",
            "Refunds are approved by the finance team. On Sundays: nobody.",
            "read()",
            "",
        ),
    ],
)
def test_no_statement_takes_the_place_of_a_lesson_that_says_more_or_something_else(
    content: str, said: str, action: str, feedback: str
) -> None:
    assert reworded("A title", content, rollout(said, action=action, feedback=feedback)).content == content


@pytest.mark.parametrize(
    ("content", "trajectory", "known"),
    [
        ("Q-REFUND", rollout("Your answer is wrong. The right answer is: Q-REFUND"), {}),
        ("The code is Q-REFUND.", rollout("Your answer is wrong. The right answer is: Q-REFUND"), {}),
        ("The code is Q-REFUND.", rollout("Your answer is right.", action="Q-REFUND"), {"answer": "Q-REFUND"}),
        ("The code is Q-REFUND.", rollout("Wrong.", feedback="It belongs into Q-REFUND, as always."), {}),
    ],
)
@pytest.mark.parametrize("before", [(), (SEARCHED,), (SEARCHED, SEARCHED)])
def test_a_value_without_a_subject_carries_the_task_that_it_answers(
    content: str, trajectory: Trajectory, known: dict[str, str], before: tuple[Step, ...]
) -> None:
    trajectory = trajectory.model_copy(update={"steps": (*before, *trajectory.steps)})
    lesson = reworded("Queue code", content, trajectory, TICKET, **known)
    assert (lesson.content, lesson.description) == (content, f"From the task: {TICKET}")


def test_the_answer_of_a_rollout_of_several_steps_carries_its_task() -> None:
    steps = (SEARCHED, Step(action="Q-REFUND", observation="Your answer is right."))
    lesson = {"title": "Queue code", "description": "", "content": "The code is Q-REFUND."}
    with Backbones(agent=scripted_lm(lambda prompt: {"analysis": "-", "memory_items": [lesson]})).use():
        done = Distill()(
            Task(id="t", instruction=TICKET),
            Trajectory(task_id="t", steps=steps, answer="Q-REFUND"),
            Verdict(label="success"),
        )
    assert [draft.description for draft in done.drafts] == [f"From the task: {TICKET}"]


def test_what_was_seen_on_the_way_answers_no_task() -> None:
    steps = (SEARCHED, Step(action="Q-REFUND", observation="Wrong."))
    trajectory = Trajectory(task_id="t", steps=steps, answer="Q-REFUND")
    assert reworded("Orders", "There are 2 payments.", trajectory, PAID).description == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Orders charged twice go to the queue Q-REFUND.", "Orders charged twice go to the queue Q-REFUND."),
        ("A ticket about an order that was charged twice: Q-REFUND.", "The right answer is: Q-REFUND"),
    ],
)
def test_a_lesson_that_names_the_subject_does_not_carry_the_task(content: str, said: str) -> None:
    lesson = reworded("Queue", content, rollout(said), TICKET)
    assert (lesson.content, lesson.description) == (content, "")


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Disk usage on the hosts of falcon", OWNER[:-1]),
        ("Owner of falcon", "Owner of falcon"),
        ("The service falcon", "The service falcon"),
    ],
)
def test_a_title_that_retells_the_task_becomes_the_statement(title: str, expected: str) -> None:
    assert reworded(title, GARBLED[1], rollout(f"Wrong. {OWNER}")).title == expected


def test_a_lesson_that_only_retells_the_task_is_dropped() -> None:
    lessons = [{"title": "Disk usage", "description": "", "content": "To which team does this ticket of falcon go?"}]
    script = {"analysis": "-", "memory_items": [*lessons, {**lessons[0], "content": OWNER}]}
    with Backbones(agent=scripted_lm(lambda prompt: script)).use():
        wrong = rollout(f"Wrong. {OWNER}")
        done = Distill()(Task(id="t", instruction=ALERT), wrong, Verdict(label="failure"))
    assert [draft.content for draft in done.drafts] == [OWNER]
    assert "retells" in done.note


def test_endings_make_no_other_subject() -> None:
    said = "refunds need the reason code R-12"
    lesson = reworded("Refunds", f"Every {said}.", rollout(said), "Refund the customer of order 1801.")
    assert lesson.description == ""


def test_a_statement_that_points_at_the_task_carries_it() -> None:
    said = "The owner of this service is team Turin."
    lesson = reworded("Owner", "The owner of the service falcon is team Turin.", rollout(said))
    assert (lesson.content, lesson.description) == (said, f"From the task: {ALERT}")


@given(
    title=st.text(max_size=30),
    content=st.text(min_size=1, max_size=300),
    said=st.lists(st.text(max_size=300), max_size=4),
    instruction=st.text(min_size=1, max_size=100).filter(str.strip),
)
def test_any_text_gives_a_lesson_of_bounded_length(title: str, content: str, said: list[str], instruction: str) -> None:
    done = reworded(title, content, rollout(*said), instruction)
    assert done.title == MemoryDraft(title=title, description="", content="").title
    assert len(done.content) + len(done.description) <= 2 * len(content) + 2 * len(title) + 600


def test_distiller_and_contraster_store_own_words_once_and_the_papers_prompts_do_not() -> None:
    lessons = [{"title": title, "description": "", "content": GARBLED[0]} for title in ("Owner", "Falcon's owner")]

    def run(step: Any, *args: Any) -> list[str]:
        with Backbones(agent=scripted_lm(lambda prompt: {"analysis": "-", "memory_items": lessons})).use():
            return [draft.content for draft in step(Task(id="t", instruction=ALERT), *args).drafts]

    failed, wrong = Verdict(label="failure"), rollout(f"Wrong. {OWNER}")
    assert run(Distill(), wrong, failed) == [OWNER]
    assert run(Contrast(), [wrong, wrong]) == [OWNER]
    for step in (DistillConfig(own_words=False), DistillConfig(prompts="general")):
        assert run(Distill(step), wrong, failed)[0] == GARBLED[0]
    assert run(Contrast(ContrastConfig(prompts="general")), [wrong, wrong])[0] == GARBLED[0]
