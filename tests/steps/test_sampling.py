"""Every step asks as it is configured to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.config import ActConfig, ContrastConfig, DistillConfig, JudgeConfig, RefineConfig, SelectConfig
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Contrast, Distill, Judge, Memory, Refine, Select
from rb_dspy.testing import Corridor, Prompt, Reply, ScriptedEngine
from tests.worlds import corridor, item

TASK = Task(id="t", instruction="Find the gold.")
ROLLOUTS = [
    Trajectory(task_id="t", rollout_id=str(n), steps=(Step(action=f"dig {n}"),), answer=str(n)) for n in range(3)
]


class _Recording(ScriptedEngine):
    """Keeps what is asked for beside the prompt."""

    def __init__(self) -> None:
        super().__init__(_reply)
        self.requests: list[tuple[str, Any, Any]] = []

    def complete(self, request: lm15.Request) -> lm15.Response:
        response = super().complete(request)
        self.requests.append((self.prompts[-1].wants[-1], request.config.temperature, request.config.max_tokens))
        return response


def _reply(prompt: Prompt) -> Reply:
    known: dict[str, Any] = {
        "thought": "On.",
        "action": "forward",
        "reasons": "So.",
        "label": "success",
        "analysis": "So.",
        "choice": 1,
        "findings": "Well.",
        "decision": "confirm",
        "memory_items": [item("One", "Look left.", evidence=[1])],
    }
    return {name: known[name] for name in prompt.wants}


def _passes(config: RefineConfig) -> Any:
    return Refine(config)(Act(ActConfig(max_steps=1)), corridor(), Memory(), Corridor.make, 3)


STEPS: dict[str, tuple[str, type[Any], Callable[[Any], Any]]] = {
    "act": ("action", ActConfig, lambda config: Act(config)(corridor(length=1), Memory(), Corridor.make)),
    "judge": ("label", JudgeConfig, lambda config: Judge(config)(TASK, ROLLOUTS[0])),
    "distill": (
        "memory_items",
        DistillConfig,
        lambda config: Distill(config)(TASK, ROLLOUTS[0], Verdict(label="success")),
    ),
    "contrast": ("memory_items", ContrastConfig, lambda config: Contrast(config)(TASK, ROLLOUTS)),
    "select": ("choice", SelectConfig, lambda config: Select(config)(TASK, ROLLOUTS)),
    "refine": ("decision", RefineConfig, _passes),
}


@pytest.mark.parametrize("how", [{}, {"temperature": 0.25, "max_tokens": 321}], ids=["by default", "as configured"])
@pytest.mark.parametrize("name", STEPS)
def test_temperature_and_length_are_those_of_the_configuration(name: str, how: dict[str, Any]) -> None:
    wants, config, ask = STEPS[name]
    made = config(**how)
    engine = _Recording()
    with Backbones(agent=dspy.LM("scripted/lm", engine=engine, cache=False, num_retries=0)).use():
        ask(made)
    asked = {request[1:] for request in engine.requests if request[0] == wants}
    assert asked == {(made.temperature, made.max_tokens)}
