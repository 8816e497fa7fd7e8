"""What an optimizer sees of a program over a stream: a function of the stream, without memory of earlier calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Embedder
from rb_dspy.steps import ingest
from rb_dspy.stream.report import RunReport
from rb_dspy.stream.result import TaskResult
from rb_dspy.stream.run import run_stream
from rb_dspy.stream.tasks import TaskStream

RUN_ID = "compile"
"""What every call names its run. The bank that it runs on ends with it, so no two of these ever meet."""


class StreamProgram(dspy.Module):
    """A program over a whole stream, or a window of one, as one call: one ``dspy.Example`` is one stream.

    ``stream_program(stream=stream)`` returns a ``dspy.Prediction`` with ``report`` (``RunReport``, every task in it)
    and ``score``: tasks solved, of those that have ground truth; None where none has. A task that broke counts as not
    solved, and is in the report with its error; nothing but what would break every task (``BackboneError``,
    ``MissingDependency``) is raised. So a program that breaks on all tasks scores 0: look at
    ``report.summary().infrastructure_errors``.

    Every call starts from a fresh fork of ``bank``, of ``bank`` in the call where it is given, else from an empty bank
    in memory with ``embedder`` (None: the default one), and ends it. So a call can be repeated, deep-copied and made
    from several threads, and a given bank is never written to. The predictors are those of ``program``, by the names
    ``program.judge.predict`` and so on; neither bank nor embedder is in the saved state.
    """

    def __init__(
        self,
        program: ReasoningBank | MaTTS,
        bank: MemoryBank | None = None,
        *,
        embedder: Embedder | str | None = None,
    ) -> None:
        """Raises ``InputError`` where ``bank`` is no bank."""
        super().__init__()
        check_bank(bank)
        if getattr(program, "_compiled", False):  # dspy would take none of its prompts for ours
            program = program.deepcopy()
            program._compiled = False
        self.program = program
        self._start = _Start(bank, embedder)

    def get_lm(self) -> Any:
        """See ``ReasoningBank.get_lm``."""
        return self.program.get_lm()

    def forward(self, stream: TaskStream, bank: MemoryBank | None = None) -> dspy.Prediction:
        """Run the stream. Raises ``InputError`` for one without tasks, or with two tasks of one id."""
        check_bank(bank)
        if not isinstance(stream, TaskStream):
            raise InputError(
                f"got {type(stream).__name__} for a stream; expected a TaskStream: TaskStream(name, tasks) makes one"
            )
        if not len(stream):
            raise InputError(f"the stream {stream.name!r} has no tasks; a score needs at least one")
        ids = [task.id for task in stream]
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise InputError(f"the task id {twice!r} stands twice in the stream {stream.name!r}; ids must differ")
        report = RunReport(RUN_ID)
        with self._start.fresh(bank) as fork:
            for position, task in enumerate(
                stream, 1
            ):  # one by one: a run of them all would end at the third that breaks in a row
                done = run_stream(self.program, (task,), fork, run_id=RUN_ID).results
                if not done:
                    raise InputError(
                        f"task {task.id}: {fork!r} has learned from it in a run called {RUN_ID!r}; give a bank without"
                        " that run"
                    )
                report.results += [replace(result, position=position) for result in done]
        counted = [result for result in report.results if not untold(result)]
        score = sum(map(solved, counted)) / len(counted) if counted else None
        return dspy.Prediction(report=report, score=score)


def stream_example(stream: TaskStream) -> Any:
    """The ``dspy.Example`` that ``StreamProgram`` takes."""
    return dspy.Example(stream=stream).with_inputs("stream")


def solved(result: TaskResult) -> bool:
    """Whether ground truth says so."""
    return result.outcome is not None and result.outcome.success


def untold(result: TaskResult) -> bool:
    """Whether a task came to its end, and nobody knows how: it is neither solved nor failed, and does not count.

    One that broke is not such a task: it counts as not solved.
    """
    return result.outcome is None and not result.error


def check_bank(bank: MemoryBank | object | None) -> None:
    """Raise ``InputError`` for anything but a bank, or None."""
    if bank is not None:
        ingest.check_bank(bank)


class _Start:
    """Where every call begins. One for all copies of a program: neither banks nor embedders may be copied."""

    def __init__(self, bank: MemoryBank | None, embedder: Embedder | str | None) -> None:
        self._bank = bank
        self._embedder = embedder

    def fresh(self, bank: MemoryBank | None) -> MemoryBank:
        """A bank of one's own, to be closed."""
        base = self._bank if bank is None else bank
        if base is None:
            return MemoryBank.open(None, scope=RUN_ID, embedder=self._embedder)
        return base.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a StreamProgram cannot be pickled, since banks cannot; save the state of its program")
