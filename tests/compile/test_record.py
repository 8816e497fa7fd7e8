"""The record of a compile, where several threads rate: what is kept and told goes forward, and nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rb_dspy.backbones import Backbones, Ledger
from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.compile.budget import CompileOver, Record
from rb_dspy.compile.progress import Progress, Teller, silent
from rb_dspy.compile.state import Prompts
from rb_dspy.compile.student import student_of
from rb_dspy.testing import scripted_lm

EXAMPLE = dspy.Example(x="1").with_inputs("x")
SCORES = {"good": 0.5, "better": 0.9}


class Echo(dspy.Module):
    """A program whose prompt is all that decides how good it is."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.predict = dspy.Predict(dspy.Signature("x -> y", prompt))

    def forward(self, x: str) -> dspy.Prediction:
        return dspy.Prediction(said=self.predict.signature.instructions)


class Desk:
    """A record, and threads that rate at it."""

    def __init__(
        self, on_best: Callable[[Prompts], None] = lambda prompts: None, on_progress: Callable[..., None] = silent
    ) -> None:
        answers = Answers()
        self._threads: list[threading.Thread] = []
        self.record = Record(
            lambda gold, pred, *_: SCORES[pred.said],
            [EXAMPLE],
            cast=Cast(Backbones(agent=scripted_lm(lambda prompt: "")), answers),
            teller=Teller(on_progress, 10, Ledger(), answers),
            on_best=on_best,
        )

    def rate(self, prompt: str) -> None:
        student = student_of(Echo(prompt), self.record)
        self.record.metric(EXAMPLE, student(x="1"))

    def beside(self, what: Callable[..., object], *args: object) -> threading.Thread:
        """Do it in a thread of its own."""
        self._threads.append(threading.Thread(target=what, args=args))
        self._threads[-1].start()
        return self._threads[-1]

    def close(self) -> None:
        for thread in self._threads:
            thread.join()


def told(prompts: Prompts) -> Any:
    return next(iter(prompts.values()))["instructions"]


def test_the_best_that_are_kept_are_never_worse_than_those_before() -> None:
    """However slow the disk is on which the earlier ones are written."""
    kept: list[str] = []
    better = threading.Event()

    def keep(prompts: Prompts) -> None:
        if told(prompts) == "good":
            desk.beside(desk.rate, "better")
            better.wait(0.5)  # where the later may be written first, it is
        kept.append(told(prompts))
        if told(prompts) == "better":
            better.set()

    desk = Desk(on_best=keep)
    desk.rate("good")
    desk.close()
    best = desk.record.best()
    assert best is not None
    assert told(best[1]) == kept[-1] == "better"


def test_nobody_waits_for_who_is_told_how_far_it_is() -> None:
    """Who is told may ask a tracking server, and the programs that are run meanwhile need the record."""
    seen: list[Any] = []

    def on_progress(progress: Progress) -> None:
        reader = desk.beside(lambda: seen.append(desk.record.best()))
        reader.join(2)
        assert not reader.is_alive()

    desk = Desk(on_progress=on_progress)
    desk.rate("good")
    desk.close()
    assert [score for score, _ in seen] == [0.5]


def test_how_far_it_is_is_told_in_order() -> None:
    numbers: list[tuple[int, float | None]] = []
    second = threading.Event()

    def on_progress(progress: Progress) -> None:
        if not numbers and not second.is_set():
            second.set()
            desk.beside(desk.rate, "better").join(0.5)  # where the later may be told first, it is
        numbers.append((progress.metric_calls, progress.best))

    desk = Desk(on_progress=on_progress)
    desk.rate("good")
    desk.close()
    assert numbers == [(1, 0.5), (2, 0.9)]


def test_what_is_being_told_is_told_before_the_search_is_over() -> None:
    """Else what comes next would tell how far it is at the same time."""
    happened: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    def on_progress(progress: Progress) -> None:
        begun.set()
        ended.wait(0.5)  # where the search may be over first, it is
        happened.append("told")

    desk = Desk(on_progress=on_progress)
    desk.beside(desk.rate, "good")
    begun.wait()
    with desk.record.stopping():
        pass
    happened.append("over")
    ended.set()
    desk.close()
    assert happened == ["told", "over"]


def test_what_is_rated_after_the_search_changes_nothing() -> None:
    """Of calls that were under way when it ended, in threads that nobody waits for: one that broke, and another."""
    heard: list[object] = []
    desk = Desk(on_best=lambda prompts: heard.append(told(prompts)), on_progress=heard.append)
    desk.rate("good")
    late = student_of(Echo("better"), desk.record)(x="1")
    broken = student_of(Echo("worse"), desk.record)(x="1")
    broken._rb_error = "it broke"
    with desk.record.stopping():
        before = len(heard)
    for each in (late, broken):
        with pytest.raises(CompileOver):
            desk.record.metric(EXAMPLE, each)
    assert len(heard) == before
    assert [rating for rating, _ in desk.record.candidates()] == [SCORES["good"]]
