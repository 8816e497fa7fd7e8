"""The default environment, ``question``: free-text questions from the user's own file."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator, Sequence

from rb_dspy.environments.answers import AcceptedAnswers
from rb_dspy.environments.single_turn import Score, SingleTurn
from rb_dspy.errors import InputError
from rb_dspy.protocols import Environment, EnvironmentFamily
from rb_dspy.schema import Outcome, Task

ANSWERS = ("answer", "answers")
"""The arguments of a task that hold its ground truth."""

REVEAL = "reveal"
"""The argument of a task that sets the feedback after the agent's answer."""

_REVEALS = ("none", "verdict", "answer")


class Question(EnvironmentFamily):
    """Questions without a generator.

    Ground truth is ``env_args["answer"]`` (text or a number) or ``env_args["answers"]`` (a list; any of them is right).
    Case, white space, outer quotes and the format of a number make no difference; words around the right answer
    make it wrong. Without either key the outcome is unknown.

    ``env_args["reveal"]`` says what the agent is told after its answer: ``none`` (default), the ``verdict`` (whether it
    was right), or also the right ``answer``. Without feedback, tasks teach nothing beyond the question.
    """

    name = "question"

    def templates(self) -> Sequence[str]:
        return ()

    def tasks(self, *, seed: int, templates: Sequence[str] | None = None) -> Iterator[Task]:
        raise InputError("'question' generates no tasks; pass a file of tasks, or the name of another environment")

    def make(self, task: Task) -> Environment:
        answers = _answers(task)  # refuse a task that cannot be scored before an agent works on it
        reveal = task.env_args.get(REVEAL, "none")
        if reveal not in _REVEALS:
            raise InputError(f"task {task.id!r}: env_args.reveal is {reveal!r:.40}; expected {', '.join(_REVEALS)}")

        def feedback(outcome: Outcome) -> str:
            verdict = "Your answer is right." if outcome.success else "Your answer is wrong."
            return verdict if outcome.success or reveal == "verdict" else f"{verdict} The right answer is: {answers[0]}"

        return SingleTurn(_scorer, None if reveal == "none" else feedback)

    def oracle(self, task: Task) -> Sequence[str]:
        """Return the first right answer. Raises ``InputError`` if none is known."""
        answers = _answers(task)
        if not answers:
            raise InputError(f"task {task.id!r} has no known answer; put one into env_args.answer")
        return answers[:1]

    def random_action(self, environment: Environment, task: Task, rng: random.Random) -> str:
        """Return a word of the instruction, or a small number."""
        return rng.choice([*task.instruction.split(), "yes", "no", str(rng.randint(0, 100))])


def _scorer(task: Task) -> Score | None:
    accepted = AcceptedAnswers(_answers(task))
    return accepted.outcome if accepted else None


def _answers(task: Task) -> tuple[str, ...]:
    """Return all right answers. Raises ``InputError`` for one that cannot be compared, and for a misspelled key."""
    arguments = (*ANSWERS, REVEAL)
    for key in set(task.env_args) - set(arguments):
        if near := difflib.get_close_matches(key, arguments, n=1, cutoff=0.75):
            raise InputError(f"task {task.id!r}: unknown argument env_args.{key[:40]}; did you mean {near[0]!r}?")
    single, several = (task.env_args.get(key) for key in ANSWERS)
    if isinstance(single, list):
        raise InputError(f"task {task.id!r}: env_args.answer is a list; use env_args.answers for several right answers")
    if not isinstance(several, list | None):
        raise InputError(f"task {task.id!r}: env_args.answers is not a list; expected a list of texts or numbers")
    answers = [*([] if single is None else [single]), *(several or [])]
    for answer in answers:
        usable = isinstance(answer, str | int | float) and not isinstance(answer, bool) and bool(str(answer).strip())
        if not usable:
            raise InputError(f"task {task.id!r}: {answer!r} is not an answer; expected text or a number in env_args")
    return tuple(map(str, answers))
