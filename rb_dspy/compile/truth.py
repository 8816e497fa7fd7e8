"""Whether anybody knows how tasks end: without ground truth there is nothing to compile for, and nothing to score.

Single tasks without it do not count (``rb_dspy.compile.ratings``); here is what becomes of streams without any.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from rb_dspy.compile.ratings import Ratings, left_out
from rb_dspy.environments import make_environment
from rb_dspy.environments.question import ANSWERS
from rb_dspy.errors import InputError, RBError
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Task
from rb_dspy.stream import RunReport, TaskStream
from rb_dspy.text import counted

log = logging.getLogger("rb_dspy")

_QUESTION = "question"


def check_truth(streams: Iterable[TaskStream], environments: EnvironmentFactory) -> None:
    """Raise ``InputError`` where a stream holds nothing but questions without a known answer.

    Other environments, and those of a factory of the caller's, say it only when a rollout has ended.
    """
    for stream in streams:
        if len(stream) and not may_be_scored(stream, environments):
            raise no_truth(stream)


def may_be_scored(stream: TaskStream, environments: EnvironmentFactory) -> bool:
    """False only where it can be told by now that nobody knows the outcome of any task."""
    return environments is not make_environment or any(map(_may_be_known, stream))


def check_known(stream: TaskStream, *ratings: Ratings) -> None:
    """Raise ``InputError`` where nobody knows the outcome of any task of ``stream``, whichever program did it."""
    if not any(each.known for each in ratings):
        raise no_truth(stream)


def say_left_out(stream: TaskStream, *ratings: Ratings) -> int:
    """Warn of the tasks of ``stream`` that do not count, where there are any; how many they are."""
    gone = len(left_out(*ratings))
    if gone:
        log.warning("%s: %d of %d tasks have no ground truth, and do not count", stream.name, gone, len(stream))
    return gone


def no_truth(stream: TaskStream) -> InputError:
    """What is raised for a stream of whose tasks nobody knows how they ended."""
    first = stream.tasks[0]
    if first.env == _QUESTION:
        missing, cure = "a known answer", "put it into env_args.answer of each, or env_args.answers"
    else:
        missing, cure = "ground truth", "let Environment.outcome say it"
    has = ", ".join(list(first.env_args)[:8]) or "none"
    return InputError(
        f"{stream.name}: none of its {counted(len(stream), 'task')} has {missing}, so nothing can be scored: {cure}"
        f" (the first, {first.id!r}, is of the environment {first.env!r} with env_args: {has})"
    )


def _may_be_known(task: Task) -> bool:
    """False only for a question whose environment says that nobody knows its answer, before anything is answered."""
    if task.env != _QUESTION:
        return True
    try:
        environment = make_environment(task, "")
        environment.reset(task)
        return environment.outcome() is not None
    except RBError:  # answers that cannot be read, which the run says of the task; or only what was meant to be one
        return not task.env_args.keys().isdisjoint(ANSWERS)


class Missing:
    """Whether streams that candidates are chosen by have ground truth, as far as runs have shown. Not thread-safe."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self._unseen: set[int] | None = {id(example) for example in examples}
        """None once ground truth was seen."""

    def after(self, example: Any, prediction: Any) -> InputError | None:
        """What is to be raised after a run of one of them: where all have been run, and nobody knows any outcome."""
        report = getattr(prediction, "report", None)
        if self._unseen is None or not isinstance(report, RunReport):
            return None
        if any(result.outcome is not None for result in report.results):
            self._unseen = None
            return None
        if all(result.unscored for result in report.results):  # what broke may be known another time
            self._unseen.discard(id(example))
        return None if self._unseen else no_truth(example.stream)
