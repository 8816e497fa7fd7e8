"""Whenever a Ctrl-C comes, an environment that was made is closed, once."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dis import opmap
from typing import Any

import dspy
import pytest

from rb_dspy import program
from rb_dspy.backbones import Backbones
from rb_dspy.backbones.session import session
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ActConfig
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InfrastructureError
from rb_dspy.matts import MaTTS, matts
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Outcome, Task, Verdict
from rb_dspy.steps import Act, Memory, Refine, act, ask, ended, episode, later, opening, refine, seen
from rb_dspy.steps.ask import Do, Routine, adrive, drive
from rb_dspy.steps.opening import Opened, within
from rb_dspy.testing import Corridor, scripted_lm
from tests.worlds import answers, corridor

NOP = opmap["NOP"]
FILES = {ask.__file__, opening.__file__, seen.__file__}
TASK = corridor(length=1)


class Counted(Corridor):
    """Says which of them are open; as a factory, it is a class, and nothing lies between it and who calls it."""

    made: list[Counted]

    def __init__(self, task: Task, rollout_id: str) -> None:
        super().__init__(int(task.env_args["length"]))
        self.closings = 0
        self.made.append(self)

    def close(self) -> None:
        self.closings += 1


@pytest.fixture(autouse=True)
def made() -> list[Counted]:
    Counted.made = []
    return Counted.made


@contextmanager
def interrupted(at: int, files: Set[str] = FILES, what: str = "opcode") -> Iterator[list[str]]:
    """A Ctrl-C before the instruction ``at``, or the line, that is done in ``files``; what is yielded stays empty where
    none came.
    """
    came: list[str] = []
    left = at

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = what == "opcode", what == "line"
        # CPython leaves the NOP of a ``try:`` inside another one out of the outer one's reach; no signal comes there.
        if event == what and frame.f_code.co_code[frame.f_lasti] != NOP:
            left -= 1
            if left < 0:
                came.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield came
    finally:
        sys.settrace(before)


def plain(fresh: Opened) -> Routine[str]:
    assert isinstance(fresh.first, seen.Seen)
    return (yield Do("a step", lambda: fresh.environment.step("forward")[0]))


def closing_itself(fresh: Opened) -> Routine[str]:
    def step() -> str:
        done = seen.after(fresh.environment, "forward", True)
        fresh.closing()
        return done.observation

    return (yield Do("the last step", step))


def breaking(fresh: Opened) -> Routine[str]:
    yield Do("a step", lambda: 1 / 0)
    return "never"


def raising_a_bug(fresh: Opened) -> Routine[str]:
    yield Do("a step", str)
    raise ZeroDivisionError


@pytest.mark.parametrize("work", [plain, closing_itself, breaking, raising_a_bug])
def test_a_ctrl_c_at_any_instruction_leaves_no_environment_open(
    work: Callable[[Opened], Routine[str]], made: list[Counted]
) -> None:
    """``drive``'s own too: what was made may be in nobody's hands yet but those that made it."""
    left_open, at, came = [], 0, ["begun"]
    while came:
        made.clear()
        with interrupted(at) as came, suppress(KeyboardInterrupt, InfrastructureError, ZeroDivisionError):
            drive(within(TASK, Counted, 0, work))
        if [one.closings for one in made] not in ([], [1]):
            left_open.append((*came, [one.closings for one in made]))
        at += 1
    assert left_open == []
    assert at > 300  # it has been looked at many


@pytest.mark.parametrize("passes", [0, 2], ids=["act", "refine"])
def test_a_ctrl_c_at_any_line_of_a_rollout_leaves_no_environment_open(passes: int, made: list[Counted]) -> None:
    """Of what opens it, plays in it, and drives both."""
    step = Refine() if passes else Act()
    given = (Act(), TASK, Memory(), Counted, passes) if passes else (TASK, Memory(), Counted)
    files = {*FILES, act.__file__, episode.__file__, refine.__file__}
    left_open, at, came = [], 0, ["begun"]
    with Backbones(agent=scripted_lm(answers)).use():
        while came:
            made.clear()
            with interrupted(at, files, "line") as came, suppress(KeyboardInterrupt):
                step(*given)
            if [one.closings for one in made] not in ([], [1]):
                left_open.append((*came, [one.closings for one in made]))
            at += 1
    assert left_open == []
    assert at > 100


@pytest.mark.parametrize("kind", ["ReasoningBank", "parallel", "sequential"])
def test_a_ctrl_c_at_any_line_costs_no_rollout_whose_environment_was_closing(kind: str, bank: MemoryBank) -> None:
    """Nor one that is on its way into the bank."""

    class Ending(Counted):
        def close(self) -> None:
            super().close()
            had_ended.append(not came)

    files = {*FILES, act.__file__, episode.__file__, ended.__file__, later.__file__, program.__file__, matts.__file__}
    run: Any = ReasoningBank(
        backbones=Backbones(agent=scripted_lm(answers)),
        environments=Ending,
        judge=lambda task, trajectory: Verdict(label="unknown"),
    )
    run = run if kind == "ReasoningBank" else MaTTS(run, 1, kind)  # type: ignore[arg-type]
    lost, at, came, looked_at = [], 0, ["begun"], 0
    while came:
        had_ended: list[bool] = []
        run_id = str(at)
        with interrupted(at, files, "line") as came, suppress(KeyboardInterrupt):
            run(task=TASK, bank=bank, run_id=run_id)
        if came and any(had_ended):
            looked_at += 1
            if not any(waits.state.run_id == run_id for waits in bank.pending()) and not bank.experience_of(
                TASK.id, run_id
            ):
                lost += came
        at += 1
    assert lost == []
    assert looked_at > 10


def test_an_environment_that_is_closed_already_is_left_alone(made: list[Counted]) -> None:
    assert drive(within(TASK, Counted, 0, closing_itself))
    assert [one.closings for one in made] == [1]


async def test_asyncio_closes_it_too(made: list[Counted]) -> None:
    for work in (plain, closing_itself, breaking):
        made.clear()
        try:
            await adrive(within(TASK, Counted, 0, work))
        except InfrastructureError:
            assert work is breaking
        assert [one.closings for one in made] == [1]


class _Where(Corridor):
    """Takes down what was called in which thread."""

    def __init__(self, instant: bool) -> None:
        super().__init__(1)
        self.instant = instant
        self.threads: dict[str, int] = {}

    def reset(self, task: Task) -> str:
        self.threads["reset"] = threading.get_ident()
        return super().reset(task)

    def step(self, action: str) -> tuple[str, bool]:
        self.threads["step"] = threading.get_ident()
        return super().step(action)

    def outcome(self) -> Outcome:
        self.threads["outcome"] = threading.get_ident()
        return super().outcome()

    def close(self) -> None:
        self.threads["close"] = threading.get_ident()


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("instant", [False, True])
async def test_what_is_over_at_once_is_done_on_the_event_loop(instant: bool, sealed: bool) -> None:
    world = _Where(instant)
    factory: EnvironmentFactory = lambda task, rollout_id: world  # noqa: E731 (typed)
    if sealed:
        factory = ScoredEnvironments(factory)
    with session(Backbones(agent=scripted_lm(answers))):
        await Act().acall(TASK, Memory(), factory)
    here = threading.get_ident()
    assert world.threads.pop("reset") != here
    assert {where == here for where in world.threads.values()} == {instant}
    assert world.threads.keys() == ({"step", "outcome", "close"} if sealed else {"step", "close"})


class _Table:
    """Hands names on that it has not, and raises what is no ``AttributeError`` where nobody else has them either."""

    def __init__(self, inner: Corridor) -> None:
        self._calls = {name: getattr(inner, name) for name in dir(inner) if not name.startswith("_")}
        del self._calls["instant"]

    def __getattr__(self, name: str) -> Any:
        return self._calls[name]


@pytest.mark.parametrize("sealed", [False, True])
async def test_an_environment_that_cannot_say_whether_it_is_instant_is_not(sealed: bool) -> None:
    def tables(task: Task, rollout_id: str) -> Any:
        return _Table(Corridor(1))

    with session(Backbones(agent=scripted_lm(answers))):
        done = await Act().acall(TASK, Memory(), ScoredEnvironments(tables) if sealed else tables)
    assert done.stop_reason == "done"


async def test_an_agent_that_waits_for_nothing_lets_others_in_between_steps() -> None:
    class AtOnce(dspy.Module):
        async def aforward(self, **inputs: Any) -> dspy.Prediction:
            return dspy.Prediction(thought="", action="wait")

    turns = 0
    seen: list[int] = []

    class Clocked(Corridor):
        instant = True

        def step(self, action: str) -> tuple[str, bool]:
            seen.append(turns)
            return super().step(action)

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    act = Act(ActConfig(max_steps=20))
    act.predict = AtOnce()
    with session(Backbones(agent=scripted_lm(answers))):
        beside = asyncio.ensure_future(other())
        await act.acall(TASK, Memory(), lambda task, rollout_id: Clocked(1))
        beside.cancel()
    assert len(set(seen)) == 20


def test_a_subclass_of_a_toy_environment_says_for_itself_whether_it_is_instant() -> None:
    class Quiet(Corridor):
        pass

    class Quick(Corridor):
        instant = True

    class Asked(Corridor):
        @property
        def instant(self) -> bool:  # type: ignore[override]
            return self.position == 0

    assert [made().instant for made in (Corridor, Quiet, Quick, Asked)] == [True, False, True, True]


async def test_who_is_cancelled_while_it_is_made_has_closed_it(made: list[Counted]) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(task: Task, rollout_id: str) -> Counted:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        return Counted(task, rollout_id)

    going = asyncio.ensure_future(adrive(within(TASK, slow, 0, plain)))
    await begun.wait()
    going.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert [one.closings for one in made] == [1]


def test_a_reset_that_is_interrupted_closes_what_was_made(made: list[Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Counted):
        def reset(self, task: Task) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(within(TASK, Interrupted, 0, plain))
    assert [one.closings for one in made] == [1]


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no"), KeyError()], ids=repr)
def test_a_factory_that_breaks_is_said_to(error: Exception) -> None:
    def broken(task: Task, rollout_id: str) -> Counted:
        raise error

    with pytest.raises(InfrastructureError, match=f"making the environment broke: {type(error).__name__}"):
        drive(within(TASK, broken, 0, plain))
