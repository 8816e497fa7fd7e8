"""What came of a compile: the program, how good it is and how sure that is, what changed, and what it cost."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import dspy
import pydantic

from rb_dspy.compile.files import read_json, write_json
from rb_dspy.compile.scores import Comparison
from rb_dspy.compile.state import (
    COMPILED_FORMAT,
    COMPILED_VERSION,
    Prompts,
    only_scaling_differs,
    prompts_of,
    set_state,
)
from rb_dspy.errors import InputError
from rb_dspy.schema import RoleUsage, Task, Usage
from rb_dspy.stream import fingerprint
from rb_dspy.text import first_error

_Program = TypeVar("_Program", bound=dspy.Module)

Split = Literal["compile", "dev", "held_out"]
"""What a task was for: to compile on, to choose by, or to measure with."""


class Scores(pydantic.BaseModel):
    """Before and after, on the same tasks in the same orders.

    Candidates were chosen on dev, so dev flatters the one that was; held-out tasks were not looked at before.
    """

    dev: Comparison
    held_out: Comparison


class Found(pydantic.BaseModel):
    """A candidate: its mean on the dev examples that the optimizer chose by, and its prompts."""

    score: float
    prompts: Prompts


class Hashes(pydantic.BaseModel):
    """What this was compiled for and on."""

    signatures: str
    compile: str
    dev: str
    held_out: str
    bank: str = ""
    """Digest of the state of the bank that every run began with; empty for an empty one."""


class Compiled(pydantic.BaseModel):
    """A compiled program and the report of its compile.

    ``program`` has no backbones inside: give it some, or call it inside ``Backbones.use()``. ``save`` and ``load`` keep
    everything but ``program``, which ``apply`` makes of another.
    """

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    program: Any = pydantic.Field(default=None, exclude=True, repr=False)
    found_done: bool = pydantic.Field(default=False, exclude=True)
    """Whether its folder had the result: then it used nothing this time, and ``usage`` and ``seconds`` are of then."""
    state: dict[str, Any] = pydantic.Field(repr=False)
    """What ``save_program`` writes of the whole program."""
    optimizer: str
    stage: str
    budget: int
    metric_calls: int
    """Of the budget; those of scoring and of the first look are not among them."""
    seed: int
    scores: Scores
    measure: str
    """What is scored, in words."""
    prompts_before: Prompts = pydantic.Field(repr=False)
    prompts_after: Prompts = pydantic.Field(repr=False)
    """Predictor -> ``instructions`` and ``demos``, of the whole program."""
    usage: Usage
    """What every role used, scoring included; ``reflection`` is who proposed prompts."""
    seconds: float
    candidates: list[Found] = pydantic.Field(repr=False)
    """In the order in which they came up; the first is the program as it was."""
    broken: int = 0
    """Metric calls that were rated 0 since the program broke."""
    proposals_failed: int = 0
    """How often the LM that proposes prompts gave no answer, or only the prompt that there was: nothing was tried."""
    proposals_unreadable: int = 0
    """Of these, those whose answer could not be read."""
    unreadable_proposal: str = ""
    """How one of them began."""
    examples: dict[str, int] = pydantic.Field(default_factory=dict)
    """How many examples the optimizer had: ``train`` and ``dev``."""
    orders: int = 1
    hashes: Hashes
    tasks: dict[str, Split] = pydantic.Field(default_factory=dict, repr=False)
    """The fingerprint of every task -> its part; empty in files of before there were any."""
    versions: dict[str, str]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _runs_of_streams(cls, data: Any) -> Any:
        """Files of before estimates said so: those of the whole program are of runs of a stream."""
        if isinstance(data, dict) and data.get("stage") == "all" and isinstance(scores := data.get("scores"), dict):
            for part in scores.values():
                for estimate in part.values() if isinstance(part, dict) else ():
                    if isinstance(estimate, dict):
                        estimate.setdefault("of_runs", True)
        return data

    def part_of(self, task: Task) -> Split | None:
        """What ``task`` was for in this compile, whatever its id is now; None where it had no part in it.

        What the prompts do on tasks of ``compile`` and ``dev`` says nothing of others.
        """
        return self.tasks.get(fingerprint(task))

    @property
    def improved(self) -> bool:
        """Whether the held-out interval of the difference is above 0."""
        return self.scores.held_out.better

    @property
    def changed(self) -> list[str]:
        """Predictors whose prompts are others than before."""
        return [name for name, prompts in self.prompts_after.items() if prompts != self.prompts_before.get(name)]

    def diff(self) -> str:
        """A unified diff of each predictor that changed: instructions, then demonstrations. Empty for no change."""
        parts = []
        for name in self.changed:
            before, after = (_lines(each.get(name)) for each in (self.prompts_before, self.prompts_after))
            lines = difflib.unified_diff(before, after, f"{name} before", f"{name} after", lineterm="", n=2)
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def total(self) -> RoleUsage:
        """What all roles used together."""
        return sum(self.usage.values(), RoleUsage())

    def apply(self, program: _Program) -> _Program:
        """Give ``program`` the compiled prompts; ``MaTTS`` takes those of ``ReasoningBank`` and keeps its others.

        Returns ``program`` itself, no copy of it. Raises like ``load_program``.
        """
        fewer = len(self.state["predictors"]) < len(prompts_of(program)) and only_scaling_differs(program, self.state)
        set_state(program, self.state, source="compiled", partial=fewer)
        return program

    def save(self, path: str | Path) -> None:
        """Save as JSON, whole or not at all: no language model, key or address is in it."""
        write_json(path, {"format": COMPILED_FORMAT, "version": COMPILED_VERSION, **self.model_dump(mode="json")})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What ``save`` wrote; ``program`` is None."""
        data = read_json(path, COMPILED_FORMAT, COMPILED_VERSION)
        try:
            return cls.model_validate({name: value for name, value in data.items() if name in cls.model_fields})
        except pydantic.ValidationError as exc:
            raise InputError(f"{path}: {': '.join(first_error(exc))}; expected what Compiled.save wrote") from None


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
