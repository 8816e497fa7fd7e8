"""Agents of the user's own in the place of ours: functions, async functions and DSPy modules."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import (
    Backbones,
    MaTTS,
    MemoryBank,
    ProgramConfig,
    ReasoningBank,
    RetrieveConfig,
    Task,
    evaluate,
    run_stream,
)
from rb_dspy.errors import ConfigError, InputError
from rb_dspy.importers import to_trajectory
from rb_dspy.schema import Outcome, Trajectory
from rb_dspy.testing import HashEmbedder, Prompt, Reply, locks, locksmith, scripted_lm, toys

CODES = {task.id: str(task.env_args["code"]) for task in locks(60)}


def right(task: Task, answer: str) -> bool:
    return answer == task.env_args["code"]


def guess(instruction: str, lessons: str) -> str:
    (maker,) = re.findall(r"that (\w+) made", instruction)
    known = re.findall(rf"What {maker} made opens with (\d+)", lessons)
    return next((code for code in known if code != "0000"), "0000")


def tried(task_id: str, code: str) -> str:
    return "It opens." if code == CODES[task_id] else f"It stays shut. Its code is {CODES[task_id]}."


def plain(task: Task, lessons: str) -> Any:
    assert task.env_args == {}  # ground truth is for the scorer
    code = guess(task.instruction, lessons)
    return {"steps": [{"action": code, "observation": tried(task.id, code)}], "answer": code}


async def asynchronous(task: Task, lessons: str) -> Any:
    await asyncio.sleep(0)
    code = guess(task.instruction, lessons)
    call = {"id": "1", "type": "function", "function": {"name": "type", "arguments": f'{{"code": "{code}"}}'}}
    return [
        {"role": "user", "content": task.instruction},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": tried(task.id, code)},
        {"role": "assistant", "content": code},
    ]


def react() -> dspy.ReAct:
    """A real ``dspy.ReAct`` with a tool. Its model is that of the role agent."""

    def try_code(number: int, maker: str, code: str) -> str:
        """Type a code."""
        return tried(f"lock/{maker}/{number}", code)

    return dspy.ReAct("task, lessons -> answer", tools=[try_code], max_iters=3)


def all_roles(prompt: Prompt) -> Reply:
    if "next_tool_name" in prompt.wants or "answer" in prompt.wants:
        maker, number = re.findall(r"that (\w+) made, serial (\d+)", prompt["task"])[0]
        code = guess(prompt["task"], prompt["lessons"])
        if "answer" in prompt.wants:
            return {"reasoning": "", "answer": code}
        done = "code" in prompt["trajectory"] or "opens" in prompt["trajectory"]
        args = {"number": int(number), "maker": maker, "code": code}
        return {
            "next_thought": "",
            "next_tool_name": "finish" if done else "try_code",
            "next_tool_args": {} if done else args,
        }
    return locksmith(prompt)


def program(agent: Any, **more: Any) -> ReasoningBank:
    config = ProgramConfig(retrieve=RetrieveConfig(k=6, min_score=-1.0, min_share=0.0))
    return ReasoningBank(config, backbones=Backbones(agent=scripted_lm(all_roles)), agent=agent, **more)


AGENTS: dict[str, Callable[[], Any]] = {"function": lambda: plain, "async": lambda: asynchronous, "dspy.ReAct": react}


@pytest.mark.parametrize("name", AGENTS)
def test_an_evaluation_with_an_agent_and_a_score(name: str, tmp_path: Path) -> None:
    report = evaluate(
        ["none", "bank"],
        locks(24),
        program=program(AGENTS[name](), score=right),
        orders=2,
        folder=tmp_path,
        embedder=HashEmbedder(),
    )
    none, bank = report.arms["none"], report.arms["bank"]
    assert (none.errors, bank.errors) == (0, 0)
    assert none.success
    assert bank.success
    assert none.success.mean < 0.3 < 0.6 < bank.success.mean


@pytest.mark.parametrize("name", AGENTS)
def test_a_stream_with_an_agent_in_an_environment(name: str) -> None:
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        report = run_stream(program(AGENTS[name](), environments=toys), locks(12), bank)
        assert [result.error for result in report.results] == [""] * 12
        assert [result.solved for result in report.results[6:]].count(True) >= 4
        experience = bank.experiences()[0]
        assert experience.trajectories[0].rollout_id == "0"
        assert "Its code is" in experience.trajectories[0].steps[-1].observation  # what the environment said


def test_several_rollouts_of_an_agent(tmp_path: Path) -> None:
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        matts = MaTTS(program(plain, score=right), k=3, mode="best_of_n")
        report = run_stream(matts, locks(3), bank)
        assert [[each.rollout_id for each in result.rollouts] for result in report.results] == [["0", "1", "2"]] * 3
        assert [result.error for result in report.results] == [""] * 3
    with pytest.raises(ConfigError, match="sequential"):
        MaTTS(program(plain), k=3, mode="sequential")


def test_the_model_of_the_role_agent_is_lent_and_counted() -> None:
    def with_dspy(task: Task, lessons: str) -> str:
        return str(dspy.Predict("task, lessons -> answer")(task=task.instruction, lessons=lessons).answer)

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        report = run_stream(program(with_dspy, score=right), locks(2), bank)
        assert [result.usage["agent"].calls for result in report.results] == [1, 1]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (lambda: 1 / 0, "the agent failed: ZeroDivisionError"),
        (lambda: None, "cannot be read"),
        (list, "cannot be read"),
    ],
)
def test_an_agent_that_breaks_is_an_error_of_its_task(result: Callable[[], Any], error: str) -> None:
    def breaks(task: Task, lessons: str) -> Any:
        return result() if task.id.endswith("/1") else plain(task, lessons)

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        report = run_stream(program(breaks, score=right), locks(3), bank)
        assert [error in each.error for each in report.results] == [False, True, False]
        assert report.score().broke == 1


@pytest.mark.parametrize(
    ("scored", "solved"),
    [(True, True), (0.4, False), (1, True), (Outcome(reward=0.3, success=True), True), (None, None), ("yes", False)],
)
def test_what_a_score_may_be(scored: Any, solved: bool | None) -> None:
    async def score(task: Task, answer: str) -> Any:
        return scored

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        (result,) = run_stream(program(plain, score=score), locks(1), bank).results
        assert result.solved is solved
        assert ("expected True, False" in result.error) is (scored == "yes")


def test_an_agent_that_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="task, lessons"):
        ReasoningBank(agent=lambda task: task)  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigError, match="got str for agent"):
        ReasoningBank(agent="mine")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="inputs a, b; expected one for the task"):
        ReasoningBank(agent=dspy.Predict("a, b -> answer"))
    with pytest.raises(ConfigError, match="pass one of them"):
        ReasoningBank(score=right, environments=toys)


def test_a_module_without_an_input_for_lessons_gets_them_below_the_task() -> None:
    seen: list[str] = []

    class Mine(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            seen.append(question)
            return dspy.Prediction(answer="0000")

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        bank.add("Locks", "Look below the lock.")
        run_stream(program(Mine(), score=right), locks(1), bank)
    assert seen[0].startswith("Open the lock that Abus made, serial 0.\n\n")
    assert "Look below the lock." in seen[0]


def test_without_lessons_the_text_is_empty() -> None:
    given: list[str] = []

    def mine(task: Task, lessons: str) -> str:
        given.append(lessons)
        return "0000"

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        run_stream(program(mine, score=right), locks(1), bank)
    assert given == [""]


def test_an_answer_without_steps_is_a_step() -> None:
    def mine(task: Task, lessons: str) -> Any:
        return Trajectory(task_id=task.id, answer="0000", stop_reason="external")

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        (result,) = run_stream(program(mine, environments=toys), locks(1), bank).results
        assert result.error == ""
        (step,) = result.rollouts[0].steps
        assert step.action == "0000"
        assert "It stays shut" in step.observation


def test_an_agent_that_cannot_be_copied_is_shared_and_names_its_evaluation(tmp_path: Path) -> None:
    class Mine:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.calls = 0

        def __call__(self, task: Task, lessons: str) -> Any:
            with self.lock:
                self.calls += 1
            return plain(task, lessons)

    mine = Mine()
    arguments: dict[str, Any] = {"orders": 1, "folder": tmp_path, "embedder": HashEmbedder()}
    report = evaluate(["none", "bank"], locks(6), program=program(mine, score=right), **arguments)
    assert report.arms["bank"].errors == 0
    assert mine.calls == 12
    for other in (program(plain, score=right), program(mine, score=lambda task, answer: True)):
        with pytest.raises(InputError, match="another evaluation"):
            evaluate(["none", "bank"], locks(6), program=other, **arguments)


def test_a_trajectory_of_an_agent_stays_as_it_is() -> None:
    def mine(task: Task, lessons: str) -> Any:
        return to_trajectory(task, [{"thought": "hm", "action": "0000", "observation": "ok"}])

    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        (result,) = run_stream(program(mine, score=right), locks(1), bank).results
        assert result.solved is False  # it has no answer
        assert result.rollouts[0].steps[0].thought == "hm"
