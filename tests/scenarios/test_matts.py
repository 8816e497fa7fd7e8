"""MaTTS: several rollouts of one task, one of them handed in, lessons from all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Environment, MaTTS, MemoryBank, Task, Verdict, budget, errors, run_stream
from rb_dspy.config import MattsConfig
from rb_dspy.testing import Faulty, HashEmbedder, Lock, Prompt, Reply, lock
from rb_dspy.testing.locks import GUESS
from tests.scenarios.helpers import Spy, contents, easy, learned_tasks, lessons, program, series

SIDE_BY_SIDE = ("parallel", "vanilla", "best_of_n")
CODE = "4711"


class Repeats(Lock):
    """A lock that says what was typed, also when it stays shut."""

    def step(self, action: str) -> tuple[str, bool]:
        observation, done = super().step(action)
        return f"{action}: {observation}", done


def types_code_in(*good: int) -> Any:
    """An agent that types the code in the rollouts with these numbers, and others in the others."""

    def agent(prompt: Prompt) -> Reply:
        number = prompt.seed or 0
        return {"thought": "I try.", "action": CODE if number in good else f"try{number}"}

    return agent


def scaled(spy: Any, k: int = 3, mode: Any = "parallel", breaks: Any = (), ids: list[str] | None = None) -> MaTTS:
    """The locks of the rollouts in ``breaks`` break at their first step."""

    def make(task: Task, rollout_id: str) -> Environment:
        if ids is not None:
            ids.append(rollout_id)
        made = Repeats.make(task, rollout_id)
        return Faulty(made, error=OSError("the lock has no power")) if int(rollout_id) in breaks else made

    return MaTTS(program(spy, environments=make), k=k, mode=mode)


def answers(done: Any) -> list[str]:
    return sorted(str(rollout.answer) for rollout in done.trajectories)


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_the_selected_rollout_is_the_answer(bank: MemoryBank, mode: str) -> None:
    spy, ids = Spy({"agent": types_code_in(1)}), list[str]()
    done = scaled(spy, mode=mode, ids=ids)(task=lock(code=CODE), bank=bank)

    assert answers(done) == [CODE, "try0", "try2"]
    assert done.answer == CODE
    assert done.trajectory == done.trajectories[done.selection.index]
    assert done.verdict == done.verdicts[done.selection.index]
    assert done.selection.analysis == "The last observations show it."
    assert sorted(verdict.label for verdict in done.verdicts) == ["failure", "failure", "success"]
    assert len({rollout.rollout_id for rollout in done.trajectories}) == len(set(ids)) == 3
    assert done.lost == ()
    assert (spy.roles_asked().count("agent"), spy.roles_asked().count("selector")) == (3, 1)
    assert learned_tasks(bank) == [easy().id], "one experience holds all rollouts"
    assert len(done.experience.trajectories) == len(done.experience.verdicts) == 3
    assert bank.pending() == []


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_the_bank_knows_which_rollout_was_submitted(bank: MemoryBank, mode: str, tmp_path: Path) -> None:
    several = scaled(Spy({"agent": types_code_in(1)}), mode=mode)
    several.judge = lambda task, rollout: Verdict(label="failure")
    done = several(task=lock(code=CODE), bank=bank, run_id="r")
    assert done.experience.submitted == done.selection.index != 0
    again = several(task=lock(code=CODE), bank=bank, run_id="r")
    assert (again.stored, again.answer, again.selection.index) == (True, CODE, done.selection.index)
    bank.export_jsonl(tmp_path / "x.jsonl")
    other = MemoryBank.open(scope="other", embedder=bank.embedder)
    other.import_jsonl(tmp_path / "x.jsonl")
    assert other.experiences()[0].submitted == done.selection.index
    with pytest.raises(errors.InputError, match="submitted is 3; expected the place of a trajectory"):
        other.append(done.experience.task, done.trajectories, done.verdicts, [], submitted=3)


def test_parallel_contrasts_all_rollouts_in_one_prompt(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_in(1)})
    done = scaled(spy)(task=lock(code=CODE), bank=bank)
    (asked,) = spy.of("distiller")
    assert all(answer in asked.text for answer in answers(done))
    assert lessons(bank) == {f"What Abus made opens with {CODE}."}


def test_vanilla_distils_each_rollout_alone(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_in(1)})
    done = scaled(spy, mode="vanilla")(task=lock(code=CODE), bank=bank)
    asked = spy.of("distiller")
    assert len(asked) == 3
    assert [sum(answer in prompt.text for answer in answers(done)) for prompt in asked] == [1, 1, 1]
    assert lessons(bank) == {f"What Abus made opens with {CODE}.", "A guess stays shut; look for a lesson."}


def test_best_of_n_distils_the_selected_rollout_only(bank: MemoryBank) -> None:
    spy = Spy({"agent": types_code_in(1)})
    scaled(spy, mode="best_of_n")(task=lock(code=CODE), bank=bank)
    (asked,) = spy.of("distiller")
    assert f"It opens with {CODE}." in asked.text
    assert "try0" not in asked.text
    assert lessons(bank) == {f"What Abus made opens with {CODE}."}


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_a_rollout_that_breaks_costs_only_itself(bank: MemoryBank, mode: str) -> None:
    done = scaled(Spy({"agent": types_code_in(1)}), mode=mode, breaks=[2])(task=lock(code=CODE), bank=bank)
    assert answers(done) == [CODE, "try0"]
    assert done.answer == CODE
    assert len(done.lost) == 1
    assert "no power" in str(done.lost[0])
    assert len(done.experience.trajectories) == 2
    assert bank.pending() == []


def test_a_single_survivor_is_learned_from(bank: MemoryBank) -> None:
    done = scaled(Spy({"agent": types_code_in(1)}), breaks=[0, 2])(task=lock(code=CODE), bank=bank)
    assert (done.answer, len(done.lost), len(done.trajectories)) == (CODE, 2, 1)
    assert lessons(bank) == {f"What Abus made opens with {CODE}."}


@pytest.mark.parametrize("mode", [*SIDE_BY_SIDE, "sequential"])
def test_if_all_rollouts_break_the_task_is_an_infrastructure_error(bank: MemoryBank, mode: str) -> None:
    with pytest.raises(errors.InfrastructureError):
        scaled(Spy(), mode=mode, breaks=range(20))(task=easy(), bank=bank)
    assert (bank.experiences(), bank.pending()) == ([], [])


async def test_awaited_it_does_the_same(bank: MemoryBank) -> None:
    done = await scaled(Spy({"agent": types_code_in(0)}), k=2).acall(task=lock(code=CODE), bank=bank)
    assert (done.answer, answers(done)) == (CODE, [CODE, "try1"])
    assert learned_tasks(bank) == [easy().id]


def test_one_rollout_is_the_plain_loop(bank: MemoryBank) -> None:
    spy = Spy()
    done = scaled(spy, k=1)(task=easy(), bank=bank)
    assert spy.roles_asked() == ["agent", "judge", "distiller"]
    assert (done.answer, done.lost) == (GUESS, ())


# Interrupted


class Stops:
    """Locks; while they are ``down``, those of these rollouts of one task raise ``error``."""

    def __init__(self, task: Task, rollouts: Iterable[int], error: BaseException) -> None:
        self.task, self.rollouts, self.error, self.down, self.raised = task, set(rollouts), error, True, 0

    def __call__(self, task: Task, rollout_id: str) -> Environment:
        if self.down and task.id == self.task.id and int(rollout_id) in self.rollouts:
            self.raised += 1
            raise self.error
        return Repeats.make(task, rollout_id)


def one_by_one(spy: Spy, environments: Any = Repeats.make, mode: Any = "parallel", k: int = 4) -> MaTTS:
    return MaTTS(program(spy, environments=environments), config=MattsConfig(k=k, mode=mode, at_once=1))


def asked(spy: Spy) -> list[str]:
    return sorted(f"{prompt.role} {prompt.seed} {prompt.text}" for prompt in spy.prompts)


def uninterrupted(tasks: list[Task], mode: str = "parallel") -> tuple[list[str], list[Any]]:
    spy = Spy({"agent": types_code_in(1)})
    with MemoryBank.open(None, scope="free", embedder=HashEmbedder()) as bank:
        run_stream(one_by_one(spy, mode=mode), tasks, bank, run_id="r")
        return asked(spy), contents(bank)


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("ended", [0, 2, 3])
def test_an_interrupted_run_does_the_rollouts_that_are_missing_and_no_other(
    bank: MemoryBank, mode: str, journal: bool, ended: int, tmp_path: Path
) -> None:
    tasks = series(2, note="sk-abcdefghijklmnopqrstuvwx")
    tasks[1] = tasks[1].model_copy(update={"instruction": f"{tasks[1].instruction} Key sk-abcdefghijklmnopqrstuvwx."})
    spy = Spy({"agent": types_code_in(1)})
    locks = Stops(tasks[1], range(ended, 4), KeyboardInterrupt())
    run = one_by_one(spy, locks, mode)
    more: dict[str, Any] = {"run_id": "r", "journal": tmp_path if journal else None}
    with pytest.raises(KeyboardInterrupt):
        run_stream(run, tasks, bank, **more)
    assert [len(each.trajectories) for each in bank.pending()] == [ended] * bool(ended)
    locks.down = False
    report = run_stream(run, tasks, bank, **more)

    done = report.results[-1]
    assert done.prediction is not None
    assert (done.prediction.launched, done.prediction.lost, done.resumed) == (4, (), bool(ended))
    assert [rollout.rollout_id for rollout in done.rollouts] == ["0", "1", "2", "3"]
    known = journal or not ended
    assert [each is not None for each in done.outcomes] == [known or number >= ended for number in range(4)]
    assert (done.outcome is not None) == (done.outcomes[done.prediction.selection.index] is not None)
    assert (asked(spy), contents(bank)) == uninterrupted(tasks, mode)
    assert bank.pending() == []


@pytest.mark.parametrize("mode", SIDE_BY_SIDE)
def test_a_task_that_a_cap_ended_gets_as_many_rollouts_as_any_other(bank: MemoryBank, mode: str) -> None:
    tasks, spy, parts = series(2), Spy({"agent": types_code_in(1)}), 0
    with MemoryBank.open(None, scope="free", embedder=HashEmbedder()) as other, budget() as free:
        run_stream(one_by_one(Spy({"agent": types_code_in(1)}), mode=mode), tasks, other, run_id="r")
        expected = contents(other)
    while True:
        try:
            with budget(max_tokens=free.tokens // 3):
                run_stream(one_by_one(spy, mode=mode), tasks, bank, run_id="r")
            break
        except errors.BudgetSpent:
            parts += 1
    assert parts >= 2
    assert contents(bank) == expected


def test_a_rollout_that_broke_is_tried_once_more_when_the_run_goes_on_and_then_lost(bank: MemoryBank) -> None:
    tasks, down = series(1), True

    def judge(prompt: Prompt) -> Reply:
        return "???" if down else {"reasons": "", "label": "failure"}

    spy = Spy({"agent": types_code_in(1), "judge": judge})
    breaks = Stops(tasks[0], [2], OSError("no power"))
    run = one_by_one(spy, breaks, "vanilla")
    for _ in range(2):
        assert run_stream(run, tasks, bank, run_id="r").results[0].error
    down = False
    done = run_stream(run, tasks, bank, run_id="r").results[0].prediction
    assert done is not None
    assert [rollout.rollout_id for rollout in done.trajectories] == ["0", "1", "3"]
    assert spy.roles_asked().count("agent") == 3
    assert breaks.raised == 1


def test_without_environments_it_learns_from_the_rollouts_that_there_are_and_says_so(bank: MemoryBank) -> None:
    task, spy = easy(), Spy({"agent": types_code_in(1)})
    with pytest.raises(KeyboardInterrupt):
        one_by_one(spy, Stops(task, range(2, 4), KeyboardInterrupt()))(task=task, bank=bank, run_id="r")
    done = one_by_one(spy).resume(*bank.pending())
    assert (done.launched, len(done.trajectories), done.lost) == (2, 2, ())


def test_what_fails_again_is_lost_and_the_others_are_learned_from(bank: MemoryBank) -> None:
    task, spy = easy(), Spy({"agent": types_code_in(1)})
    with pytest.raises(KeyboardInterrupt):
        one_by_one(spy, Stops(task, [3], KeyboardInterrupt()))(task=task, bank=bank, run_id="r")
    done = one_by_one(spy).resume(*bank.pending(), Stops(task, [3], OSError("no power")))
    assert (done.launched, len(done.trajectories), [each.rollout_id for each in done.lost]) == (4, 3, ["3"])


def test_a_rollout_that_a_person_judged_is_learned_from_as_it_is(bank: MemoryBank) -> None:
    task, spy = easy(), Spy({"agent": types_code_in(1)})
    rollout = {"steps": [{"action": CODE, "observation": "It stays shut."}], "answer": CODE}
    program(spy).record(task, rollout, bank, run_id="r", verdict="failure")
    done = one_by_one(spy).resume(*bank.pending(), Repeats.make)
    assert ("agent" in spy.roles_asked(), done.verdict.label, bank.pending()) == (False, "failure", [])
