"""What callers, and the parts they bring, get wrong: one line, before anything is paid for or at one task's cost."""

from __future__ import annotations

import asyncio
import itertools
import re
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.compile import compile_program
from rb_dspy.compile.credit import Credit
from rb_dspy.compile.stages import AgentStage
from rb_dspy.config import AdaptiveConfig, MattsConfig
from rb_dspy.errors import InfrastructureError, InputError, RBError, StorageError, UnparseableOutput
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import MemoryDraft, Retrieved, Task, Trajectory, Verdict
from rb_dspy.steps import Memory
from rb_dspy.stream import TaskStream, run_stream, split_streams
from rb_dspy.testing import Lock, Prompt, Reply, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests import worlds
from tests.worlds import answers, backbones


def lock(name: str) -> Task:
    return worlds.lock(name, 1)


def program(environments: Any = Lock.make, **kwargs: Any) -> ReasoningBank:
    return ReasoningBank(backbones=backbones(), environments=environments, **kwargs)


# Runs


@pytest.mark.parametrize("run_id", ["night\u200b1", "r" * 201, " ", None, 7])
def test_what_names_no_run_is_refused_before_anything_is_asked(bank: MemoryBank, run_id: Any) -> None:
    asked: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        asked.append(prompt)
        return answers(prompt)

    bones = Backbones(agent=scripted_lm(script))
    alone = ReasoningBank(backbones=bones, environments=Lock.make)
    for call in (
        lambda: run_stream(alone, [lock("a"), lock("b")], bank, run_id=run_id),
        lambda: alone(task=lock("a"), bank=bank, run_id=run_id),
        lambda: MaTTS(alone, k=3)(task=lock("a"), bank=bank, run_id=run_id),
    ):
        with pytest.raises(InputError, match=r"^run id .*: expected 1 to 200 visible characters$"):
            call()
    assert asked == []
    assert bank.pending() == []


SCALED = {
    "ReasoningBank": lambda alone: alone,
    "parallel": lambda alone: MaTTS(alone, k=3),
    "sequential": lambda alone: MaTTS(alone, k=3, mode="sequential"),
    "adaptive": lambda alone: MaTTS(alone, k=3, config=MattsConfig(adaptive=AdaptiveConfig(enabled=True))),
}


@pytest.mark.parametrize("how", ["call", "acall", "stream"])
@pytest.mark.parametrize("kind", SCALED)
def test_what_could_not_be_kept_is_refused_before_anything_is_asked(
    bank: MemoryBank, tmp_path: Path, kind: str, how: str
) -> None:
    asked: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        asked.append(prompt)
        return answers(prompt)

    runs = SCALED[kind](ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=Lock.make))

    def done(into: MemoryBank, run_id: str) -> list[str]:
        if how == "stream":
            return [result.error for result in run_stream(runs, [lock("a")], into, run_id=run_id).results]
        if how == "call":
            runs(task=lock("a"), bank=into, run_id=run_id)
        else:
            asyncio.run(runs.acall(task=lock("a"), bank=into, run_id=run_id))
        return [""]

    assert done(bank, "night") == [""]
    bank.rollback("run:night")
    asked.clear()
    said = r"was removed from the bank; to learn from it again, name another run_id$"
    if how == "stream":
        assert re.search(said, *done(bank, "night"))
    else:
        with pytest.raises(InputError, match=said):
            done(bank, "night")
    with MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=HashEmbedder()) as base:
        base.snapshot("then")
    with MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=HashEmbedder(), at="then") as then:
        for run_id in ("day", "") if how != "stream" else ("day",):
            with pytest.raises(StorageError, match="read-only"):
                done(then, run_id)
    assert asked == []
    assert done(bank, "day") == [""]
    assert bank.experience_of(lock("a").id, "day") is not None


@pytest.mark.parametrize("kind", ["parallel", "adaptive"])
def test_another_attempt_than_the_one_that_was_removed_is_not_refused(bank: MemoryBank, kind: str) -> None:
    alone = program()
    alone(task=lock("a"), bank=bank, run_id="night")
    bank.rollback("run:night")
    done = SCALED[kind](alone)(task=lock("a"), bank=bank, run_id="night")
    assert len(done.experience.trajectories) >= 2


# Environments


