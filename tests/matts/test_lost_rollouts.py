"""Whichever rollouts break, and however: the others are learned from as their number allows, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dspy
import pytest
from dspy import lm15
from hypothesis import given, settings, strategies as st

from rb_dspy import signatures
from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsMode
from rb_dspy.errors import BackboneError, InfrastructureError, MissingDependency, RBError
from rb_dspy.testing import Prompt, Reply
from rb_dspy.testing.embedder import HashEmbedder
from tests.matts.helpers import House, Script, booth_of, booth_task, called, counts, scaled

K = 4
STEPS = 2

IN_ENVIRONMENT: dict[str, tuple[str, Callable[[], BaseException]]] = {
    "factory": ("factory", lambda: ValueError("no booth")),
    "reset": ("reset", lambda: ValueError("out of order")),
    "first step": ("step 0", lambda: ValueError("a fuse")),
    "last step": ("step 1", lambda: ValueError("a fuse")),
    "answer": ("answer", lambda: ValueError("no voice")),
    "cancelled": ("step 1", lambda: asyncio.CancelledError("by a loop of its own")),
    "infrastructure": ("step 1", lambda: InfrastructureError("the building is closed")),
    "backbone": ("step 1", lambda: BackboneError("no such model")),
    "dependency": ("factory", lambda: MissingDependency("install booths")),
}
FROM_THE_LM: dict[str, Callable[[], Exception]] = {
    "server": lambda: lm15.ServerError("overloaded"),
    "rate": lambda: lm15.RateLimitError("slow down"),
    "timeout": lambda: lm15.TimeoutError("too late"),
    "transport": lambda: lm15.TransportError("cut off"),
    "context": lambda: lm15.ContextLengthError("too long"),
    "engine": lambda: KeyError("a bug in the engine"),
    "auth": lambda: lm15.AuthError("bad key"),
    "billing": lambda: lm15.BillingError("no credit"),
}
GENERAL = {"backbone", "dependency", "auth", "billing"}
"""What every other rollout, and every other task, would meet as well."""

FAULTS = st.dictionaries(st.integers(0, K - 1).map(str), st.sampled_from([*IN_ENVIRONMENT, *FROM_THE_LM]), max_size=K)


def _house_and_script(faults: Mapping[str, str]) -> tuple[House, Script]:
    broken = {n: IN_ENVIRONMENT[kind] for n, kind in faults.items() if kind in IN_ENVIRONMENT}
    house = House(steps=STEPS, faults=broken)

    def agent(prompt: Prompt) -> Reply:
        kind = faults.get(booth_of(prompt["observation"]))
        if kind in FROM_THE_LM and (prompt.turns or kind == "context"):
            raise FROM_THE_LM[kind]()
        return script.usual(prompt)

    script = Script({"1": "right"}, roles={"agent": agent})
    return house, script


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(faults=FAULTS)
async def test_survivors_are_learned_from_and_the_others_are_named(
    asynchronous: bool, faults: Mapping[str, str]
) -> None:
    house, script = _house_and_script(faults)
    run = scaled(script, house, k=K)
    alive = [str(number) for number in range(K) if str(number) not in faults]
    with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
        try:
            done = await called(run, asynchronous, task=booth_task(), bank=bank)
        except (InfrastructureError, BackboneError, MissingDependency) as exc:
            infrastructure = isinstance(exc, InfrastructureError)
            done = None
        if done is None:
            assert not alive
            assert infrastructure != (set(faults.values()) <= GENERAL)
            assert bank.experiences() == []
        else:
            _check(alive, faults, done, bank)
            asked = counts(run)
            assert asked.get("judge") == len(alive)
            assert asked.get("contraster", 0) == asked.get("selector", 0) == (len(alive) > 1)
            assert asked.get("distiller", 0) == (len(alive) == 1)
        assert bank.pending() == []
    assert house.closed == [1] * len(house.made)
    assert len(house.made) == K - sum(kind in ("factory", "dependency") for kind in faults.values())


def _check(alive: list[str], faults: Mapping[str, str], done: Any, bank: MemoryBank) -> None:
    (kept,) = bank.experiences()
    assert kept == done.experience
    assert [trajectory.rollout_id for trajectory in kept.trajectories] == alive
    for trajectory in kept.trajectories:
        right = trajectory.rollout_id == "1"
        assert [step.action for step in trajectory.steps] == ["right" if right else "wrong"] * STEPS
        assert all(f"Booth {trajectory.rollout_id} " in step.observation for step in trajectory.steps)
        assert trajectory.stop_reason == "done"
    assert [verdict.label for verdict in kept.verdicts] == ["success" if n == "1" else "failure" for n in alive]
    assert [lost.rollout_id for lost in done.lost] == sorted(faults)
    assert all(lost.error for lost in done.lost)
    assert (done.launched, done.saved) == (K, 0)
    assert len(done.memory_items) == 1
    if "1" in alive:
        assert (done.answer, done.trajectory.rollout_id, done.verdict.label) == ("right", "1", "success")


@pytest.mark.parametrize("mode", ["vanilla", "best_of_n"])
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(faults=FAULTS)
def test_the_ablations_follow_the_same_rule(mode: MattsMode, faults: Mapping[str, str]) -> None:
    house, script = _house_and_script(faults)
    run = scaled(script, house, k=K, mode=mode)
    alive = K - len(faults)
    with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
        if alive:
            done = run(task=booth_task(), bank=bank)
            assert [lost.rollout_id for lost in done.lost] == sorted(faults)
            assert counts(run).get("distiller", 0) == (alive if mode == "vanilla" else 1)
        else:
            with pytest.raises(RBError):
                run(task=booth_task(), bank=bank)
        assert bank.pending() == []
    assert house.closed == [1] * len(house.made)


def test_an_agent_that_cannot_be_read_costs_no_rollout(bank: MemoryBank) -> None:
    def agent(prompt: Prompt) -> Reply:
        return "I am lost." if booth_of(prompt["observation"]) == "1" else Script().usual(prompt)

    done = scaled(Script(roles={"agent": agent}), k=3)(task=booth_task(), bank=bank)
    assert done.lost == ()
    assert [trajectory.stop_reason for trajectory in done.trajectories] == ["done", "unreadable", "done"]


def test_an_error_names_what_broke_and_how_many(bank: MemoryBank) -> None:
    house = House(faults={str(n): ("reset", partial(ValueError, f"fuse {n}")) for n in range(3)})
    with pytest.raises(InfrastructureError, match=r"all 3 rollouts broke; .*reset broke: ValueError: fuse 0"):
        scaled(house=house, k=3)(task=booth_task(), bank=bank)


def test_what_all_rollouts_would_meet_is_raised_as_it_is(bank: MemoryBank) -> None:
    def agent(prompt: Prompt) -> Reply:
        raise lm15.AuthError("bad key")

    with pytest.raises(BackboneError, match="bad key"):
        scaled(Script(roles={"agent": agent}), k=3)(task=booth_task(), bank=bank)


@pytest.mark.parametrize("error", [StopIteration, ValueError])
def test_whatever_a_predictor_raises_costs_only_its_rollout(bank: MemoryBank, error: type[Exception]) -> None:
    """``StopIteration`` is what somebody's client raises that has run out of answers."""

    class Client(dspy.Predict):  # type: ignore[misc]
        def forward(self, **kwargs: Any) -> Any:
            if "Booth 1" in kwargs["observation"]:
                raise error("no more")
            return super().forward(**kwargs)

    run = scaled(k=3)
    run.act.predict = Client(signatures.Act)
    done = run(task=booth_task(), bank=bank)
    assert [lost.rollout_id for lost in done.lost] == ["1"]
    assert [trajectory.rollout_id for trajectory in done.trajectories] == ["0", "2"]
