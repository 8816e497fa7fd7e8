"""The loop: retrieve, act, judge, distil, append."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Backbones, MaTTS, MemoryBank, Outcome, ReasoningBank, Task, Trajectory, Verdict
from rb_dspy.testing import Corridor, HashEmbedder, Prompt, Reply, scripted_lm
from tests.scenarios.world import (
    GUESS,
    Keypad,
    Spy,
    contents,
    keypad,
    keypad_rooms,
    keypads,
    lesson,
    lessons,
    program,
)

CANARY = "zq7canary"


def test_one_task_is_acted_judged_distilled_and_appended_in_this_order(bank: MemoryBank) -> None:
    spy = Spy()
    done = program(spy)(task=keypad(), bank=bank)

    assert spy.roles_asked() == ["agent", "judge", "distiller"]
    assert done.answer == GUESS
    assert [(step.thought, step.action, step.observation) for step in done.trajectory.steps] == [
        ("I guess.", GUESS, f"Keypad 1 took {GUESS} and opens.")
    ]
    assert done.trajectory.first_observation == "Keypad 1 waits."
    assert (done.verdict.label, done.verdict.reasons) == ("success", "The keypad says so.")
    assert [(item.title, item.content) for item in done.memory_items] == [("Use the code", "Here the code is 0000.")]
    assert done.memory.items == ()
    assert [each.id for each in bank.experiences()] == [done.experience.id]
    assert bank.pending() == []
    assert done.usage["agent"].calls == done.usage["judge"].calls == done.usage["distiller"].calls == 1


def test_the_second_task_is_shown_what_the_first_one_taught(bank: MemoryBank) -> None:
    spy = Spy()
    run = program(spy)
    run(task=keypad(1), bank=bank)
    done = run(task=keypad(2), bank=bank)

    assert [item.content for item in done.memory.items] == ["Here the code is 0000."]
    assert "Here the code is 0000." in spy.of("agent")[-1].text
    assert done.trajectory.steps[0].thought == "A lesson names it."
    assert done.experience.shown == tuple(item.id for item in done.memory.items)


def test_a_failure_teaches_by_another_prompt_than_a_success(bank: MemoryBank) -> None:
    spy = Spy()
    run = program(spy)
    run(task=keypad(1), bank=bank)
    failed = run(task=keypad(2, code="9999", maker="Yale"), bank=bank)

    assert failed.verdict.label == "failure"
    assert [item.polarity for item in failed.memory_items] == ["failure"]
    success, failure = spy.of("distiller")
    assert success.system != failure.system


def test_a_task_is_not_shown_its_own_lessons(bank: MemoryBank) -> None:
    run = program()
    run(task=keypad(1), bank=bank, run_id="monday")
    assert run(task=keypad(1), bank=bank, run_id="tuesday").memory.items == ()
    assert run.recall(keypad(1), bank).items == ()
    assert run.recall(keypad(2), bank).items != ()


def test_without_learning_nothing_is_written_and_nobody_is_judged(bank: MemoryBank) -> None:
    run = program()
    run(task=keypad(1), bank=bank)
    before = contents(bank)
    spy = Spy()
    done = program(spy)(task=keypad(2), bank=bank, learn=False)

    assert spy.roles_asked() == ["agent"]
    assert [item.content for item in done.memory.items] == ["Here the code is 0000."]
    assert (done.verdict, done.experience, done.memory_items) == (None, None, ())
    assert (contents(bank), bank.pending(), bank.seen_tasks()) == (before, [], {"keypad/Abus/1"})


class _Telling(Keypad):
    """Its ground truth carries words that nobody but a scorer may read."""

    def outcome(self) -> Outcome:
        return Outcome(reward=0.731, success=True, info={"truth": f"{CANARY}-outcome"})


@pytest.mark.parametrize("mode", [None, "parallel", "sequential", "vanilla", "best_of_n"])
def test_no_role_ever_reads_ground_truth(bank: MemoryBank, mode: Any) -> None:
    spy = Spy()
    run: Any = program(spy, environments=lambda task, rollout: _Telling(1, f"{CANARY}-code", presses=2))
    run = run if mode is None else MaTTS(run, k=3, mode=mode)
    for number in (1, 2):
        task = keypad(number, code=f"{CANARY}-code", answer=f"{CANARY}-answer")
        run(task=task.model_copy(update={"template": f"{CANARY}-template"}), bank=bank)

    expected = {None: {"agent", "judge", "distiller"}, "sequential": {"agent", "checker", "judge", "distiller"}}
    assert set(spy.roles_asked()) >= expected.get(mode, {"agent", "judge", "distiller", "selector"})
    everything = "\n".join(prompt.text for prompt in spy.prompts)
    assert CANARY not in everything
    assert "0.731" not in everything


def test_a_judge_of_ones_own_gets_no_ground_truth(bank: MemoryBank) -> None:
    judged: list[Task] = []

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        judged.append(task)
        return Verdict(label="failure", reasons="I am strict.")

    done = program(judge=judge)(task=keypad(code=CANARY), bank=bank)
    assert (done.verdict.label, done.verdict.reasons) == ("failure", "I am strict.")
    assert CANARY not in repr(judged) + str([task.env_args for task in judged])
    assert judged[0].instruction == keypad().instruction


async def test_an_async_judge_is_awaited(bank: MemoryBank) -> None:
    async def judge(task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(label="success", reasons="Awaited.")

    done = await program(judge=judge).acall(task=keypad(code="9999"), bank=bank)
    assert done.verdict.reasons == "Awaited."
    assert done.experience.verdicts == (done.verdict,)


def test_a_verdict_of_unknown_is_stored_without_lessons(bank: MemoryBank) -> None:
    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(label="unknown", reasons="I cannot see it.")

    spy = Spy()
    done = program(spy, judge=judge)(task=keypad(), bank=bank)
    assert (done.verdict.label, done.memory_items) == ("unknown", ())
    assert spy.of("distiller") == []
    assert bank.seen_tasks() == {keypad().id}
    assert bank.pending() == []


@pytest.mark.parametrize("presses", [2, 5])
def test_prompts_of_a_rollout_only_grow_at_the_end(bank: MemoryBank, presses: int) -> None:
    spy = Spy()
    run = program(spy)
    run(task=keypad(1, presses=presses), bank=bank)
    run(task=keypad(2, presses=presses), bank=bank)

    turns = spy.of("agent")[presses:]
    assert len(turns) == presses
    for before, after in pairwise(turns):
        assert after.system == before.system
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) == len(before.messages) + 2
    assert turns[-1].text.count(keypad(2).instruction) == 1
    assert turns[-1].text.count("Here the code is 0000.") == 1


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
        for task in keypads(4, presses=3):
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
    run = ReasoningBank(backbones=backbones, environments=keypad_rooms())
    run(task=keypad(), bank=bank)
    assert [set(spy.roles_asked()) for spy in (agent, judge, distiller)] == [{"agent"}, {"judge"}, {"distiller"}]

    other = Spy()
    run.backbones = backbones.replace(judge=scripted_lm(other))
    run(task=keypad(2), bank=bank)
    assert (len(judge.prompts), other.roles_asked()) == (1, ["judge"])


def test_at_most_three_lessons_of_one_rollout_are_appended(bank: MemoryBank) -> None:
    def talkative(prompt: Prompt) -> Reply:
        texts = ("Read the label first", "Ask the owner", "Count the keys twice", "Look for wear", "Leave at noon")
        return {
            "analysis": "A lot.",
            "memory_items": [lesson(text, f"{text}, since it helps.", prompt) for text in texts],
        }

    done = program(Spy({"distiller": talkative}))(task=keypad(), bank=bank)
    assert [item.title for item in done.memory_items] == [
        "Read the label first",
        "Ask the owner",
        "Count the keys twice",
    ]
    assert len(lessons(bank)) == 3


def test_a_copy_is_independent_and_does_the_same(bank: MemoryBank) -> None:
    run = program()
    copy = run.deepcopy()
    predictor = dict(copy.named_predictors())["judge.predict"]
    predictor.signature = predictor.signature.with_instructions("Be kind.")
    assert dict(run.named_predictors())["judge.predict"].signature.instructions != "Be kind."

    spy = Spy()
    copy.backbones = Backbones(agent=scripted_lm(spy))
    assert copy(task=keypad(), bank=bank).verdict.label == "success"
    assert "Be kind." in spy.of("judge")[0].system


def test_the_state_of_a_program_is_its_prompts_and_can_be_loaded_into_another(bank: MemoryBank, tmp_path: Path) -> None:
    taught = program()
    predictor = dict(taught.named_predictors())["act.predict"]
    predictor.signature = predictor.signature.with_instructions("Type slowly, with \u00fcmlauts.")
    taught.save(tmp_path / "state.json")
    assert "scripted" not in (tmp_path / "state.json").read_text(), "no language model is in the state"

    spy = Spy()
    fresh = program(spy)
    fresh.load(tmp_path / "state.json")
    fresh(task=keypad(), bank=bank)
    assert "Type slowly, with \u00fcmlauts." in spy.of("agent")[0].system


def test_the_names_of_the_predictors_are_those_that_saved_programs_use() -> None:
    alone = ["act.predict", "judge.predict", "distill.success", "distill.failure"]
    assert sorted(name for name, _ in program().named_predictors()) == sorted(alone)
    scaled = [name for name, _ in MaTTS(program(), k=2).named_predictors()]
    assert set(scaled) >= {*alone, "contrast.predict", "select.predict"}
    assert all(name.startswith("refine.") for name in set(scaled) - {*alone, "contrast.predict", "select.predict"})
