"""What a task is shown of what the bank finds."""

from __future__ import annotations

from rb_dspy.bank import MemoryBank
from rb_dspy.config import RetrieveConfig
from rb_dspy.schema import MemoryDraft, Step, Task, Trajectory, Verdict
from rb_dspy.steps import Retrieve
from rb_dspy.testing.embedder import HashEmbedder


def test_a_lesson_that_several_tasks_gave_is_shown_once_and_takes_nobodys_room() -> None:
    usual = MemoryDraft(title="Ask first", description="", content="Ask which account was charged. " * 4)
    rare = MemoryDraft(title="Look twice", description="", content="A refund may be there already.")
    with MemoryBank.open(None, scope="desk", embedder=HashEmbedder()) as bank:
        for number, lessons in enumerate([[rare], [usual], [usual], [usual]]):
            task = Task(id=f"t{number}", instruction=f"Refund the order of customer {number}.")
            rollout = Trajectory(task_id=task.id, steps=(Step(action="refund", observation="Done."),))
            bank.append(task, rollout, Verdict(label="success"), lessons)
        recalled = Retrieve(RetrieveConfig(k=4, max_tokens=100))(Task(id="new", instruction="Refund the order."), bank)
    assert len(recalled.retrieved) == 4
    assert {item.title for item in recalled.items} == {"Ask first", "Look twice"}
    assert len(recalled.items) == 2
    assert recalled.block.count("Ask first") == recalled.block.count("Look twice") == 1
