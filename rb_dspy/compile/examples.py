"""The examples of a compile: windows of a stream for the whole program, labeled calls for a single step."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.plan import most_dev
from rb_dspy.compile.search import MAX_ERRORS_IN_A_ROW, Setup, stream_error
from rb_dspy.compile.steps import step_examples, stratified
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.evaluation.plan import no_truth
from rb_dspy.stream import TaskStream, run_stream, stream_example


@dataclass(frozen=True)
class Examples:
    """The examples for the optimizer, and for a single step those that score it."""

    train: list[Any]
    dev: list[Any]
    """Examples that candidates are chosen by: a sample, so that the budget covers several candidates."""
    scored: dict[str, list[Any]] = field(default_factory=dict)
    """``dev`` and ``held_out`` -> all examples; empty for the whole program, which is scored on whole streams."""


def stream_examples(setup: Setup, window: int) -> Examples:
    """One example for each window of ``window`` tasks, after a check that the program works on each part.

    The check runs the windows of a part until one has a score; later runs get these answers from the cache.

    Raises:
        InputError: A part has no ground truth.
        InfrastructureError: The first windows all fail.
    """
    streams = (setup.streams.compile, setup.streams.dev, setup.streams.held_out)
    train, dev, held_out = ([stream_example(each) for each in stream.windows(window)] for stream in streams)
    most = most_dev(setup.budget)
    dev = dev if len(dev) <= most else random.Random(f"{setup.seed}/dev").sample(dev, most)
    for stream, examples in zip(streams, (train, dev, held_out), strict=True):
        _check_scores(setup, stream, examples)
    return Examples(train, dev)


def _check_scores(setup: Setup, stream: TaskStream, examples: list[Any]) -> None:
    """Raise if no example has a score."""
    error = ""
    for number, example in enumerate(examples, 1):
        with setup.models.use():
            prediction = setup.run(setup.program, example.inputs())
        broken = stream_error(prediction)
        if prediction.score is not None and not broken:
            return
        error = error or broken
        if error and number == MAX_ERRORS_IN_A_ROW:
            break
    if error:
        raise InfrastructureError(f"compile: the program failed on every task that was tried; first error: {error}")
    raise no_truth(stream)


def run_examples(setup: Setup) -> Examples:
    """Run the program once over each part, each from a fork of the bank, and take the examples from these runs.

    Raises:
        InputError: A part has no examples.
    """
    parts: dict[str, list[Any]] = {}
    for name in ("compile", "dev", "held_out"):
        stream = getattr(setup.streams, name)
        setup.reporter.phase(f"running the {name} part", len(stream))
        bank = setup.bank
        fork = bank.fork() if bank else MemoryBank.open(None, scope="compile", embedder=setup.embedder)
        with closing(fork), setup.models.use():
            report = run_stream(setup.program, stream, fork, on_progress=lambda progress: setup.reporter.step())
        parts[name] = step_examples(setup.step, report)
        if not parts[name]:
            if all(result.solved is None for result in report.results):
                raise no_truth(stream)
            raise InputError(
                f"{stream.name}: no example for step {setup.step!r} in {report!r}; add tasks, or use step 'all'"
            )
    train = stratified(parts["compile"], len(parts["compile"]), f"{setup.seed}/train")
    return Examples(train, stratified(parts["dev"], most_dev(setup.budget), f"{setup.seed}/dev"), parts)
