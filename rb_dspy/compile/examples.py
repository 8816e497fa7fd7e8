"""The examples of a compile: windows of a stream for the whole program, labelled calls for a single step."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.models import Models
from rb_dspy.compile.plan import most_dev, no_truth
from rb_dspy.compile.progress import Reporter
from rb_dspy.compile.search import MAX_ERRORS_IN_A_ROW, first_error
from rb_dspy.compile.steps import CompileStep, step_examples, stratified
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.matts import BankProgram
from rb_dspy.protocols import Embedder
from rb_dspy.stream import Streams, run_stream, stream_example


@dataclass(frozen=True)
class Examples:
    """What an optimizer works on, and for a single step what it is scored on."""

    train: list[Any]
    dev: list[Any]
    """Those that candidates are chosen by: a sample, so that the budget pays for several candidates."""
    scored: dict[str, list[Any]] = field(default_factory=dict)
    """``dev`` and ``held_out`` -> all examples; empty for the whole program, which is scored on whole streams."""


def stream_examples(streams: Streams, window: int, budget: int, seed: int) -> Examples:
    """One example for each window of ``window`` tasks."""
    train, dev = ([stream_example(each) for each in part.windows(window)] for part in (streams.compile, streams.dev))
    most = most_dev(budget)
    return Examples(train, dev if len(dev) <= most else random.Random(f"{seed}/dev").sample(dev, most))


def run_examples(
    program: BankProgram,
    step: CompileStep,
    streams: Streams,
    models: Models,
    reporter: Reporter,
    *,
    bank: MemoryBank | None,
    embedder: Embedder | str | None,
    budget: int,
    seed: int,
) -> Examples:
    """Run the program once over each part, each from a fork of ``bank``, and take the examples from these runs.

    Raises:
        InputError: A part gave none.
    """
    found: dict[str, list[Any]] = {}
    for name in ("compile", "dev", "held_out"):
        stream = getattr(streams, name)
        reporter.phase(f"running the {name} part", len(stream))
        fork = MemoryBank.open(None, scope="compile", embedder=embedder) if bank is None else bank.fork()
        with closing(fork), models.use():
            report = run_stream(program, stream, fork, on_result=lambda result: reporter.step())
        found[name] = step_examples(step, report)
        if not found[name]:
            if all(result.unscored for result in report.results):
                raise no_truth(stream)
            raise InputError(f"{stream.name}: no example for step {step!r} in {report!r}; add tasks, or use step 'all'")
    train = stratified(found["compile"], len(found["compile"]), f"{seed}/train")
    return Examples(train, stratified(found["dev"], most_dev(budget), f"{seed}/dev"), found)


def check_streams(run: Callable[[dict[str, Any]], dspy.Prediction], examples: Examples, streams: Streams) -> None:
    """See that the program works and that there is ground truth, before anything is spent.

    Runs dev windows until one has a score; the search gets their answers from the cache.

    Raises:
        InputError: No window has ground truth.
        InfrastructureError: The first windows all fail.
    """
    error = ""
    for number, example in enumerate(examples.dev, 1):
        prediction = run(example.inputs())
        broken = first_error(prediction)
        if prediction.score is not None and not broken:
            return
        error = error or broken
        if error and number == MAX_ERRORS_IN_A_ROW:
            break
    if error:
        raise InfrastructureError(f"the program fails on every task that was tried; the first: {error}")
    raise no_truth(streams.dev)
