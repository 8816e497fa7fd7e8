"""What notebooks show of a bank, an experience and a memory, and agents of a memory."""

from rb_dspy.bank import MemoryBank
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict

HOSTILE = "<script>alert(1)</script>"


def test_views_name_the_lessons_and_escape_them(bank: MemoryBank):
    task = Task(id="t", instruction=f"Open the door {HOSTILE}")
    drafts = [MemoryDraft(title="Doors", description="When a door is shut.", content=f"Doors open inwards {HOSTILE}.")]
    experience = bank.append(task, Trajectory(task_id="t", steps=()), Verdict(label="failure", reasons=""), drafts)
    memory = ReasoningBank().recall("Open the door of the shed: doors open inwards", bank)
    assert "When a door is shut." in memory.block
    for view in (bank, experience, memory):
        html = view._repr_html_()
        assert "Doors open inwards" in html
        assert HOSTILE not in html


def test_an_experience_without_lessons_says_why(bank: MemoryBank):
    task = Task(id="t", instruction="Open the door")
    verdict = Verdict(label="unknown", reasons="")
    html = bank.append(task, Trajectory(task_id="t", steps=()), verdict, [], note="nothing new")._repr_html_()
    assert "nothing new" in html