class LateRules(Lock):
    """Knows its rules once the episode has begun."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.began = False

    @property
    def action_rules(self) -> str:  # type: ignore[override]
        if not self.began:
            raise AttributeError("there is no episode yet")
        return "the code of this door"

    def reset(self, task: Task) -> str:
        self.began = True
        return super().reset(task)


def test_a_stream_shows_the_rules_that_a_call_shows(bank: MemoryBank) -> None:
    seen: list[str] = []

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            seen.append(prompt["action_rules"])
        return answers(prompt)

    rules = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=LateRules.make)
    rules(task=lock("a"), bank=bank)
    report = run_stream(rules, [lock("b")], bank, run_id="r")
    assert [result.error for result in report.results] == [""]
    assert seen == ["the code of this door"] * 2


class Taker(Lock):
    """Takes what it needs out of its task."""

    def reset(self, task: Task) -> str:
        self._code = str(task.env_args.pop("code"))
        task.env_args.setdefault("seen", []).append(self._code)  # type: ignore[union-attr, arg-type]
        return super().reset(task)


def test_what_an_environment_does_to_its_task_is_nobody_elses(bank: MemoryBank) -> None:
    task = lock("a")
    before = task.model_dump()
    done = MaTTS(program(Taker.make), k=3)(task=task, bank=bank)
    assert len(done.trajectories) == 3
    assert done.lost == ()
    assert task.model_dump() == before
    assert done.experience.task == task


class Gives(Lock):
    """One of another library's, whose step gives something else than whether it ended."""

    given: Any = None

    def step(self, action: str) -> Any:
        return super().step(action)[0], self.given


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("given", [0.5, 1, {"info": 1}, "False", None, np.array([True, False]), ["x" * 10_000]])
def test_a_step_that_does_not_say_whether_it_ended_breaks_the_task(bank: MemoryBank, given: Any, scored: bool) -> None:
    odd = type("Odd", (Gives,), {"given": given})
    said = r"^the environment's step gave .{1,301} for whether it ended; expected True or False$"
    if scored:
        report = run_stream(program(odd.make), [lock("a")], bank, run_id="r")
        assert re.search(said, report.results[0].error)
        assert report.results[0].outcome is None
    else:
        with pytest.raises(InfrastructureError, match=said):
            program(odd.make)(task=lock("a"), bank=bank)
    assert len(bank) == 0


@pytest.mark.parametrize("given", [True, np.True_, False, np.False_])
def test_a_step_may_say_with_numpys_bool_whether_it_ended(bank: MemoryBank, given: Any) -> None:
    ends = type("Ends", (Gives,), {"given": given})
    report = run_stream(program(ends.make), [lock("a")], bank, run_id="r")
    assert report.results[0].error == ""
    assert report.results[0].outcome is not None
    experience = bank.experience_of(lock("a").id, "r")
    assert experience is not None
    assert experience.trajectories[0].stop_reason == ("done" if given else "max_steps")


class SaysYes(Lock):
    def outcome(self) -> Any:
        return True


class Raises(Lock):
    def outcome(self) -> Any:
        raise ValueError("no number in\n'no idea'")


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (SaysYes, "TypeError: its outcome is True; expected an Outcome, or None where nobody knows it"),
        (Raises, "ValueError: no number in 'no idea'"),
    ],
)
def test_an_outcome_that_cannot_be_had_is_the_tasks_error_and_its_lessons_stay(
    bank: MemoryBank, caplog: pytest.LogCaptureFixture, kind: str, environment: type[Lock], said: str
) -> None:
    def make(task: Task, rollout_id: str) -> Lock:
        return (environment if task.id != lock("a").id else Lock).make(task, rollout_id)

    run = program(make)
    report = run_stream(run if kind == "ReasoningBank" else MaTTS(run, k=2), [lock("a"), lock("b")], bank, run_id="r")
    assert [result.error for result in report.results] == ["", f"the environment's outcome broke: {said}"]
    assert [result.outcome is None for result in report.results] == [False, True]
    summary = report.summary()
    assert (summary.scored, summary.infrastructure_errors) == (1, 1)
    assert len(bank.experiences()) == 2
    assert "did not close" not in caplog.text


def test_a_compile_of_the_agent_does_not_take_scoring_that_broke_for_unknown() -> None:
    with pytest.raises(
        InfrastructureError, match=r"the environment's outcome broke: ValueError: no number in 'no idea'$"
    ):
        AgentStage(program(Raises.make))(task=lock("a"), memory=Memory())
    lesson = MemoryDraft(title="Look", description="Always.", content="Look first.")
    found = Credit(program(Raises.make)).of([lesson], [lock("a")], [0.0])
    assert found.pairs == ()
    assert "the environment's outcome broke: ValueError" in found.broken[0]


class Halves(Lock):
    action_rules = "half a character: \ud800"


class NoRules(Lock):
    action_rules: Any = None


