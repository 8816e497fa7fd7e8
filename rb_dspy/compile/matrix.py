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

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy
import pydantic

from rb_dspy.backbones import Backbones, metered
from rb_dspy.backbones.check import unusable
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.compile.measure import rate_stream
from rb_dspy.compile.ratings import Ratings
from rb_dspy.compile.scores import SMALLEST, Estimate, Says, compare, estimate
from rb_dspy.compile.state import load_program
from rb_dspy.compile.truth import check_known, check_truth, say_left_out
from rb_dspy.errors import BackboneError, InputError, RBError
from rb_dspy.matts import BankProgram
from rb_dspy.program import check_bank
from rb_dspy.protocols import Embedder
from rb_dspy.schema import RoleUsage, Task
from rb_dspy.stream import RunReport, StreamProgram, TaskStream

SEED = "seed"
"""The program without compiled prompts; the others are compared with it, so it is always in the matrix."""
UNCOMPILED = "uncompiled"
"""What people are told for ``SEED``, which to them is a number for random draws."""
DEFAULT = "default"


def shown(program: str) -> str:
    """A program's name as people are told it."""
    return UNCOMPILED if program == SEED else program


_NO_GAIN: tuple[Says, ...] = ("no better than before", "not shown to be better", "worse")


class Cell(pydantic.BaseModel):
    """One program on one backbone. Where it could not be run, ``error`` says why and there are no numbers."""

    program: str
    backbone: str
    success: Estimate | None = None
    difference: Estimate | None = None
    """Against the seed program on the same backbone, paired by task."""
    judge_agreement: float | None = None
    judge_base_rate: float | None = None
    """What ``judge_agreement`` would be of one who always says the same: of what this cell's own agent did."""
    judge_balanced: float | None = None
    """The judge's share of right verdicts on successes and on failures, the mean of both: 0.5 for one who always says
    the same, however often the agent succeeds, so judges of different agents may be held against each other. None where
    all that was judged is a success, or none is."""
    tokens: int = 0
    seconds: float = 0.0
    """Inside calls of language models."""
    broken: int = 0
    """Tasks that broke, and count as not solved."""
    error: str = ""
    unusable: bool = False
    """Whether ``error`` is the backbone's: no program can be run on it."""

    @property
    def recompile(self) -> bool:
        """Whether this program could not be run, or is no better than the seed program on this backbone.

        Where the backbone cannot be used, only the seed program could not be run, or the tasks are too few to tell,
        nobody knows.
        """
        if self.program == SEED or self.unusable:
            return False
        return self.success is None if self.difference is None else self.difference.says in _NO_GAIN

    @property
    def too_few(self) -> bool:
        """Whether the tasks, or the orders, are too few to tell this program from the seed program."""
        return self.difference is not None and self.difference.says.startswith("too few")


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
        """Program and backbone of every cell that is no better than the seed program there.

        Not of one that solves no less and judges better: its judge was compiled, say. Better is ``judge_balanced`` by
        0.05 or more; where all tasks are solved, or none, in either cell, nobody knows.
        """
        return [
            (cell.program, cell.backbone) for cell in self.cells if cell.recompile and not self._judges_better(cell)
        ]

    def _judges_better(self, cell: Cell) -> bool:
        seed = next((each for each in self.cells if (each.program, each.backbone) == (SEED, cell.backbone)), None)
        if seed is None or seed.judge_balanced is None or cell.judge_balanced is None or cell.difference is None:
            return False
        return cell.difference.says != "worse" and cell.judge_balanced >= seed.judge_balanced + SMALLEST

    def unusable(self) -> list[str]:
        """The backbones that cannot be used."""
        return list(dict.fromkeys(cell.backbone for cell in self.cells if cell.unusable))


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
    program: BankProgram,
    programs: Mapping[str, str | Path],
    backbones: Mapping[str, Any],
    stream: TaskStream | Sequence[Task | str],
    *,
    bank: MemoryBank | None = None,
    embedder: Embedder | str | None = None,
    orders: int = 3,
    seed: int = 0,
    threads: int = 1,
    on_unusable: Callable[[str, str], None] = lambda backbone, problem: None,
    on_start: Callable[[str, str], None] = lambda program, backbone: None,
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> Matrix:
    """Run every program on every backbone over ``stream``, from a fork of ``bank`` each time.

    ``programs``: name -> what ``save_program`` or ``Compiled.save`` wrote for one like ``program``, or a folder of
    such files by backbone; the seed program, ``program`` as it is, is always run too. ``backbones``: name ->
    ``Backbones``, an LM, a ``BackboneConfig`` or a model's name. What breaks one cell is noted in it.

    First every backbone is asked for a word, once, which counts in no cell. ``on_unusable`` is told of one that cannot
    be used at all, and why, as soon as that is known; no further cell of it is run. ``on_start`` is told the program
    and the backbone of each cell before it is run; ``on_cell`` is given the cells when all are done, since only then it
    is known which tasks count. Where something else ends it, an interrupt for one, it is given those that were done.
    Raises ``InputError`` for no backbones, for a program that is called ``seed``, for what is no stream of tasks or no
    bank, and for questions none of which has an answer.
    """
    stream = TaskStream.of(stream)
    if not backbones:
        raise InputError("no backbones; a matrix needs at least one: name -> language model")
    if SEED in programs:
        raise InputError(f"a program called {SEED!r}: that is the name of the one without compiled prompts; rename it")
    if bank is not None:
        check_bank(bank)
    check_truth([stream], program.environments)
    found = Matrix(stream=stream.digest, orders=orders, cells=[])
    rated: dict[tuple[str, str], Ratings] = {}
    states = {SEED: None, **programs}
    problems: dict[str, str] = {}

    def give_up(backbone: str, problem: str) -> None:
        problems[backbone] = problem
        on_unusable(backbone, problem)

    try:
        players = {}
        for backbone, lm in backbones.items():
            try:
                players[backbone] = lm if isinstance(lm, Backbones) else Backbones(agent=lm)
                problem = unusable(players[backbone])
            except RBError as exc:
                problem = str(exc)
            if problem:
                give_up(backbone, problem)
        for backbone in backbones:
            for name, path in states.items():
                cell = Cell(program=name, backbone=backbone)
                if backbone not in problems:
                    on_start(name, backbone)
                    try:
                        work = program.deepcopy()
                        work.backbones = None
                        if path is not None:
                            load_program(work, state_for(path, backbone))
                        cast = Cast(players[backbone], Answers())
                        whole = StreamProgram(work, bank, embedder=embedder)
                        ratings = _run(whole, stream, cast, cell, orders=orders, seed=seed, threads=threads)
                        rated[name, backbone] = ratings
                    except BackboneError as exc:
                        give_up(backbone, str(exc))
                    except RBError as exc:
                        cell.error = str(exc)
                if backbone in problems:
                    cell.error, cell.unusable = problems[backbone], True
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
    whole_run = RunReport("", [result for report in reports for result in report.results]).summary()
    cell.judge_agreement = whole_run.judge_agreement
    cell.judge_base_rate = whole_run.judge_base_rate
    cell.judge_balanced = whole_run.judge_balanced
    return ratings
