"""The result of a compile: the program, what changed, how much better it is, and what that cost."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import dspy
import pydantic

from rb_dspy.errors import InputError
from rb_dspy.evaluation.intervals import Comparison
from rb_dspy.prompts import COMPILED_FORMAT, COMPILED_VERSION, Prompts, read_json, set_state, write_json
from rb_dspy.schema import Usage
from rb_dspy.text import first_error

_Program = TypeVar("_Program", bound=dspy.Module)

Part = Literal["compile", "dev", "held_out"]
"""The use of a task: to compile on, to choose by, or to measure with."""


class Candidate(pydantic.BaseModel):
    """Prompts that the optimizer tried, and their mean score on the dev examples that it chose by."""

    score: float
    prompts: Prompts


class Compiled(pydantic.BaseModel):
    """A compiled program and the report of its compile.

    ``save`` and ``load`` handle everything but ``program``; ``apply`` sets the prompts of another program.
    """

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    program: Any = pydantic.Field(default=None, exclude=True, repr=False)
    """A copy with the compiled prompts and the backbones of the program that was passed."""
    state: dict[str, Any] = pydantic.Field(repr=False)
    """The state that ``save_program`` writes."""
    optimizer: str
    step: str
    budget: int
    metric_calls: int
    """Metric calls used; excludes the runs that collect examples and the scoring."""
    seed: int
    dev: Comparison
    """Optimistic, because the prompts were chosen on these tasks."""
    held_out: Comparison
    """On tasks that neither the optimizer nor the reflection model saw."""
    measure: str
    """What a score means."""
    prompts_before: Prompts = pydantic.Field(repr=False)
    prompts_after: Prompts = pydantic.Field(repr=False)
    candidates: list[Candidate] = pydantic.Field(default_factory=list, repr=False)
    """Candidates scored on all dev examples, oldest first; empty if the optimizer does not use dev."""
    usage: Usage
    """Usage of each role, scoring included; ``reflection`` proposed the prompts. Answers from the cache are free."""
    reflection: str = pydantic.Field(default="", exclude=True)
    """Name of the reflection model, for its price; like all language models it is not saved."""
    seconds: float
    broken: int = 0
    """Metric calls that failed with an error and were scored 0."""
    orders: int = 1
    streams: dict[Part, str] = pydantic.Field(default_factory=dict)
    """Part -> digest of its tasks."""
    task_parts: dict[str, Part] = pydantic.Field(default_factory=dict, repr=False)
    """``fingerprint`` of a task -> its part."""
    versions: dict[str, str] = pydantic.Field(default_factory=dict)

    @property
    def improved(self) -> bool:
        """Whether the held-out tasks show that the program is better."""
        return self.held_out.better

    @property
    def changed(self) -> list[str]:
        """Predictors with other prompts than before."""
        return [name for name, prompts in self.prompts_after.items() if prompts != self.prompts_before.get(name)]

    def __repr__(self) -> str:
        what = f"changed {', '.join(self.changed)}" if self.changed else "changed nothing"
        return f"Compiled({self.optimizer} of {self.step}, {what}, held out {self.held_out.verdict}: {self.held_out})"

    __str__ = __repr__

    def diff(self) -> str:
        """A unified diff of each predictor that changed: instructions, then demonstrations. Empty if none did."""
        parts = []
        for name in self.changed:
            before, after = (_lines(prompts.get(name)) for prompts in (self.prompts_before, self.prompts_after))
            lines = difflib.unified_diff(before, after, f"{name} before", f"{name} after", lineterm="", n=2)
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def apply(self, program: _Program) -> _Program:
        """Set the compiled prompts of ``program`` and return it. Raises like ``load_program``.

        A ``MaTTS`` accepts the prompts of a ``ReasoningBank`` and keeps its own scaling prompts.
        """
        set_state(program, self.state, source="compiled")
        return program

    def save(self, path: str | Path) -> None:
        """Save as JSON, without language models, keys or addresses. ``load_program`` reads it too."""
        write_json(path, {"format": COMPILED_FORMAT, "version": COMPILED_VERSION, **self.model_dump(mode="json")})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a file of ``save``; ``program`` is None. Raises ``InputError`` for any other file."""
        data = read_json(path, {COMPILED_FORMAT: COMPILED_VERSION})
        try:
            return cls.model_validate({name: value for name, value in data.items() if name in cls.model_fields})
        except pydantic.ValidationError as exc:
            raise InputError(f"{path}: {': '.join(first_error(exc))}; expected a file of Compiled.save") from None


def _lines(prompts: dict[str, Any] | None) -> list[str]:
    if prompts is None:
        return []
    lines: list[str] = prompts["instructions"].splitlines()
    for number, demo in enumerate(prompts["demos"], 1):
        lines.append(f"[demonstration {number}]")
        for name, value in demo.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines += [f"{name}: {line}" for line in text.splitlines() or [""]]
    return lines