@pytest.mark.parametrize(
    ("method", "scored"),
    [*itertools.product(("reset", "step", "valid_actions", "answer"), (True, False)), ("outcome", True)],
)
def test_an_async_method_of_an_environment_is_named_as_one(bank: MemoryBank, method: str, scored: bool) -> None:
    async def later(*args: Any) -> None: ...

    def made(task: Task, rollout_id: str) -> Lock:
        environment = Lock.make(task, rollout_id)
        setattr(environment, method, later)
        return environment

    if scored:
        (result,) = run_stream(program(made), [lock("a")], bank, run_id="r").results
        said = result.error
    else:
        with pytest.raises(InfrastructureError) as caught:
            program(made)(task=lock("a"), bank=bank)
        said = str(caught.value)
    named = "the environment's outcome broke: TypeError: it" if method == "outcome" else f"the environment's {method}"
    assert f"{named} is async, and environments are not awaited; make it a plain method" in said


def test_an_async_close_of_an_environment_is_told_of(bank: MemoryBank, caplog: pytest.LogCaptureFixture) -> None:
    class Closes(Lock):
        async def close(self) -> None:  # type: ignore[override]
            raise AssertionError("nobody awaits it")

    assert program(lambda task, id: Closes("1"))(task=lock("a"), bank=bank).experience
    assert "did not close: InfrastructureError: the environment's close is async" in caplog.text


@pytest.mark.parametrize("name", ["on_result", "skip"])
def test_an_async_function_of_a_streams_caller_is_refused(bank: MemoryBank, name: str) -> None:
    asked: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        asked.append(prompt)
        return answers(prompt)

    async def later(given: Any) -> bool:
        return True

    alone = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=Lock.make)
    given: list[Any] = [later, lambda result: later(result)]
    for function, learned in zip(given, (0, name == "on_result"), strict=True):
        with pytest.raises(InputError, match=f"^{name} is async, and run_stream awaits nothing; give a plain function"):
            run_stream(alone, [lock("a"), lock("b")], bank, run_id="r", **{name: function})
        assert len(bank.experiences()) == learned
        assert bool(asked) == learned


def test_rules_are_made_storable_like_all_that_is_seen(bank: MemoryBank) -> None:
    done = program(Halves.make)(task=lock("a"), bank=bank)
    assert done.answer
    report = run_stream(program(NoRules.make), [lock("b")], bank, run_id="r")
    assert report.results[0].error.startswith("reading the environment's action rules broke: ")


async def _later(query: str, found: Any) -> Any:
    return found


@pytest.mark.parametrize(
    ("rerank", "said"),
    [
        (lambda query, found: None, "it gave 'None'"),
        (lambda query, found: query, "it gave "),
        (lambda query, found: [each.items for each in found], "expected a list of what it was given"),
        (_later, "it gave '<coroutine"),
    ],
)
def test_a_reranker_that_gives_something_else_breaks_a_task_alone(
    bank: MemoryBank, rerank: Callable[..., Any], said: str
) -> None:
    program()(task=lock("a"), bank=bank)
    odd = program(reranker=rerank)
    with pytest.raises(InfrastructureError, match=r"^the reranker broke: TypeError: it gave ") as found:
        odd(task=lock("b"), bank=bank)
    assert said in str(found.value)
    report = run_stream(odd, [lock("c")], bank, run_id="r")
    assert report.results[0].error.startswith("the reranker broke")


def test_a_reranker_may_give_any_list_of_them(bank: MemoryBank) -> None:
    def rerank(query: str, found: list[Retrieved]) -> Any:
        return (each for each in found)

    program()(task=lock("a"), bank=bank)
    assert program(reranker=rerank).recall(lock("b"), bank).items


# Arguments


def test_backbones_may_be_a_dict_of_roles(bank: MemoryBank) -> None:
    lm = scripted_lm(answers)
    done = ReasoningBank(backbones={"agent": lm}, environments=Lock.make)(task=lock("a"), bank=bank)
    assert done.verdict.label == "failure"
    assert done.usage["agent"].calls == 1


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ReasoningBank(backbones="openai/x"), "got str for backbones; expected Backbones(agent=...)"),  # type: ignore[arg-type]
        (lambda: ReasoningBank(backbones={"actor": "openai/x"}), "backbones: 'actor' is no role; expected some of"),
        (lambda: ReasoningBank({"act": {}}), "got dict for config; expected a ProgramConfig"),  # type: ignore[arg-type]
        (lambda: Backbones(agent=""), "a backbone's name is empty; expected PROVIDER/MODEL"),
        (lambda: MaTTS("x"), "MaTTS: got str for a program; expected a ReasoningBank"),  # type: ignore[arg-type]
        (lambda: MaTTS(program(), config={"k": 3}), "MaTTS: got dict for config; expected a MattsConfig"),  # type: ignore[arg-type]
    ],
)
def test_what_a_program_cannot_be_made_of_is_one_line(made: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError) as found:
        made()
    assert str(found.value).startswith(said)
    assert "\n" not in str(found.value)


