"""A whole stream as one call, as optimizers need it: one ``dspy.Example`` is one stream."""

from __future__ import annotations

from typing import Any

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.learner import check_bank
from rb_dspy.matts import BankProgram
from rb_dspy.pace import silent
from rb_dspy.protocols import Embedder
from rb_dspy.stream.run import run_stream
from rb_dspy.stream.stream import TaskStream

RUN_ID = "compile"
"""Run id of every call. It may repeat, because each call writes to its own fork."""


class StreamProgram(dspy.Module):
    """Runs ``program`` over a whole stream in one call: ``stream_program(stream=stream)``.

    Every call starts from a fresh fork of a bank and discards it, so calls can be repeated or made from several
    threads, and the program can be copied. The predictors are those of ``program``; the state contains neither bank nor
    embedder.

    Args:
        program: A ``ReasoningBank``, or a ``MaTTS``.
        bank: Forked by every call; None: an empty bank in memory.
        embedder: Embedder of the empty bank.
    """

    def __init__(
        self, program: BankProgram, bank: MemoryBank | None = None, *, embedder: Embedder | str | None = None
    ) -> None:
        super().__init__()
        if getattr(program, "_compiled", False):  # dspy hides the predictors of a compiled program inside another one
            program = program.deepcopy()
            program._compiled = False
        self.program = program
        start = bank if bank is None else check_bank(bank)

        def fork() -> MemoryBank:  # copies of this program share a function, and what it holds: files and locks
            return MemoryBank.open(None, scope=RUN_ID, embedder=embedder) if start is None else start.fork()

        self._fork = fork

    def forward(self, stream: TaskStream) -> dspy.Prediction:
        """Run ``stream`` from a fork of the bank.

        Returns:
            ``report`` (``RunReport``) and ``score``: the share of solved tasks among those with ground truth and those
            that failed; None if there are none. If every task fails, the score is 0.

        Raises:
            BackboneError: A language model cannot be used at all.
            InputError: ``stream`` is not a ``TaskStream`` or has no tasks, or the bank has learned from one of them in
                a run named "compile".
        """
        if not isinstance(stream, TaskStream) or not len(stream):
            raise InputError(f"got {stream!r:.80} for stream; expected a TaskStream with at least one task")
        with self._fork() as fork:
            report = run_stream(self.program, stream, fork, run_id=RUN_ID, on_progress=silent, stop_after=None)
        if len(report.results) != len(stream):
            raise InputError(f"the bank has a run called {RUN_ID!r} with tasks of this stream; pass a bank without it")
        return dspy.Prediction(report=report, score=report.summary().success_rate)


def stream_example(stream: TaskStream) -> Any:
    """Return the ``dspy.Example`` for ``StreamProgram``."""
    return dspy.Example(stream=stream).with_inputs("stream")
