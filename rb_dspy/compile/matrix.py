"""Programs x backbones on a held-out stream: which prompts carry over to which language model, and which do not.

Prompts that were compiled on one language model can be worse than none on another. States are kept side by side, one
folder a program and in it one file a backbone, by the names that the caller gives them::

    programs/
        support/
            default.json        for a backbone that has no file of its own
            small.json          compiled on the backbone called "small"
            large.json

All numbers of a matrix are over the same tasks: those that somebody knows the outcome of in any cell
(``rb_dspy.compile.ratings``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dspy
import pydantic

from rb_dspy.backbones import Backbones, metered
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.compile.measure import rate_stream
from rb_dspy.compile.ratings import Ratings
from rb_dspy.compile.scores import Estimate, compare, estimate
from rb_dspy.compile.stages import Program
from rb_dspy.compile.state import load_program
from rb_dspy.compile.truth import check_known, check_truth, say_left_out
from rb_dspy.errors import InputError, RBError
from rb_dspy.protocols import Embedder
from rb_dspy.schema import RoleUsage
from rb_dspy.stream.program import StreamProgram, check_bank
from rb_dspy.stream.report import RunReport
from rb_dspy.stream.tasks import TaskStream

SEED = "seed"
"""The program without compiled prompts; the others are compared with it, so it is always in the matrix."""
DEFAULT = "default"


class Cell(pydantic.BaseModel):
    """One program on one backbone. Where it could not be run, ``error`` says why and there are no numbers."""

    program: str
    backbone: str
    success: Estimate | None = None
    difference: Estimate | None = None
    """Against the seed program on the same backbone, paired by task."""
    judge_agreement: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    """Inside calls of language models."""
    broken: int = 0
    """Tasks that broke, and count as not solved."""
    error: str = ""

    @property
    def recompile(self) -> bool:
        """Whether this program could not be run, or was not shown to be better than the seed program on this backbone.

        Where only the seed program could not be run, nobody knows.
        """
        if self.program == SEED:
            return False
        return self.success is None if self.difference is None else self.difference.low <= 0


class Matrix(pydantic.BaseModel):
    """All cells, backbone by backbone, the seed program first."""

    stream: str
    """Digest of the held-out tasks."""
    orders: int
    cells: list[Cell]
    left_out: int = 0
    """Tasks that nobody knows the outcome of, in any cell: they count in none."""

    def cell(self, program: str, backbone: str) -> Cell:
        """The cell of a program on a backbone. Raises ``InputError`` where there is none."""
        for cell in self.cells:
            if (cell.program, cell.backbone) == (program, backbone):
                return cell
        raise InputError(f"no program {program!r} on a backbone {backbone!r} in this matrix")

    def to_recompile(self) -> list[tuple[str, str]]:
        """Program and backbone of every cell that is no better than the seed program there."""
        return [(cell.program, cell.backbone) for cell in self.cells if cell.recompile]


def state_path(folder: str | Path, program: str, backbone: str = DEFAULT) -> Path:
    """Where the state of ``program`` for ``backbone`` is kept. Raises ``InputError`` for names that make no path."""
    for name in (program, backbone):
        if not name or name.startswith(".") or any(sign in name for sign in '/\\:*?"<>|\0'):
            raise InputError(f"the name {name!r} cannot be that of a file; expected letters, digits, - and _")
    return Path(folder) / program / f"{backbone}.json"


def state_for(path: str | Path, backbone: str) -> Path:
    """The file at ``path``; of a folder of states, the one for ``backbone``, else the default one.

    Raises ``InputError`` where there is neither.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    for name in (backbone, DEFAULT):
        found = state_path(path.parent, path.name, name)
        if found.exists():
            return found
    raise InputError(f"{path}: holds neither {backbone}.json nor {DEFAULT}.json; compile for {backbone}, or add one")


