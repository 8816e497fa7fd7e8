"""Labelled examples of single steps, gathered from runs whose ground truth is known.

Prompts may be written from those of the compile split only; those of the other splits are for scoring.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.counted import counting
from rb_dspy.compile.examples import INPUTS, from_plain, to_plain
from rb_dspy.compile.files import of_kind
from rb_dspy.compile.gather import gathered
from rb_dspy.compile.stages import Stage
from rb_dspy.errors import InputError
from rb_dspy.files import atomic_write
from rb_dspy.jsonl import read_objects
from rb_dspy.matts import BankProgram
from rb_dspy.protocols import Embedder
from rb_dspy.stream import RunReport, StreamProgram, TaskStream

FORMAT = "rb_dspy harvest"
VERSION = 3


@dataclass
class Harvest:
    """Examples for each stage, and how many could not be made, by stage and reason."""

    taught: dict[Stage, list[Any]] = field(default_factory=lambda: {stage: [] for stage in INPUTS})
    left_out: dict[Stage, dict[str, int]] = field(default_factory=lambda: {stage: {} for stage in INPUTS})

    def examples(self, stage: Stage) -> list[Any]:
        """The ``dspy.Example`` objects that the module of ``stage`` takes (``stage_module``), in the order of the runs.

        Raises ``InputError`` for a stage that has no examples of its own: ``all`` takes streams (``stream_example``).
        """
        if stage not in self.taught:
            raise InputError(f"no examples for stage {stage!r}; known: {', '.join(INPUTS)}; 'all' takes streams")
        return list(self.taught[stage])

    def summary(self) -> str:
        """A line a stage: how many examples, and what was left out and why."""
        return "\n".join(_line(stage, len(found), self.left_out[stage]) for stage, found in self.taught.items())

    def to_jsonl(self, path: str | Path) -> None:
        """Write all of it to a JSON Lines file, whole or not at all. It holds ground truth."""
        lines: list[dict[str, Any]] = [{"format": FORMAT, "version": VERSION, "left_out": self.left_out}]
        for stage, found in self.taught.items():
            lines += [{"stage": stage, **to_plain(stage, example)} for example in found]
        with atomic_write(path) as file:
            file.writelines(f"{json.dumps(line)}\n".encode() for line in lines)

    @classmethod
    def from_jsonl(cls, path: str | Path) -> Harvest:
        """What ``to_jsonl`` wrote. Raises ``InputError`` that names the file and the line."""
        target = Path(path)
        made = cls()
        read = made._begin
        for number, plain in read_objects(target, "an object that Harvest.to_jsonl wrote", error=InputError):
            place = f"{target}:{number}"
            try:
                read(plain, place)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise InputError(f"{place}: damaged; expected what Harvest.to_jsonl wrote") from None
            read = made._add
        return made

    def _begin(self, plain: dict[str, Any], place: str) -> None:
        """Read the first line, which says what the file is."""
        plain = of_kind(plain, {FORMAT: VERSION}, place)
        if plain["version"] < VERSION:
            raise InputError(f"{place}: version {plain['version']} of the format; expected {VERSION}: harvest again")
        for stage, reasons in plain["left_out"].items():
            self.left_out[stage] = {str(why): int(times) for why, times in reasons.items()}

    def _add(self, plain: dict[str, Any], place: str) -> None:
        """Read any other line, which is an example."""
        stage = plain.pop("stage", None)
        if stage not in self.taught:
            raise InputError(f"{place}: unknown stage {str(stage)[:40]!r}; known: {', '.join(INPUTS)}")
        try:
            example = from_plain(cast(Stage, stage), plain)
        except InputError as exc:
            raise InputError(f"{place}: {exc}") from None
        self.taught[cast(Stage, stage)].append(example)


def harvest(
    program: BankProgram,
    streams: Iterable[TaskStream],
    bank: MemoryBank | None = None,
    *,
    embedder: Embedder | str | None = None,
    on_report: Callable[[RunReport], None] = lambda report: None,
    on_task: Callable[[int], None] = lambda rollouts: None,
) -> Harvest:
    """Run ``program`` over each stream, from a fresh fork of ``bank`` each, and gather what the runs teach.

    ``bank`` and ``embedder`` are those of ``StreamProgram``. ``on_task`` is called after every task with the number of
    its rollouts that came to their end, to see or to count. Raises like ``StreamProgram``.
    """
    whole = StreamProgram(program, bank, embedder=embedder)
    reports = []
    for stream in streams:
        with counting(program, lambda prediction: on_task(_ended(prediction))):
            reports.append(whole(stream=stream).report)
        on_report(reports[-1])
    return _harvested(reports)


def harvest_report(report: RunReport) -> Harvest:
    """What a run that there is already teaches. No language model is asked."""
    return _harvested([report])


def _harvested(reports: Sequence[RunReport]) -> Harvest:
    found = gathered(reports)
    return Harvest(found.taught, {stage: dict(reasons) for stage, reasons in found.left_out.items()})


def _ended(prediction: Any) -> int:
    """How many rollouts of a task came to their end."""
    return 0 if prediction is None else len(prediction.get("trajectories") or (prediction.trajectory,))


def _line(stage: str, count: int, left_out: dict[str, int]) -> str:
    reasons = ", ".join(f"{times} ({why})" for why, times in left_out.items() if times)
    return f"{stage}: {count} examples" + (f"; left out: {reasons}" if reasons else "")
