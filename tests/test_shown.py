"""What notebooks show of a bank, an experience and a memory, and agents of a memory."""

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import MemoryDraft, Step, Task, Trajectory, Verdict

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


def test_what_is_printed_is_short_and_names_its_ids(bank: MemoryBank):
    long = "When a door is shut, " + "push it " * 200
    task = Task(id="doors/1", instruction=long)
    drafts = [MemoryDraft(title=f"Doors {number}", description=long[:200], content=long[:999]) for number in range(5)]
    rollout = Trajectory(task_id=task.id, steps=(Step(thought=long, action=long, observation=long),), answer=long)
    experience = bank.append(task, rollout, Verdict(label="failure", reasons=long), drafts, run_id="r")
    memory = ReasoningBank().recall(long, bank)
    prediction = dspy.Prediction(memory=memory, trajectory=rollout, verdict=experience.verdicts[0])
    for value in (task, rollout, experience, experience.verdicts[0], experience.items[0], memory):
        assert str(value) == repr(value)
        assert len(str(value)) < 250
        assert "\n" not in str(value)
    assert len(str(prediction)) < 600
    assert str(experience).startswith(
        f"Experience({experience.id}, 'doors/1', failure, 5 lessons: 'Doors 0', 'Doors 1'"
    )
    assert str(memory).startswith("Memory(")
    assert "'Doors " in str(memory)
    assert experience.items[0].id in str(experience.items[0])
    other = experience.items[0].model_copy(update={"content": "Pull it."})
    assert repr(other) != repr(experience.items[0])


def test_an_experience_without_lessons_says_why(bank: MemoryBank):
    task = Task(id="t", instruction="Open the door")
    verdict = Verdict(label="unknown", reasons="")
    html = bank.append(task, Trajectory(task_id="t", steps=()), verdict, [], note="nothing new")._repr_html_()
    assert "nothing new" in html
