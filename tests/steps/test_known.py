"""skip_known: what is new and looks known."""

from __future__ import annotations

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import Step, Trajectory
from rb_dspy.steps.statements import hold_all
from rb_dspy.testing import HashEmbedder

NEW = [
    # what a lesson holds, what the environment says, which is another fact
    ("Locks of Abus", "What Abus made opens with 1234.", "It opens with 1234."),  # at a lock of Burg
    (
        "Depot",
        "The manager of the north depot in Oslo is Ann and the deputy is Bob.",
        "The manager of the north depot in Oslo is Bob and the deputy is Ann.",
    ),
    (
        "Flights",
        "The morning flight on Monday goes from Oslo to Bergen at gate 12.",
        "The morning flight on Monday goes from Bergen to Oslo at gate 12.",
    ),
    (
        "Limits",
        "An order of a new customer has a limit of 10 items and 25 boxes.",
        "An order of a new customer has a limit of 25 items and 10 boxes.",
    ),
    (
        "Rate",
        "The rate of the basic plan for one year is 1.5 percent and 2 days.",
        "The rate of the basic plan for one year is 5.1 percent and 2 days.",
    ),
    (
        "Sign",
        "The offset of the second clock in the hall is 15 minutes today.",
        "The offset of the second clock in the hall is -15 minutes today.",
    ),
    (
        "Who",
        "Refunds below 50 are approved by Kim, refunds above 50 are approved by Lee.",
        "Refunds below 50 are approved by Lee.",
    ),
    (
        "Case",
        "The name of the table with all orders is ORDERS in the shop.",
        "The name of the table with all orders is orders in the shop.",
    ),
    ("Two", "Team A owns the north area. Team B owns the south area.", "Team A owns the south area."),
    (
        "Op",
        "The filter of the report for all users is a > b in code.",
        "The filter of the report for all users is a < b in code.",
    ),
    (
        "Unless",
        "The door in the west wing opens with the red card unless it is Sunday.",
        "The door in the west wing opens with the red card.",
    ),
    ("Old", "Until May the owner of the depot in Oslo was Ann.", "The owner of the depot in Oslo was Ann."),
    (
        "Path",
        "The log of the server is in /var/log/app on every machine here.",
        "The log of the server is in /app/log/var on every machine here.",
    ),
    ("Number", "The rows are 17 and 42.", "42"),
    ("Denied", "Wrong: The depot in Oslo is owned by Ann.", "The depot in Oslo is owned by Ann."),
    ("Value", "The answer to the first question is 17.", "The right answer is: 17"),
]


@pytest.mark.parametrize(("title", "content", "said"), NEW, ids=[each[0] for each in NEW])
def test_another_fact_is_not_known(title: str, content: str, said: str) -> None:
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        item = bank.add(title, content)
        rollout = Trajectory(task_id="t", rollout_id="0", steps=(Step(action="a", observation=said),), answer="a")
        assert not hold_all([item], rollout)


def test_lesson_of_several_do_not_mix() -> None:
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        items = [
            bank.add("Abus", "What Abus made opens with 1234."),
            bank.add("Burg", "What Burg made opens with 5678."),
        ]
        rollout = Trajectory(
            task_id="t",
            rollout_id="0",
            steps=(
                Step(action="5678", observation="It opens with 5678."),
                Step(action="look", observation="Inside is key K-77."),
            ),
            answer="a",
        )
        assert not hold_all(items, rollout)


def test_a_poisoned_lesson_does_not_stop_all_learning() -> None:
    """One lesson with many words holds everything that is ever said with them."""
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        item = bank.add("List", "It opens with 1 2 3 4 5 6 7 8 9 1234 5678 9012 red blue green Ann Bob Kim.")
        for said in ("It opens with 1234.", "It opens with Kim.", "It opens with blue."):
            rollout = Trajectory(task_id="t", rollout_id="0", steps=(Step(action="a", observation=said),), answer="a")
            assert not hold_all([item], rollout)


SAYS = "The manager of the north depot in Oslo is {} and the deputy is {}."


def told(said: str, held: str, *, score: bool) -> tuple[list[str], str]:
    """The roles that were asked, and the note, if the environment says ``said`` and a shown lesson holds ``held``."""
    from rb_dspy import Backbones, ProgramConfig, ReasoningBank, Task
    from rb_dspy.protocols import Environment
    from rb_dspy.schema import Outcome
    from rb_dspy.testing import Prompt, Reply, scripted_lm

    class Depot(Environment):
        action_rules = ""

        def reset(self, task: Task) -> str:
            return "Ask."

        def step(self, action: str) -> tuple[str, bool]:
            return said, True

        def outcome(self) -> Outcome:
            return Outcome(reward=1.0, success=True)

    asked: list[str] = []

    def script(prompt: Prompt) -> Reply:
        asked.append(prompt.role)
        if prompt.role == "agent":
            return {"thought": "", "action": "Bob"}
        if prompt.role == "distiller":
            return {"memory_items": [{"title": "Depot", "description": "", "content": said}]}
        return {"reasons": "It is so.", "label": "success"}

    def agent(task: Task, lessons: str) -> dict[str, object]:
        return {"steps": [{"action": "ask", "observation": said}], "answer": "Bob"}

    more = (
        {"agent": agent, "score": lambda task, answer: True}
        if score
        else {"environments": lambda task, rollout: Depot()}
    )
    program = ReasoningBank(ProgramConfig(skip_known=True), backbones=Backbones(agent=scripted_lm(script)), **more)  # type: ignore[arg-type]
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        bank.add("Depot", held)
        done = program(task=Task(id="t", instruction="Who is the manager of the north depot in Oslo?"), bank=bank)
        assert done.memory.items
        return asked, done.experience.note


def test_a_fact_with_two_names_exchanged_is_learned() -> None:
    asked, note = told(SAYS.format("Bob", "Ann"), SAYS.format("Ann", "Bob"), score=False)
    assert "distiller" in asked, note


def test_skip_known_works_for_an_agent_with_a_score() -> None:
    """'Your answer was taken.' is no fact; because of it, nothing is ever known."""
    asked, note = told(SAYS.format("Bob", "Ann"), SAYS.format("Bob", "Ann"), score=True)
    assert "distiller" not in asked, note