def matrix(
    program: Program,
    programs: Mapping[str, str | Path],
    backbones: Mapping[str, Any],
    stream: TaskStream,
    *,
    bank: MemoryBank | None = None,
    embedder: Embedder | str | None = None,
    orders: int = 1,
    seed: int = 0,
    threads: int = 1,
    on_start: Callable[[str, str], None] = lambda program, backbone: None,
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> Matrix:
    """Run every program on every backbone over ``stream``, from a fork of ``bank`` each time.

    ``programs``: name -> what ``save_program`` or ``Compiled.save`` wrote for one like ``program``, or a folder of
    such files by backbone; the seed program, ``program`` as it is, is always run too. ``backbones``: name ->
    ``Backbones``, an LM, a ``BackboneConfig`` or a model's name. What breaks one cell is noted in it.

    ``on_start`` is told the program and the backbone of each cell before it is run; ``on_cell`` is given the cells when
    all are done, since only then it is known which tasks count. Where something else ends it, an interrupt for one, it
    is given those that were done. Raises ``InputError`` for no backbones, for a program that is called ``seed``, for
    what is no bank, and for questions none of which has an answer.
    """
    if not backbones:
        raise InputError("no backbones; a matrix needs at least one: name -> language model")
    if SEED in programs:
        raise InputError(f"a program called {SEED!r}: that is the name of the one without compiled prompts; rename it")
    check_bank(bank)
    check_truth([stream], program.environments)
    found = Matrix(stream=stream.digest, orders=orders, cells=[])
    rated: dict[tuple[str, str], Ratings] = {}
    states = {SEED: None, **programs}
    try:
        for backbone, lm in backbones.items():
            for name, path in states.items():
                on_start(name, backbone)
                cell = Cell(program=name, backbone=backbone)
                try:
                    work = program.deepcopy()
                    work.backbones = None
                    if path is not None:
                        load_program(work, state_for(path, backbone))
                    cast = Cast(lm if isinstance(lm, Backbones) else Backbones(agent=lm), Answers())
                    whole = StreamProgram(work, bank, embedder=embedder)
                    ratings = _run(whole, stream, cast, cell, orders=orders, seed=seed, threads=threads)
                    rated[name, backbone] = ratings
                except RBError as exc:
                    cell.error = str(exc)
                found.cells.append(cell)
    finally:
        _estimate(found, rated, stream)
        for cell in found.cells:
            on_cell(cell)
    return found


def _estimate(found: Matrix, rated: Mapping[tuple[str, str], Ratings], stream: TaskStream) -> None:
    """The numbers of the cells that were ``rated``, all over the same tasks."""
    every = list(rated.values())
    if not every:
        return
    try:
        check_known(stream, *every)
    except InputError as exc:
        for cell in found.cells:
            cell.error = cell.error or str(exc)
        return
    found.left_out = say_left_out(stream, *every)
    for cell in found.cells:
        own, seed = rated.get((cell.program, cell.backbone)), rated.get((SEED, cell.backbone))
        if own is not None:
            cell.success = estimate(own, *every)
        if own is not None and seed is not None and cell.program != SEED:
            cell.difference = compare(seed, own, *every).difference


def _run(
    whole: dspy.Module, stream: TaskStream, cast: Cast, cell: Cell, *, orders: int, seed: int, threads: int
) -> Ratings:
    reports: list[RunReport] = []
    with metered() as ledger, dspy.context(disable_history=True):
        try:
            ratings = rate_stream(
                whole, stream, cast, orders=orders, seed=seed, threads=threads, on_report=reports.append
            )
        finally:
            used = sum(ledger.usage().values(), RoleUsage())
            cell.tokens = used.prompt_tokens + used.completion_tokens
            cell.seconds = used.seconds
    cell.broken = ratings.broken
    agreed = [result.agreed for report in reports for result in report.results if result.agreed is not None]
    cell.judge_agreement = sum(agreed) / len(agreed) if agreed else None
    return ratings
