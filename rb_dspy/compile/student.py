"""The program as an optimizer sees it: each call of it is noted, with the prompts that it had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import dspy

from rb_dspy.compile.budget import Record


class Student(dspy.Module):
    """The program as an optimizer sees it. Copies share the record."""

    def __init__(self, program: dspy.Module, record: Record) -> None:
        super().__init__()
        self.program = program
        self._draws = _Draws(record)

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Call the program with the prompts that it has now."""
        return self._draws.run(self.program, inputs)

    def get_lm(self) -> Any:
        """For optimizers that draw several samples by copies of an LM: ours are bound when a call is made."""
        return self._draws.record.cast.agent

    def set_lm(self, lm: Any) -> None:
        """Draw other samples, as ``lm`` would, from every role's own LM. No LM is pinned."""
        self._draws = _Draws(self._draws.record, lm.kwargs.get("rollout_id") or 0, lm.kwargs.get("temperature"))


@dataclass(frozen=True)
class _Draws:
    record: Record
    draw: int = 0
    temperature: float | None = None

    def run(self, module: Any, inputs: dict[str, Any]) -> dspy.Prediction:
        return self.record.run(module, inputs, self.draw, self.temperature)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def student_of(program: dspy.Module, record: Record) -> Student:
    """``program`` for an optimizer; whoever asks for the student's source code is shown the program's."""
    shown = {"__wrapped__": type(program), "__doc__": type(program).__doc__}
    kind: type[Student] = type(Student.__name__, (Student,), shown)
    return kind(program, record)
