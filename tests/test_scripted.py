"""What the docs of the scripted language model show is so."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import pytest

from rb_dspy import MaTTS, MemoryBank, ReasoningBank, Task
from rb_dspy.backbones import Backbones
from rb_dspy.config import MattsMode
from rb_dspy.testing import scripted_lm

FORTY_TWO = Task(id="t", instruction="How many roads?", env_args={"answer": "42"})


def shown() -> Any:
    """The script in the docstring."""
    lines = (inspect.getdoc(scripted_lm) or "").splitlines()
    made: dict[str, Any] = {}
    exec(textwrap.dedent("\n".join(line for line in lines if line.startswith("    "))), made)
    return made["script"]


@pytest.mark.parametrize("mode", [None, "parallel", "sequential", "vanilla"])
def test_its_lessons_are_learned_from_one_rollout_and_from_several(bank: MemoryBank, mode: MattsMode | None) -> None:
    alone = ReasoningBank(backbones=Backbones(agent=scripted_lm(shown())))
    program = alone if mode is None else MaTTS(alone, k=2, mode=mode)
    done = program(task=FORTY_TWO, bank=bank)
    assert done.verdict.label == "success"
    assert [item.title for item in bank.items()] == ["Say 42"]
    assert "dropped" not in done.experience.note
