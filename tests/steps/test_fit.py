"""What overflows the context is cut and asked again, until it fits or nothing is left to cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.config import ActConfig, ContrastConfig, DistillConfig, JudgeConfig, RefineConfig, SelectConfig
from rb_dspy.errors import InfrastructureError
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Contrast, Distill, Judge, Memory, Refine, Select
from rb_dspy.steps.view import estimate_tokens
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.worlds import item

TASK = Task(id="t", instruction="Find the gold.")
BUDGET = 1600
BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


def rollout(number: int = 0) -> Trajectory:
    steps = tuple(Step(action=f"dig {n}", observation=f"sand {n} " * 40) for n in range(100))
    return Trajectory(task_id="t", rollout_id=str(number), steps=steps, answer=f"gold {number}")


class Desert:
    """An environment with much to read."""

    action_rules = "dig"

    def reset(self, task: Task) -> str:
        self.left = 20
        return "sand " * 40

    def step(self, action: str) -> tuple[str, bool]:
        self.left -= 1
        return f"sand {self.left} " * 40, not self.left

    def valid_actions(self) -> None:
        return None

    def answer(self) -> str:
        return "gold"

    def close(self) -> None: ...


async def _judged(asynchronous: bool) -> Any:
    step = Judge(JudgeConfig(view_tokens=BUDGET))
    return await step.acall(TASK, rollout()) if asynchronous else step(TASK, rollout())


async def _distilled(asynchronous: bool) -> Any:
    step, given = Distill(DistillConfig(view_tokens=BUDGET)), (TASK, rollout(), Verdict(label="success"))
    return await step.acall(*given) if asynchronous else step(*given)


async def _contrasted(asynchronous: bool) -> Any:
    step, given = Contrast(ContrastConfig(view_tokens=BUDGET // 2)), (TASK, [rollout(n) for n in range(2)])
    return await step.acall(*given) if asynchronous else step(*given)


async def _selected(asynchronous: bool) -> Any:
    step, given = Select(SelectConfig(view_tokens=BUDGET // 2)), (TASK, [rollout(n) for n in range(2)])
    return await step.acall(*given) if asynchronous else step(*given)


async def _refined(asynchronous: bool) -> Any:
    step = Refine(RefineConfig(view_tokens=BUDGET))
    given = (Act(ActConfig()), TASK, Memory(), lambda task, rollout: Desert(), 2)
    return await step.acall(*given) if asynchronous else step(*given)


STEPS: dict[str, tuple[str, str, Callable[[bool], Any]]] = {
    "judge": ("label", "trajectory", _judged),
    "distill": ("memory_items", "trajectory", _distilled),
    "contrast": ("memory_items", "attempts", _contrasted),
    "select": ("choice", "candidates", _selected),
    "refine": ("decision", "trajectory", _refined),
}
EVERY = pytest.mark.parametrize("name", STEPS)


def _reply(prompt: Prompt) -> Reply:
    known: dict[str, Any] = {
        "thought": "So.",
        "action": "dig",
        "reasons": "Seen.",
        "label": "success",
        "analysis": "Seen.",
        "choice": 2,
        "findings": "Seen.",
        "decision": "confirm",
        "memory_items": [item("Seen", "Look left.", evidence=[1])],
    }
    return {name: known[name] for name in prompt.wants}


async def _asked(name: str, fits: int, asynchronous: bool) -> tuple[Any, list[int]]:
    """What the step gives where views of ``fits`` tokens fit the model's context; and how long those were it saw."""
    wants, field, ask = STEPS[name]

    def script(prompt: Prompt) -> Reply:
        if prompt.wants[-1] == wants and estimate_tokens(prompt[field]) > fits:
            raise lm15.ContextLengthError("too long")
        return _reply(prompt)

    lm = scripted_lm(script)
    with Backbones(agent=lm).use():
        try:
            found = await ask(asynchronous)
        except InfrastructureError as exc:
            found = exc
    return found, [estimate_tokens(prompt[field]) for prompt in lm.engine.prompts if prompt.wants[-1] == wants]


@BOTH
@EVERY
async def test_what_fits_is_asked_once(name: str, asynchronous: bool) -> None:
    _, lengths = await _asked(name, 2 * BUDGET, asynchronous)
    assert len(lengths) == 1
    assert BUDGET / 3 < lengths[0] < BUDGET * 1.3


@BOTH
@EVERY
async def test_what_overflows_is_halved_until_it_fits_and_gives_the_same(name: str, asynchronous: bool) -> None:
    found, lengths = await _asked(name, BUDGET // 4, asynchronous)
    assert 2 <= len(lengths) <= 4
    assert all(after < 0.7 * before for before, after in itertools.pairwise(lengths))
    assert lengths[-1] <= BUDGET // 4 < lengths[-2]
    whole, _ = await _asked(name, 2 * BUDGET, asynchronous)
    if name == "refine":
        assert [check.findings for check in found.trajectories[0].checks] == ["Seen."]
    else:
        assert found == whole


@BOTH
@EVERY
async def test_where_nothing_fits_it_gives_up(name: str, asynchronous: bool) -> None:
    found, lengths = await _asked(name, 0, asynchronous)
    assert len(lengths) == 5  # of 1600, 800, 400, 200 and 100 tokens
    if name == "select":
        assert (found.votes, "too long" in found.note) == ((0, 0), True)
    elif name == "refine":
        assert "too long" in found.lost
        assert len(found.trajectories) == 1
    else:
        assert isinstance(found, InfrastructureError)
        assert "too long" in str(found)


async def test_a_judge_reads_less_of_the_final_state_too() -> None:
    def script(prompt: Prompt) -> Reply:
        if estimate_tokens(prompt["final_state"]) > 300:
            raise lm15.ContextLengthError("too long")
        return _reply(prompt)

    long = rollout().model_copy(update={"answer": "gold " * 4000})
    with Backbones(agent=scripted_lm(script)).use():
        assert Judge()(TASK, long).label == "success"
