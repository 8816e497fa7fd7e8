"""An agent loop that is not ours: recall before, learn after."""

from __future__ import annotations

from typing import Any

import pytest
from dspy import lm15

from rb_dspy import Memory, MemoryBank, Step, Task, Trajectory, errors
from rb_dspy.config import TrustConfig
from rb_dspy.testing import Prompt, Reply
from tests.scenarios.helpers import Spy, lessons, program

TASK = "Open the lock that Abus made, serial 1."
NEXT = "Open the lock that Abus made, serial 2."
SAID = "It opens with 4711."

OPENAI = [
    {"role": "system", "content": "You are a porter."},
    {"role": "user", "content": TASK},
    {
        "role": "assistant",
        "content": "I type it.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "type", "arguments": '{"code": "4711"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": SAID},
    {"role": "assistant", "content": "It is open."},
]
ANTHROPIC = [
    {"role": "user", "content": TASK},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I type it."},
            {"type": "tool_use", "id": "c1", "name": "type", "input": {"code": "4711"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": SAID}]},
    {"role": "assistant", "content": "It is open."},
]
DICTS = [{"thought": "I type it.", "action": "type 4711", "observation": SAID}]
WITH_ANSWER = {"steps": DICTS, "answer": "It is open."}
FORMATS: dict[str, Any] = {"openai": OPENAI, "anthropic": ANTHROPIC, "dicts": DICTS, "with an answer": WITH_ANSWER}


def trajectory(task: Task) -> Trajectory:
    steps = (Step(thought="I type it.", action="type 4711", observation=SAID),)
    return Trajectory(task_id=task.id, steps=steps, answer="It is open.")


@pytest.mark.parametrize("form", [*FORMATS, "trajectory"])
def test_what_an_agent_did_is_learned_and_recalled(bank: MemoryBank, form: str) -> None:
    spy = Spy()
    run = program(spy)
    task = Task(id="door/1", instruction=TASK)
    memory = run.recall(task, bank)
    assert not memory.items
    experience = run.learn(task, FORMATS.get(form) or trajectory(task), bank, memory=memory)

    assert [item.content for item in experience.items] == ["What Abus made opens with 4711."]
    assert [verdict.label for verdict in experience.verdicts] == ["success"]
    (step,) = experience.trajectories[0].steps[:1]
    assert (step.thought, "4711" in step.action, step.observation) == ("I type it.", True, SAID)
    assert spy.roles_asked() == ["judge", "distiller"]
    assert SAID in spy.of("judge")[0].text

    later = run.recall(NEXT, bank)
    assert [item.content for item in later.items] == ["What Abus made opens with 4711."]
    assert "What Abus made opens with 4711." in later.block


@pytest.mark.parametrize("form", ["openai", "trajectory"])
def test_learning_twice_from_one_rollout_is_learning_once(bank: MemoryBank, form: str) -> None:
    run = program()
    task = Task(id="door/1", instruction=TASK)
    rollout = FORMATS.get(form) or trajectory(task)
    first = run.learn(task, rollout, bank)
    again = run.learn(task, rollout, bank)
    assert again.id == first.id
    assert len(bank.experiences()) == 1
    assert lessons(bank) == {"What Abus made opens with 4711."}


def test_a_named_run_learns_once_from_a_task_and_another_run_learns_again(bank: MemoryBank) -> None:
    run = program()
    task = Task(id="door/1", instruction=TASK)
    for run_id in ("monday", "monday", "tuesday"):
        run.learn(task, DICTS, bank, run_id=run_id)
    assert [each.run_id for each in bank.experiences()] == ["monday", "tuesday"]
    assert len(lessons(bank)) == 1, "the same lesson is one item"


async def test_the_awaited_calls_do_the_same(bank: MemoryBank) -> None:
    run = program()
    memory = await run.arecall(TASK, bank)
    experience = await run.alearn(TASK, OPENAI, bank, memory=memory)
    assert [item.content for item in experience.items] == ["What Abus made opens with 4711."]
    assert (await run.arecall(NEXT, bank)).items == run.recall(NEXT, bank).items == experience.items


def test_lessons_that_were_shown_are_noted_with_the_experience(bank: MemoryBank) -> None:
    run = program()
    run.learn(TASK, DICTS, bank)
    memory = run.recall(NEXT, bank)
    experience = run.learn(NEXT, [{"action": "type 4711", "observation": SAID}], bank, memory=memory)
    assert experience.shown == tuple(item.id for item in memory.items)


def test_a_rollout_that_waits_is_learned_from_if_learn_is_called_again(bank: MemoryBank) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    with pytest.raises(errors.InfrastructureError):
        program(Spy({"judge": down})).learn(TASK, DICTS, bank)
    assert len(bank.pending()) == 1
    experience = program().learn(TASK, DICTS, bank)
    assert (bank.pending(), bank.experiences()) == ([], [experience])


@pytest.mark.parametrize("run_id", ["", "monday"])
def test_a_recorded_rollout_is_learned_from_later_with_all_that_was_said_of_it(bank: MemoryBank, run_id: str) -> None:
    spy = Spy()
    run = program(spy)
    shown = bank.add("Doors", "A door with a keypad opens by a code.")
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    steps = [{"action": "type 4711", "observation": f"{SAID} The token is {key}."}]
    memory = Memory(items=(shown,))
    said: dict[str, Any] = {"outcome": 0.75, "feedback": "It is always 4711.", "origin": "mail:ann", "run_id": run_id}
    task = Task(id="door/1", instruction=TASK)
    waits = run.record(task, steps, bank, memory=memory, **said)

    assert spy.roles_asked() == []
    assert (waits.note, waits.verdicts, waits.items) == ("pending", (), ())
    assert run.learn(task, steps, bank, memory=memory, later=True, **said) == waits, "the same call, the same rollout"
    (pending,) = bank.pending()
    assert (pending.id, pending.reward, pending.origin, pending.shown) == (waits.id, 0.75, "mail:ann", (shown,))
    assert key not in repr(pending.trajectories[0].steps[0].observation)

    learned = run.resume(pending).experience
    assert spy.roles_asked() == ["distiller"], "the outcome is known"
    assert "It is always 4711." in spy.of("distiller")[0].text
    assert learned == bank.get(waits.id)
    assert (learned.reward, learned.origin, learned.shown) == (0.75, "mail:ann", (shown.id,))
    assert (learned.verdicts[0].label, learned.trajectories) == ("success", waits.trajectories)
    assert (bank.pending(), run.record(task, steps, bank, run_id=run_id)) == ([], learned)
    assert bank.uses(shown.id)[0].reward == 0.75


def test_a_correction_can_be_recorded_too(bank: MemoryBank) -> None:
    spy = Spy()
    run = program(spy)
    task = Task(id="door/1", instruction=TASK)
    first = run.learn(task, OPENAI, bank, verdict="failure")
    run.record(task, OPENAI, bank, verdict="success")
    assert bank.get(first.id) == first
    (pending,) = bank.pending()
    corrected = run.resume(pending).experience
    assert [verdict.label for verdict in corrected.verdicts] == ["success"]
    assert bank.experiences() == [corrected]
    with pytest.raises(errors.InputError, match="outcome is 2"):
        run.record(task, OPENAI, bank, outcome=2)


@pytest.mark.parametrize("run_id", ["", "monday"])
@pytest.mark.parametrize("later", ["", "first", "second", "both"])
@pytest.mark.parametrize(
    ("said", "then", "stated"),
    [
        ({"outcome": 1.0}, {"outcome": 0.75}, ("success", "", 0.75)),
        ({"outcome": 1.0}, {"outcome": 0.0}, ("failure", "", 0.0)),
        ({"outcome": 0.75}, {"feedback": "By 4711."}, ("success", "By 4711.", 0.75)),
        ({"feedback": "By 4711."}, {"outcome": 0.75}, ("success", "By 4711.", 0.75)),
        ({"outcome": 0.25, "feedback": "No."}, {"verdict": "success"}, ("success", "No.", 1.0)),
        ({"outcome": 0.75}, {"verdict": "success"}, ("success", "", 0.75)),
        ({"outcome": 0.75}, {}, ("success", "", 0.75)),
    ],
    ids=str,
)
def test_what_is_said_later_counts_and_what_was_said_before_stays(
    bank: MemoryBank,
    said: dict[str, Any],
    then: dict[str, Any],
    stated: tuple[str, str, float],
    later: str,
    run_id: str,
) -> None:
    spy = Spy()
    run = program(spy)
    task = Task(id="door/1", instruction=TASK)
    shown = bank.add("Doors", "A door with a keypad opens by a code.")
    memory = Memory(items=(shown,))
    run.learn(task, OPENAI, bank, memory=memory, run_id=run_id, later=later in ("first", "both"), **said)
    for _ in range(2):
        run.learn(task, OPENAI, bank, run_id=run_id, later=later in ("second", "both"), **then)
    for pending in bank.pending():
        run.resume(pending)
    (made,) = [each for each in bank.experiences() if each.task.id == task.id]
    (rollout,) = made.trajectories
    assert (rollout.known_label, rollout.feedback, made.reward) == stated
    assert (made.verdicts[0].label, made.shown) == (stated[0], (shown.id,))
    asked = spy.roles_asked()
    assert run.learn(task, OPENAI, bank, run_id=run_id, **then) == made, "the same once more"
    assert spy.roles_asked() == asked
    if {"outcome", "verdict"} & said.keys():
        assert "judge" not in asked, "the outcome was known from the beginning"
    assert bank.pending() == []


def test_a_correction_that_is_taken_back_before_it_is_learned_from_changes_nothing(bank: MemoryBank) -> None:
    run = program()
    first = run.learn(TASK, OPENAI, bank, outcome=1.0)
    run.record(TASK, OPENAI, bank, outcome=0.0)
    assert len(bank.pending()) == 1
    assert run.record(TASK, OPENAI, bank, outcome=1.0) == first
    assert bank.pending() == []


def test_who_says_how_it_went_does_not_raise_a_rollout_that_waits(bank: MemoryBank) -> None:
    run = program()
    run.record(TASK, OPENAI, bank, origin="mail:ann")
    bank.trust = TrustConfig(origins={"mail:*": "held"})
    run.record(TASK, OPENAI, bank, outcome=1.0)
    assert [pending.origin for pending in bank.pending()] == ["mail:ann"]
    learned = run.learn(TASK, OPENAI, bank)
    assert (learned.origin, learned.level, learned.reward) == ("mail:ann", "held", 1.0)
