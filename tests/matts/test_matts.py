"""Several rollouts of every task: modes, lost rollouts, selection, and what is learned from them together."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones, budget
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ActConfig, ContrastConfig, MattsConfig, MattsMode, ProgramConfig, RefineConfig, SelectConfig
from rb_dspy.errors import BackboneError, BudgetSpent, ConfigError, InfrastructureError, UnparseableOutput
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task, Verdict
from rb_dspy.stream import run_stream
from rb_dspy.testing import (
    Corridor,
    Doors,
    Faulty,
    Prompt,
    Reply,
    corridor,
    hall,
    lock,
    locksmith,
    scripted_lm,
    scripted_program,
)

HALL = hall("arno", 1)
MODES: list[MattsMode] = ["parallel", "sequential", "best_of_n", "vanilla"]


def prompts(program: Any, field: str) -> list[Prompt]:
    return [prompt for prompt in program.backbones.lm("agent").engine.prompts if field in prompt.wants]


def test_contrast_learns_what_no_rollout_alone_teaches_and_it_helps_on_the_next_task(bank: MemoryBank) -> None:
    scaled = MaTTS(scripted_program(), k=4, mode="parallel")
    done = scaled(task=HALL, bank=bank)
    assert [item.content for item in done.memory_items] == ["What arno made opens with open the blue door."]
    assert len({trajectory.rollout_id for trajectory in done.trajectories}) == 4
    after = scaled(task=hall("arno", 2), bank=bank)
    assert all(verdict.label == "success" for verdict in after.verdicts)
    vanilla = MaTTS(scripted_program(), k=4, mode="vanilla")(task=HALL, bank=bank.fork(), run_id="other")
    assert "opens with" not in "".join(item.content for item in vanilla.memory_items)


def test_a_key_that_is_refused_ends_the_call(bank: MemoryBank) -> None:
    def refused(prompt: Prompt) -> Reply:
        raise lm15.AuthError("bad key")

    with pytest.raises(BackboneError):
        MaTTS(scripted_program(refused), k=3)(task=HALL, bank=bank)
    assert bank.pending() == []


def test_a_bug_of_the_callers_is_raised_as_it_is(bank: MemoryBank) -> None:
    def environments(task: Task, rollout_id: str) -> Any:
        if rollout_id == "1":
            raise KeyboardInterrupt
        return Doors.make(task, rollout_id)

    with pytest.raises(KeyboardInterrupt):
        MaTTS(scripted_program(), k=3)(task=HALL, bank=bank, environments=environments)


@pytest.mark.parametrize("mode", MODES)
def test_rollouts_wait_in_the_bank_until_they_are_learned_from(bank: MemoryBank, mode: MattsMode) -> None:
    fail = True

    def script(prompt: Prompt) -> Reply:
        if fail and "label" in prompt.wants:
            raise lm15.ServerError("down")
        return locksmith(prompt)

    scaled = MaTTS(scripted_program(script), k=3, mode=mode)
    with pytest.raises(InfrastructureError):
        scaled(task=HALL, bank=bank, run_id="r")
    (pending,) = bank.pending(run_id="r")
    assert len(pending.trajectories) == (1 if mode == "sequential" else 3)
    assert list(bank.experiences()) == []
    fail = False
    done = scaled.resume(pending)
    assert done.experience.trajectories == pending.trajectories
    assert bank.pending() == []
    assert bank.learned("r") == {HALL.id}


def test_lessons_that_cannot_be_parsed_leave_the_rollouts_pending_and_after_two_resumes_unknown(
    bank: MemoryBank,
) -> None:
    def script(prompt: Prompt) -> Reply:
        return "nothing that can be read" if "memory_items" in prompt.wants else locksmith(prompt)

    scaled = MaTTS(scripted_program(script), k=2)
    with pytest.raises(UnparseableOutput):
        scaled(task=HALL, bank=bank, run_id="r")
    (pending,) = bank.pending()
    assert pending.tries == 1
    with pytest.raises(UnparseableOutput):
        scaled.resume(pending)
    (pending,) = bank.pending()
    done = scaled.resume(pending)
    assert {verdict.label for verdict in done.verdicts} == {"unknown"}
    assert (done.experience.items, bank.pending()) == ((), [])


def test_a_judge_that_fails_on_one_rollout_says_unknown_of_that_one(bank: MemoryBank) -> None:
    def judge(task: Task, trajectory: Any) -> Verdict:
        if trajectory.rollout_id == "1":
            raise OSError("gone")
        return Verdict(label="success")

    program = scripted_program()
    program.judge = judge
    done = MaTTS(program, k=3)(task=HALL, bank=bank)
    assert [verdict.label for verdict in done.verdicts] == ["success", "unknown", "success"]


def test_labels_and_verdicts_reach_contraster_and_selector_only_if_configured(bank: MemoryBank) -> None:
    shown = MattsConfig(k=3, contrast=ContrastConfig(labels=True), select=SelectConfig(verdicts=True))
    for config, count in ((MattsConfig(k=3), 0), (shown, 3)):
        scaled = MaTTS(scripted_program(), config=config)
        scaled(task=HALL, bank=bank.fork())
        assert prompts(scaled, "memory_items")[0].text.count("(judged: ") == count
        assert prompts(scaled, "choice")[0].text.count("(judged: ") == count


def test_equal_samples_are_refused(bank: MemoryBank) -> None:
    cold = ProgramConfig(act=ActConfig(temperature=0.0))
    with pytest.raises(ConfigError):
        MaTTS(scripted_program(locksmith, cold), k=2)(task=HALL, bank=bank)
    with pytest.raises(ConfigError):
        MaTTS(scripted_program(), k=0)
    with pytest.raises(ConfigError):
        MaTTS("program")  # type: ignore[arg-type]
    scaled = MaTTS(scripted_program(), k=2)
    scaled(task=HALL, bank=bank)
    assert {prompt.temperature for prompt in prompts(scaled, "action")} == {0.7}


# Sequential

SHORT = ProgramConfig(act=ActConfig(max_steps=1))


def checker(confirm_from: int) -> Any:
    """Walks one room a play, and confirms from that check on."""

    def script(prompt: Prompt) -> Reply:
        if "decision" in prompt.wants:
            number = prompt["earlier_checks"].count("\n") + 2 if "earlier_checks" in prompt else 1
            decision = "confirm" if number >= confirm_from else "revise"
            return {"findings": f"check {number}", "decision": decision}
        return locksmith(prompt)

    return script


def test_a_revision_goes_on_in_the_same_environment(bank: MemoryBank) -> None:
    program = ReasoningBank(
        ProgramConfig(act=ActConfig(max_steps=1)),
        backbones=Backbones(agent=scripted_lm(checker(3))),
        environments=Corridor.make,
    )
    done = MaTTS(program, k=4, mode="sequential")(task=corridor(length=3), bank=bank)
    (trajectory,) = done.trajectories
    assert [check.decision for check in trajectory.checks] == ["revise", "revise", "confirm"]
    assert [check.after for check in trajectory.checks] == [1, 2, 3]
    assert (len(trajectory.steps), done.launched) == (3, 4)
    assert "[check of the work so far: revise] check 1" in prompts(program, "label")[0]["trajectory"]


def test_until_confirmed_stops_early_and_an_unparseable_check_confirms(bank: MemoryBank) -> None:
    config = MattsConfig(k=5, mode="sequential", refine=RefineConfig(until_confirmed=True))
    program = scripted_program(checker(1))
    assert MaTTS(program, config=config)(task=corridor(), bank=bank).launched == 2

    def script(prompt: Prompt) -> Reply:
        return "???" if "decision" in prompt.wants else locksmith(prompt)

    program = scripted_program(script)
    done = MaTTS(program, config=config)(task=corridor(2), bank=bank)
    assert done.trajectory.checks[0].decision == "confirm"


def test_an_answer_is_not_revised_when_the_environment_has_said_whether_it_was_right(bank: MemoryBank) -> None:
    program = scripted_program(checker(9))
    done = MaTTS(program, k=3, mode="sequential")(task=lock("abus", 1), bank=bank)
    (trajectory,) = done.trajectories
    assert [check.decision for check in trajectory.checks] == ["revise"]
    assert (len(trajectory.steps), done.launched) == (1, 2)
    assert len(prompts(program, "action")) == 1


def test_what_breaks_a_later_pass_keeps_what_was_reached(bank: MemoryBank) -> None:
    program = scripted_program(checker(9))
    environments = Faulty.of(Corridor.make, at="reopen", error=OSError("gone"))
    scaled = MaTTS(program, k=3, mode="sequential")
    config = corridor(length=3)
    done = scaled(task=config, bank=bank, environments=environments)
    assert len(done.trajectories[0].steps) == 3
    assert [("gone" in each.error) for each in done.lost] == [True]


def test_a_revision_that_cannot_be_parsed_leaves_the_attempt_as_it_had_ended(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            return "???" if "check 1" in prompt["observation"] else {"thought": "", "action": "wait"}
        return checker(9)(prompt)

    config = ProgramConfig(act=ActConfig(max_steps=2))
    program = scripted_program(script, config)
    (trajectory,) = MaTTS(program, k=2, mode="sequential")(task=corridor(), bank=bank).trajectories
    assert (len(trajectory.steps), trajectory.stop_reason) == (2, "max_steps")


def test_a_key_that_is_refused_at_a_check_loses_no_attempt(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            return locksmith(prompt)
        raise lm15.AuthError("bad key")

    program = scripted_program(script)
    with pytest.raises(BackboneError):
        MaTTS(program, k=3, mode="sequential")(task=corridor(length=3), bank=bank)
    (pending,) = bank.pending()
    assert len(pending.trajectories[0].steps) == 3


def test_a_cap_between_two_passes_leaves_no_attempt_with_fewer_passes(bank: MemoryBank) -> None:
    asked, task = 0, corridor(length=9)

    def script(prompt: Prompt) -> Reply:
        nonlocal asked
        asked += 1
        return checker(9)(prompt)

    scaled = MaTTS(scripted_program(script, SHORT), k=4, mode="sequential")
    with budget() as free:
        scaled(task=task, bank=bank.fork(), learn=False)
    whole = asked
    with pytest.raises(BudgetSpent), budget(max_tokens=free.tokens * (whole - 2) // whole):
        run_stream(scaled, [task], bank, run_id="r")
    assert 0 < asked - whole < whole
    assert bank.pending() == []
    done = run_stream(scaled, [task], bank, run_id="r").results[0].prediction
    assert done is not None
    assert (done.launched, len(done.trajectory.checks)) == (4, 3)


def test_passes_of_an_attempt_that_waited_are_counted(bank: MemoryBank) -> None:
    down = True

    def script(prompt: Prompt) -> Reply:
        if down and "label" in prompt.wants:
            raise lm15.ServerError("down")
        return checker(9)(prompt)

    scaled = MaTTS(scripted_program(script, SHORT), k=3, mode="sequential")
    with pytest.raises(InfrastructureError):
        scaled(task=corridor(length=9), bank=bank, run_id="r")
    down = False
    assert scaled.resume(*bank.pending()).launched == 3


# Speed and asyncio


def test_rollouts_run_side_by_side_and_so_do_judges_contrast_and_selection(bank: MemoryBank) -> None:
    acting, learning = threading.Barrier(8, timeout=20), threading.Barrier(10, timeout=20)

    def script(prompt: Prompt) -> Reply:
        (acting if "action" in prompt.wants else learning).wait()
        return locksmith(prompt)

    program = scripted_program(script)
    done = MaTTS(program, k=8)(task=lock("abus", 1), bank=bank)
    assert len(done.verdicts) == 8


def test_at_once_limits_what_runs_side_by_side(bank: MemoryBank) -> None:
    active, most, lock = 0, 0, threading.Lock()

    def script(prompt: Prompt) -> Reply:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        time.sleep(0.005)
        with lock:
            active -= 1
        return locksmith(prompt)

    MaTTS(scripted_program(script), config=MattsConfig(k=6, at_once=2))(task=HALL, bank=bank)
    assert most == 2


def test_it_has_the_programs_predictors_and_takes_its_state(bank: MemoryBank) -> None:
    program, scaled = scripted_program(), MaTTS(scripted_program(), k=2)
    assert [name for name, _ in scaled.named_predictors()] == [
        *("act.predict", "judge.predict", "distill.success", "distill.failure"),
        *("contrast.predict", "select.predict", "refine.first", "refine.again"),
    ]
    program.judge.predict.signature = program.judge.predict.signature.with_instructions("Be kind.")
    scaled.load_state(program.dump_state())
    assert scaled.judge.predict.signature.instructions == "Be kind."
    copied = scaled.deepcopy()
    copied.judge.predict.signature = copied.judge.predict.signature.with_instructions("Be strict.")
    assert scaled.judge.predict.signature.instructions == "Be kind."
    assert copied(task=HALL, bank=bank).answer is None