def test_what_cannot_be_run_or_compiled_is_one_line(bank: MemoryBank) -> None:
    one = TaskStream("s", tuple(lock(str(n)) for n in range(12)))
    split = split_streams(one, check=False)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: run_stream("x", one, bank, run_id="r"), "got str for a program; expected a ReasoningBank"),  # type: ignore[arg-type]
        (lambda: run_stream(program(), one, bank, run_id="r", resume="foo"), "resume='foo'; expected 'own' or 'all'"),  # type: ignore[arg-type]
        (lambda: ReasoningBank(environments=None), "got NoneType for environments; expected a function"),  # type: ignore[arg-type]
        (lambda: ReasoningBank(reranker=3), "got int for reranker; expected a function"),  # type: ignore[arg-type]
        (lambda: compile_program(program(), [one], budget=9), "got list for streams; expected Streams"),  # type: ignore[arg-type]
        (lambda: compile_program("x", split, budget=9), "got str for a program; expected a"),  # type: ignore[arg-type]
        (lambda: compile_program(program(), split, budget="60"), "budget is '60'; expected at least 1"),  # type: ignore[arg-type]
    ]
    for call, said in calls:
        with pytest.raises(RBError) as found:
            call()
        assert str(found.value).startswith(said)
    assert len(bank) == 0


# Language models and judges


class Broken(dspy.BaseLM):
    """A language model of somebody's own, whose errors are not dspy's."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("own/lm")
        self._error = error

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        raise self._error

    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        raise self._error


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
@pytest.mark.parametrize("error", [ConnectionError("no route"), ValueError("odd"), asyncio.CancelledError("within")])
def test_an_lm_of_somebodys_own_may_raise_anything(bank: MemoryBank, error: BaseException) -> None:
    odd = ReasoningBank(backbones=Backbones(agent=Broken(error)), environments=Lock.make)
    report = run_stream(odd, [lock("a"), lock("b")], bank, run_id="r")
    assert [result.error for result in report.results] == [f"agent (own/lm) broke: {type(error).__name__}: {error}"] * 2

    async def side_by_side() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            return [group.create_task(odd.acall(task=lock(name), bank=bank)) for name in "cd"]

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(side_by_side())
    assert {str(each) for each in found.value.exceptions} <= {f"agent (own/lm) broke: {type(error).__name__}: {error}"}


@pytest.mark.parametrize("way", ["plain", "asyncio"])
def test_a_judge_that_could_not_read_an_answer_costs_one_rollout(bank: MemoryBank, way: str) -> None:
    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        if trajectory.rollout_id == "1":
            raise UnparseableOutput("the judge said nothing that can be read")
        return Verdict(label="success")

    async def later(task: Task, trajectory: Trajectory) -> Verdict:
        return judge(task, trajectory)

    if way == "plain":
        done = MaTTS(program(judge=judge), k=3)(task=lock("a"), bank=bank)
    else:
        done = asyncio.run(MaTTS(program(judge=later), k=3).acall(task=lock("a"), bank=bank))
    assert sorted(verdict.label for verdict in done.verdicts) == ["success", "success", "unknown"]


class OneThread(Lock):
    """Keeps what only the thread that opened it may use, as SQLite's connections and browsers are."""

    def _here(self) -> None:
        if not hasattr(self, "_of"):
            self._of = sqlite3.connect(":memory:")
        self._of.execute("SELECT 1")

    @property
    def action_rules(self) -> str:  # type: ignore[override]
        self._here()
        return Lock.action_rules

    def reset(self, task: Task) -> str:
        self._here()
        return super().reset(task)

    def step(self, action: str) -> tuple[str, bool]:
        self._here()
        return super().step(action)

    def answer(self) -> str | None:
        self._here()
        return super().answer()

    def outcome(self) -> Any:
        self._here()
        return super().outcome()

    def close(self) -> None:
        self._of.close()
        super().close()


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS", "sequential"])
async def test_all_of_an_environment_runs_in_one_thread(
    kind: str, bank: MemoryBank, caplog: pytest.LogCaptureFixture
) -> None:
    made = program(OneThread.make)
    run: Any = made if kind == "ReasoningBank" else MaTTS(made, k=4, mode="sequential" if kind != "MaTTS" else None)
    before = threading.active_count()
    for wave in range(4):
        done = await asyncio.gather(*[run.acall(task=lock(f"t{wave}-{n}"), bank=bank) for n in range(8)])
        assert [one.get("lost", ()) for one in done] == [()] * 8
    assert "did not close" not in caplog.text
    at_once = 8 * (4 if kind == "MaTTS" else 1)  # environments; asyncio's own threads and the bank's come to them
    assert threading.active_count() <= before + at_once + 12, "threads are for others when an environment is closed"
