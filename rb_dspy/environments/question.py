"""The default environment, ``question``: a free-text question that comes from the user's own file."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator, Sequence

from rb_dspy.environments.matching import Rights, folded
from rb_dspy.environments.single_turn import Score, SingleTurn
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task

ANSWERS = ("answer", "answers")
"""The arguments of a task that hold what is right."""


class Question:
    """Questions without a generator.

    Ground truth is ``env_args["answer"]`` (text or a number) or ``env_args["answers"]`` (a list of them, any of which
    is right). An answer is right when it is the same without regard to case and white space, or the same number
    (``1,000`` is ``1000``). Quotes, the marks of a sentence, ``**bold**`` and ``\\boxed{}`` may stand around it; marks
    of the right answer's own may not be missing (``5!``, ``*.txt``), and words around it make it another. Without
    either key, nobody knows the outcome: it is None.
    """

    name = "question"

    def check(self) -> None:
        """Needs nothing."""

    def templates(self) -> Sequence[str]:
        return ()

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        raise InputError("the tasks of 'question' come from a file of yours; give that file, or another environment")

    def make(self, task: Task) -> SingleTurn:
        _answers(task)  # a task that cannot be scored is refused before an agent works on it
        return SingleTurn(_scorer, instant=True)

    def oracle(self, task: Task) -> Sequence[str]:
        """The first right answer; ``InputError`` where the task has none."""
        answers = _answers(task)
        if not answers:
            raise InputError(f"task {task.id!r} has no known answer; put one into env_args.answer")
        return (answers[0],)

    def random_action(self, environment: object, task: Task, rng: random.Random) -> str:
        """A word of the instruction, or a small number."""
        return rng.choice([*task.instruction.split(), "yes", "no", str(rng.randint(0, 100))])


def _scorer(task: Task) -> Score | None:
    """Compares an answer with those that are right; None where none is known."""
    rights = Rights(_answers(task))
    if not rights:
        return None

    def score(answer: str) -> Outcome:
        success = answer in rights
        return Outcome(reward=float(success), success=success)

    return score


def _answers(task: Task) -> tuple[str, ...]:
    """Every right answer in ``env_args``; ``InputError`` for one that is empty or neither text nor a number, and for a
    key that is meant to hold one and does not.
    """
    for key in task.env_args:
        near = difflib.get_close_matches(key, ANSWERS, n=1, cutoff=0.75)
        if near and key not in ANSWERS:
            raise InputError(f"task {task.id!r}: env_args.{key[:40]}: did you mean {near[0]!r}?")
    listed = task.env_args.get("answers", [])
    if not isinstance(listed, list):
        raise InputError(f"task {task.id!r}: env_args.answers is not a list; expected a list of texts or numbers")
    single = task.env_args.get("answer")
    if isinstance(single, list):
        raise InputError(f"task {task.id!r}: env_args.answer is a list; expected env_args.answers, where any is right")
    found = [*([] if single is None else [single]), *listed]
    for answer in found:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not folded(str(answer)):
            raise InputError(f"task {task.id!r}: {answer!r} is no answer; expected text or a number in env_args")
    return tuple(map(str, found))
