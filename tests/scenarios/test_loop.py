"""The loop: retrieve, act, judge, distil, append."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Backbones, MaTTS, MemoryBank, Outcome, ReasoningBank, Task, Trajectory, Verdict
from rb_dspy.testing import Corridor, HashEmbedder, Lock, lock, scripted_lm, toys
from rb_dspy.testing.locks import GUESS
from tests.scenarios.helpers import Spy, contents, easy, program, series

CANARY = "zq7canary"


def test_one_task_is_acted_judged_distilled_and_appended_in_this_order(bank: MemoryBank) -> None:
    spy = Spy()
    done = program(spy)(task=easy(), bank=bank)

    assert spy.roles_asked() == ["agent", "judge", "distiller"]
    assert done.answer == GUESS
    assert [(step.thought, step.action, step.observation) for step in done.trajectory.steps] == [
        ("I guess.", GUESS, f"It opens with {GUESS}.")
    ]
    assert done.trajectory.first_observation == "The keypad waits for a code."
    assert (done.verdict.label, done.verdict.reasons) == ("success", "The last observation shows it.")
    assert [(item.title, item.content) for item in done.memory_items] == [
        ("Use what worked", "What Abus made opens with 0000.")
    ]
    assert done.memory.items == ()
    assert [each.id for each in bank.experiences()] == [done.experience.id]
    assert bank.pending() == []
    assert done.usage["agent"].calls == done.usage["judge"].calls == done.usage["distiller"].calls == 1


def test_the_second_task_is_shown_what_the_first_one_taught(bank: MemoryBank) -> None:
    spy = Spy()
    run = program(spy)
    run(task=easy(1), bank=bank)
    done = run(task=easy(2), bank=bank)

    assert [item.content for item in done.memory.items] == ["What Abus made opens with 0000."]
    assert "What Abus made opens with 0000." in spy.of("agent")[-1].text
    assert done.trajectory.steps[0].thought == "A lesson says it."
    assert done.experience.shown == tuple(item.id for item in done.memory.items)


def test_a_failure_teaches_by_another_prompt_than_a_success(bank: MemoryBank) -> None:
    spy = Spy()
    run = program(spy)
    run(task=easy(1), bank=bank)
    failed = run(task=lock("Yale", 2, "9999"), bank=bank)

    assert failed.verdict.label == "failure"
    assert [item.polarity for item in failed.memory_items] == ["failure"]
    success, failure = spy.of("distiller")
    assert success.system != failure.system


def test_a_task_is_not_shown_its_own_lessons(bank: MemoryBank) -> None:
    run = program()
    run(task=easy(1), bank=bank, run_id="monday")
    assert run(task=easy(1), bank=bank, run_id="tuesday").memory.items == ()
    assert run.recall(easy(1), bank).items == ()
    assert run.recall(easy(2), bank).items == tuple(bank.items())
    text = easy(3).instruction
    run.learn(text, [{"action": GUESS, "observation": f"It opens with {GUESS}."}], bank)
    assert run.recall(text, bank), "a text is another occasion"


def test_without_learning_nothing_is_written_and_nobody_is_judged(bank: MemoryBank) -> None:
    run = program()
    run(task=easy(1), bank=bank)
    before = contents(bank)
    spy = Spy()
    done = program(spy)(task=easy(2), bank=bank, learn=False)

    assert spy.roles_asked() == ["agent"]
    assert [item.content for item in done.memory.items] == ["What Abus made opens with 0000."]
    assert (done.verdict, done.experience, done.memory_items) == (None, None, ())
    assert (contents(bank), bank.pending(), bank.seen_tasks()) == (before, [], {"lock/Abus/1"})


class _Telling(Lock):
    """Its ground truth carries words that nobody but a scorer may read."""

    def outcome(self) -> Outcome:
        return Outcome(reward=0.731, success=True, info={"truth": f"{CANARY}-outcome"})


@pytest.mark.parametrize("mode", [None, "parallel", "sequential", "vanilla", "best_of_n"])
def test_no_role_ever_reads_ground_truth(bank: MemoryBank, mode: Any) -> None:
    spy = Spy()
    run: Any = program(spy, environments=lambda task, rollout: _Telling(f"{CANARY}-code", presses=2))
    run = run if mode is None else MaTTS(run, k=3, mode=mode)
    for number in (1, 2):
        task = easy(number, code=f"{CANARY}-code", answer=f"{CANARY}-answer")
        run(task=task.model_copy(update={"template": f"{CANARY}-template"}), bank=bank)

    expected = {None: {"agent", "judge", "distiller"}, "sequential": {"agent", "checker", "judge", "distiller"}}
    assert set(spy.roles_asked()) >= expected.get(mode, {"agent", "judge", "distiller", "selector"})
    everything = "\n".join(prompt.text for prompt in spy.prompts)
    assert CANARY not in everything
    assert "0.731" not in everything


def test_a_verdict_of_unknown_is_stored_without_lessons(bank: MemoryBank) -> None:
    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(label="unknown", reasons="I cannot see it.")

    spy = Spy()
    done = program(spy, judge=judge)(task=easy(), bank=bank)
    assert (done.verdict.label, done.memory_items) == ("unknown", ())
    assert spy.of("distiller") == []
    assert bank.seen_tasks() == {easy().id}
    assert bank.pending() == []


def test_prompts_of_a_rollout_only_grow_at_the_end(bank: MemoryBank) -> None:
    spy, presses = Spy(), 4
    run = program(spy)
    run(task=easy(1, presses=presses), bank=bank)
    run(task=easy(2, presses=presses), bank=bank)

    turns = spy.of("agent")[presses:]
    assert len(turns) == presses
    for before, after in pairwise(turns):
        assert after.system == before.system
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) == len(before.messages) + 2
    assert turns[-1].text.count(easy(2).instruction) == 1
    assert turns[-1].text.count("What Abus made opens with 0000.") == 1


def test_actions_that_an_environment_lists_are_shown_and_the_step_limit_ends_a_rollout(bank: MemoryBank) -> None:
    spy = Spy({"agent": lambda prompt: {"thought": "I stay.", "action": "wait"}})
    task = Task(id="corridor/1", instruction="Walk to the end.", env="corridor", env_args={"length": 2})
    done = program(spy, environments=Corridor.make)(task=task, bank=bank)

    assert all(action in spy.of("agent")[0].text for action in ("forward", "back", "wait"))
    assert len(done.trajectory.steps) > 2
    assert {step.action for step in done.trajectory.steps} == {"wait"}
    assert done.trajectory.stop_reason == "max_steps"
    assert done.verdict.label == "failure"


async def test_calls_and_awaited_calls_do_the_same(bank: MemoryBank, tmp_path: Path) -> None:
    with MemoryBank.open(tmp_path / "other.sqlite", scope="scenarios", embedder=HashEmbedder()) as other:
        plain, awaited = Spy(), Spy()
        one, two = program(plain), program(awaited)
        for task in series(2, presses=2):
            here, there = one(task=task, bank=bank), await two.acall(task=task, bank=other)
            assert (here.answer, here.verdict, here.trajectory.steps) == (
                there.answer,
                there.verdict,
                there.trajectory.steps,
            )
            assert [item.content for item in here.memory.items] == [item.content for item in there.memory.items]
        assert [prompt.text for prompt in plain.prompts] == [prompt.text for prompt in awaited.prompts]
        assert contents(bank) == contents(other)


def test_a_bare_text_is_a_question_with_one_answer(bank: MemoryBank) -> None:
    spy = Spy({"agent": lambda prompt: {"thought": "Easy.", "action": "Paris"}})
    run = ReasoningBank(backbones=Backbones(agent=scripted_lm(spy)))
    done = run(task="What is the capital of France?", bank=bank)
    assert done.answer == "Paris"
    assert len(spy.of("agent")) == 1


def test_each_role_asks_its_own_model(bank: MemoryBank) -> None:
    agent, judge, distiller = Spy(), Spy(), Spy()
    backbones = Backbones(agent=scripted_lm(agent), judge=scripted_lm(judge), distiller=scripted_lm(distiller))
    run = ReasoningBank(backbones=backbones, environments=toys)
    run(task=easy(), bank=bank)
    assert [set(spy.roles_asked()) for spy in (agent, judge, distiller)] == [{"agent"}, {"judge"}, {"distiller"}]

    other = Spy()
    run.backbones = backbones.replace(judge=scripted_lm(other))
    run(task=easy(2), bank=bank)
    assert (len(judge.prompts), other.roles_asked()) == (1, ["judge"])
