"""Limits to what runs, evaluations and compiles may use: stopped cleanly, continued without paying twice."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import MaTTS, MemoryBank, ReasoningBank, Task, budget, evaluate, run_stream
from rb_dspy.errors import BudgetSpent, ConfigError
from rb_dspy.testing import HashEmbedder, Prompt, Reply, lock, locks, locksmith, scripted_lm, scripted_program, toys
from tests.compile.helpers import compiled, program as lock_program


def counted(calls: list[str]) -> Any:
    def play(prompt: Prompt) -> Reply:
        calls.append(prompt["task"])
        return locksmith(prompt)

    return scripted_program(play)


def test_a_run_stops_within_its_tokens_and_continues_without_paying_twice() -> None:
    calls: list[str] = []
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        with budget() as free:
            run_stream(counted(calls), locks(6), MemoryBank.open(None, scope="t", embedder=HashEmbedder()))
        whole, per_call = len(calls), free.tokens / len(calls)
        calls.clear()
        student, runs = counted(calls), 0
        while True:
            runs += 1
            with budget(max_tokens=int(5 * per_call)) as spent, suppress(BudgetSpent):
                run_stream(student, locks(6), bank, run_id="r")
                break
            assert spent.tokens < int(5 * per_call) + 2 * per_call  # one call more, which may be a long one
        assert runs >= 3
        assert len(bank.learned("r")) == 6
        # each rollout that was done waits; a verdict is asked for again if the budget was spent before the lesson
        assert whole <= len(calls) < whole + runs


def test_rollouts_in_parallel_share_a_budget() -> None:
    calls: list[str] = []
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        matts = MaTTS(counted(calls), k=4)
        with pytest.raises(BudgetSpent), budget(max_tokens=1):
            run_stream(matts, locks(3), bank, run_id="r")
        assert len(calls) <= 4


def test_an_evaluation_stops_and_the_same_folder_continues(tmp_path: Path) -> None:
    calls: list[str] = []
    arguments: dict[str, Any] = {"orders": 2, "folder": tmp_path, "embedder": HashEmbedder(), "jobs": 2}
    student, stops = counted(calls), 0
    with budget() as free:
        evaluate(["none", "bank"], locks(6), program=student, **{**arguments, "folder": tmp_path / "free"})
    whole = len(calls)
    calls.clear()
    while True:
        before = len(calls)
        try:
            with budget(max_tokens=free.tokens // 3):
                evaluate(["none", "bank"], locks(6), program=student, **arguments)
            break
        except BudgetSpent:
            stops += 1
            assert len(calls) > before
    assert stops >= 2
    assert len(calls) <= whole + 2 * 3 * stops  # a task that was stopped is done again


def test_a_compile_stops() -> None:
    with pytest.raises(BudgetSpent), budget(max_tokens=20_000):
        compiled(program=lock_program())


def test_limits_that_cannot_be_kept_are_refused_before_a_call() -> None:
    calls: list[str] = []
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        with pytest.raises(ConfigError, match="is not known; use max_tokens"), budget(max_cost=1.0):
            run_stream(counted(calls), locks(1), bank)
        with pytest.raises(BudgetSpent, match="minutes is spent"), budget(max_minutes=1e-9):
            run_stream(counted(calls), locks(1), bank)
        for wrong in ({"max_tokens": 0}, {"max_cost": -1.0}, {"max_minutes": float("nan")}):
            with pytest.raises(ConfigError, match="above 0"), budget(**wrong):  # type: ignore[arg-type]
                pass
    assert calls == []


def test_a_known_price_is_counted() -> None:
    from rb_dspy.backbones import Budget
    from rb_dspy.schema import RoleUsage

    mine = Budget(None, 1.0, None)
    mine.check("openai/gpt-4o-mini")
    mine.add("agent", RoleUsage(calls=1, prompt_tokens=10_000_000), "openai/gpt-4o-mini")
    with pytest.raises(BudgetSpent, match=r"\$1.00 is spent"):
        mine.check("openai/gpt-4o-mini")


def test_what_an_agent_with_a_model_of_its_own_uses_is_counted() -> None:
    own = scripted_lm(lambda prompt: {"answer": "0000"})

    def agent(task: Task, lessons: str) -> str:
        with dspy.context(lm=own):
            return str(dspy.Predict("task -> answer")(task=task.instruction).answer)

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank, budget(max_tokens=10_000) as used:
        done = ReasoningBank(agent=agent, environments=toys)(task=lock(), bank=bank, learn=False)
    assert done.usage["agent"].calls == 1
    assert used.tokens > 0


def own_calls(calls: list[str], how: str) -> Any:
    """An agent that asks a model of its own five times, and catches every error."""

    def play(prompt: Prompt) -> Reply:
        calls.append(prompt["task"])
        return {"answer": "0000"}

    own = scripted_lm(play)

    async def awaited() -> None:
        for number in range(5):
            with suppress(Exception):
                await dspy.Predict("task -> answer").acall(task=str(number))

    def agent(task: Task, lessons: str) -> Any:
        with dspy.context(lm=own):
            if how == "async":
                return answer(awaited())
            if how == "parallel":
                asked = [(dspy.Predict("task -> answer"), {"task": str(number)}) for number in range(5)]
                dspy.Parallel(num_threads=1, disable_progress_bar=True)(asked)
            for number in range(5 * (how == "one by one")):
                with suppress(Exception):
                    dspy.Predict("task -> answer")(task=str(number))
        return "0000"

    async def answer(done: Any) -> str:
        with dspy.context(lm=own):
            await done
        return "0000"

    return agent


@pytest.mark.parametrize("how", ["one by one", "async", "parallel"])
def test_an_agent_with_a_model_of_its_own_stops_at_its_next_call(how: str) -> None:
    calls: list[str] = []
    program = ReasoningBank(agent=own_calls(calls, how), environments=toys)
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        with budget() as free, dspy.track_usage() as outer:
            done = program(task=lock(), bank=bank, learn=False)
        assert (len(calls), done.usage["agent"].calls) == (5, 5)
        assert sum(map(len, outer.usage_data.values())) == 5
        calls.clear()
        with pytest.raises(BudgetSpent), budget(max_tokens=free.tokens * 2 // 5 + 1) as used:
            run_stream(program, locks(2), bank)
    assert len(calls) == 3
    assert used.tokens <= free.tokens * 3 // 5 + 3


def test_the_price_of_an_agents_own_model_must_be_known_too() -> None:
    calls: list[str] = []
    program = ReasoningBank(agent=own_calls(calls, "one by one"), environments=toys)
    bank = MemoryBank.open(None, scope="s", embedder=HashEmbedder())
    with pytest.raises(ConfigError, match="is not known; use max_tokens"), budget(max_cost=1.0):
        program(task=lock(), bank=bank, learn=False)
    assert calls == []


def test_an_agent_without_a_model_of_dspy_is_not_started_after_the_last_minute() -> None:
    started: list[str] = []

    def agent(task: Task, lessons: str) -> str:
        started.append(task.id)
        return "0000"

    bank = MemoryBank.open(None, scope="s", embedder=HashEmbedder())
    with pytest.raises(BudgetSpent), budget(max_minutes=1e-9):
        run_stream(ReasoningBank(agent=agent, environments=toys), locks(2), bank)
    assert started == []


def test_what_a_program_inside_an_agent_uses_is_its_own() -> None:
    calls: list[str] = []
    inner, used = counted(calls), list[int]()

    def agent(task: Task, lessons: str) -> str:
        with MemoryBank.open(None, scope="inner", embedder=HashEmbedder()) as bank:
            for _ in range(2):
                used.append(inner(task=lock(), bank=bank, learn=False).usage["agent"].calls)
        return "0000"

    bank = MemoryBank.open(None, scope="s", embedder=HashEmbedder())
    ReasoningBank(agent=agent, environments=toys)(task=lock(), bank=bank, learn=False)
    assert used == [1, 1]
    assert len(calls) == 2
