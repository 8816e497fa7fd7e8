"""The default environment, ``question``: a free-text question that comes from the user's own file."""

from __future__ import annotations

import difflib
import random
import re
import string
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import groupby

from rb_dspy.environments.single_turn import Score, SingleTurn, unwrapped
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task

_EDGES = string.whitespace + string.punctuation.translate(str.maketrans("", "", "+-%$#()[]{}<>")) + "“”‘’…"

_MARKS = 30
"""Combining marks in a row that a text has at most (Unicode's Stream-Safe Text Format, UAX 15)."""

ANSWERS = ("answer", "answers")
"""The arguments of a task that hold what is right."""

_GROUPED = re.compile(r"[+-]?(?!0)\d{1,3}(,\d{3})+(\.\d+)?")
"""A number whose commas group thousands, as in ``1,000``; ``0,500`` is half of one to who writes it."""


def normalised(text: str) -> str:
    """``text`` as it is compared: unwrapped, NFKC, case folded, white space collapsed, edge punctuation cut.

    Signs, brackets and units at the edges stay, because they can be part of an answer: ``-3``, ``50%``, ``[1, 2]``.
    A leading dot followed by a digit stays as well: ``.5``. What has more marks than text is left as it is.
    """
    text = " ".join(_composed(unwrapped(text)).casefold().split())
    cut = text.strip(_EDGES)
    start = text.find(cut)
    return f".{cut}" if cut[:1].isdigit() and text[:start].endswith(".") else cut


def _composed(text: str) -> str:
    """NFKC, which for thousands of marks in a row takes a good part of a second."""
    if text.isascii():
        return text
    marks = (sum(1 for _ in run) for is_mark, run in groupby(text, _is_mark) if is_mark)
    return text if max(marks, default=0) > _MARKS else unicodedata.normalize("NFKC", text)


@cache
def _is_mark(character: str) -> bool:
    """Whether it is put in order with its neighbours: also one that is no mark, and is taken apart into some."""
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) > 0


def number(text: str) -> Decimal | None:
    """``text`` as a number, None where it is none: ``3`` and ``3.0`` are one answer, and so are ``-3`` and ``−3``.

    Commas may group thousands, as in ``1,000``. Elsewhere they may be a list's or a decimal's: ``2,3`` is no number.
    """
    plain = normalised(text).replace("\u2212", "-")
    try:
        found = Decimal(plain.replace(",", "") if _GROUPED.fullmatch(plain) else plain)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


class Question:
    """Questions without a generator.

    Ground truth is ``env_args["answer"]`` (text or a number) or ``env_args["answers"]`` (a list of them, any of which
    is right). An answer is right when it is the same without regard to case, white space and punctuation at its edges,
    or the same number (``1,000`` is ``1000``); a sentence around it makes it another. Without either key, nobody knows
    the outcome: it is None.
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
    right = {normalised(answer) for answer in _answers(task)}
    numbers = {number(answer) for answer in _answers(task)} - {None}

    if not right:
        return None

    def score(answer: str) -> Outcome:
        success = normalised(answer) in right or (number(answer) is not None and number(answer) in numbers)
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
        if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not normalised(str(answer)):
            raise InputError(f"task {task.id!r}: {answer!r} is no answer; expected text or a number in env_args")
    return tuple(map(str, found))
