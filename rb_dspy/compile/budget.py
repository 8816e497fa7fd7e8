"""What was tried, how it was rated, and when to stop: one record of a compile, whichever optimizer runs it.

Optimizers do not agree on what they tell, count and keep. So the program that they see is a ``Student``, which notes
with which prompts it was called, and the metric is a ``Record``'s. The budget counts calls of the student, each of
which is rated once; the call beyond it ends the optimizer, and the best candidate so far is the result. The best is
the one with the highest mean on all dev examples, of equal ones the earliest, which may be the program as it was. One
that is rated 1 on all of them ends the optimizer too, since nothing can take its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self

import dspy

from rb_dspy.compile.answers import Cast
from rb_dspy.compile.broken import all_broke, said
from rb_dspy.compile.demos import fit
from rb_dspy.compile.progress import Teller
from rb_dspy.compile.state import Prompts, digest, prompts_of
from rb_dspy.errors import BackboneError, InfrastructureError, MissingDependency, RBError

MAX_BROKEN_IN_A_ROW = 10
"""A compile ends when so many calls in a row broke: a server that is down would only use up the budget."""

Rate = Callable[..., Any]
"""A metric with five arguments, see ``rb_dspy.compile.metric``."""


class Stopped(BaseException):
    """The compile is over: the budget is spent, or ``cause`` broke it.

    Not an ``Exception``, since optimizers swallow those.
    """

    def __init__(self, cause: Exception | None = None) -> None:
        super().__init__(str(cause or "the budget is spent"))
        self.cause = cause


@dataclass
class Candidate:
    """Prompts that were tried, and how they were rated on each dev example."""

    prompts: Prompts
    ratings: dict[int, list[float]] = field(default_factory=dict)

    def mean(self, examples: int) -> float | None:
        """Over all dev examples; None while one is missing."""
        if len(self.ratings) < examples:
            return None
        return fmean(fmean(each) for each in self.ratings.values())


class Record:
    """Candidates, ratings and the budget of one compile. Thread-safe."""

    def __init__(
        self,
        metric: Rate,
        dev: Sequence[Any],
        *,
        cast: Cast,
        teller: Teller,
        on_best: Callable[[Prompts], None] = lambda prompts: None,
        prefix: str = "",
    ) -> None:
        """``prefix``: what stands before a predictor's name in the program that an optimizer sees."""
        self.budget = teller.budget
        self.calls = 0
        self.broken = 0
        self.cast = cast
        self._metric = metric
        self._examples = list(dev)  # kept, since they are known by their ids
        self._dev = {id(example): number for number, example in enumerate(dev)}
        self._teller = teller
        self._on_best = on_best
        self._prefix = prefix
        self._candidates: dict[str, Candidate] = {}
        self._best: tuple[float, str] | None = None
        self._in_a_row = 0
        self._running = 0
        self._over = False
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)

    def metric(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """What optimizers take for the metric. Only a call without ``pred_name`` is a rating."""
        error = getattr(pred, "_rb_error", "")
        if pred_name is not None:
            if error:
                return dspy.Prediction(score=0.0, feedback=f"The program broke on this example: {error}")
            with self._working():
                return self._metric(gold, pred, trace, pred_name.removeprefix(self._prefix), pred_trace)
        score = 0.0 if error else self._scored(gold, pred, trace)
        if trace is not None:  # who gives it makes demonstrations of all that is in it
            trace[:] = [step for step in trace if fit(pred, step)]
        self._rated(id(gold), pred, score)
        return score

    def explained(self, gold: Any, pred: Any) -> dspy.Prediction:
        """``metric`` for optimizers that look at nothing but one prediction: the score, and all there is to say."""
        score = self.metric(gold, pred)
        if getattr(pred, "_rb_error", ""):
            return dspy.Prediction(score=score)
        names = self._candidates[pred._rb_key].prompts
        with self._working():
            said = {name: self._metric(gold, pred, None, name, None) for name in names}
        return dspy.Prediction(score=score, **{name.replace(".", "_"): each.feedback for name, each in said.items()})

    def _scored(self, gold: Any, pred: Any, trace: Any) -> float:
        try:
            with self._working():
                score = float(self._metric(gold, pred, trace))
        except InfrastructureError as exc:  # the program ran, and nobody can tell how good that was
            pred._rb_error = said(exc)
            self._count_broken(pred._rb_error)
            return 0.0
        with self._lock:
            self._in_a_row = 0
        return score

    @contextmanager
    def _working(self) -> Iterator[None]:
        """For whoever rates: the siblings of credit are done by the agent of the compile, and never after its end."""
        with self._lock:
            if self._over:
                raise Stopped
            self._running += 1
        try:
            with self.cast.playing():
                yield
        except (BackboneError, MissingDependency) as exc:
            raise Stopped(exc) from exc
        finally:
            with self._lock:
                self._running -= 1
                self._idle.notify_all()
            self._check_kept()

    def best(self) -> tuple[float, Prompts] | None:
        """The best candidate so far, with its mean on dev."""
        with self._lock:
            return None if self._best is None else (self._best[0], self._candidates[self._best[1]].prompts)

    def candidates(self) -> list[tuple[float, Prompts]]:
        """Those rated on all of dev, in the order in which they came up."""
        with self._lock:
            means = [(each.mean(len(self._dev)), each.prompts) for each in self._candidates.values()]
        return [(mean, prompts) for mean, prompts in means if mean is not None]

    @property
    def left(self) -> int:
        """Of the budget."""
        return self.budget - self.calls

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Ends with the block when the budget does, and when nothing runs any more. Raises what broke the compile."""
        cause: Exception | None = None
        try:
            yield
        except Stopped as stop:
            cause = stop.cause
        finally:
            with self._lock:  # runs in other threads end by themselves; none may write into what comes next
                self._over = True
                self._idle.wait_for(lambda: not self._running)
        if cause is not None:
            raise cause

    def run(self, module: Any, inputs: dict[str, Any], draw: int, temperature: float | None) -> dspy.Prediction:
        """One call of the student: counted, never broken but by what would break all."""
        prompts = prompts_of(module)
        key = digest(prompts)
        with self._lock:
            if self._over or self.calls >= self.budget or (self._best is not None and self._best[0] >= 1):
                raise Stopped
            self.calls += 1
            self._running += 1
            self._candidates.setdefault(key, Candidate(prompts))
        try:
            prediction = self._called(module, inputs, draw, temperature)
        finally:
            with self._lock:
                self._running -= 1
                self._idle.notify_all()
        prediction._rb_key = key
        return prediction

    def _called(self, module: Any, inputs: dict[str, Any], draw: int, temperature: float | None) -> dspy.Prediction:
        trace = dspy.settings.trace
        before = len(trace) if trace is not None else 0
        try:
            with self.cast.playing(draw, temperature):
                prediction = module(**inputs)
        except (BackboneError, MissingDependency) as exc:
            raise Stopped(exc) from exc
        except Exception as exc:  # noqa: BLE001 (an example that breaks is rated 0, whatever broke it)
            self._check_kept()
            prediction = dspy.Prediction()
            prediction._rb_error = said(exc)
        else:
            self._check_kept()
            error = all_broke(prediction)
            if error:
                prediction._rb_error = error
        if trace is not None:
            # What is not fit to be shown comes first: simba shows the last call of each predictor.
            trace[before:] = sorted(trace[before:], key=lambda step: fit(prediction, step))
        if getattr(prediction, "_rb_error", ""):
            self._count_broken(prediction._rb_error)
        return prediction

    def _check_kept(self) -> None:
        """End it where answers cannot be kept: that is our own fault, and no example's."""
        try:
            self.cast.check()
        except RBError as exc:
            raise Stopped(exc) from exc

    def _count_broken(self, error: str) -> None:
        with self._lock:
            self._in_a_row += 1
            self.broken += 1
            if self._in_a_row == MAX_BROKEN_IN_A_ROW:
                raise Stopped(
                    InfrastructureError(f"{self._in_a_row} metric calls in a row broke; the last one: {error}")
                )

    def _rated(self, example: int, pred: Any, score: float) -> None:
        best = None
        with self._lock:
            number = self._dev.get(example)
            if number is not None:
                candidate = self._candidates[pred._rb_key]
                candidate.ratings.setdefault(number, []).append(score)
                best = self._find_best()
        if best is not None:
            try:
                self._on_best(best)
            except RBError as exc:
                raise Stopped(exc) from exc
        self._tell()

    def _find_best(self) -> Prompts | None:
        """Look for the best; its prompts where it is another one now."""
        means = [(each.mean(len(self._dev)), key) for key, each in self._candidates.items()]
        known = [(mean, key) for mean, key in means if mean is not None]
        if not known:
            return None
        found = max(known, key=lambda each: each[0])  # of equal ones the first
        other = self._best is None or self._best[1] != found[1]
        self._best = found
        return self._candidates[found[1]].prompts if other else None

    def _tell(self) -> None:
        with self._lock:
            self._teller.metric_calls = self.calls
            self._teller.best = self._best[0] if self._best else None
            try:
                self._teller.tell()
            except Exception as exc:
                raise Stopped(exc) from exc


class Student(dspy.Module):
    """The program as an optimizer sees it. Copies share the record."""

    def __init__(self, program: dspy.Module, record: Record) -> None:
        super().__init__()
        self.program = program
        self._draws = _Draws(record)

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Call the program with the prompts that it has now."""
        return self._draws.run(self.program, inputs)

    def get_lm(self) -> Any:
        """For optimizers that draw several samples by copies of an LM: ours are bound when a call is made."""
        return self._draws.record.cast.agent

    def set_lm(self, lm: Any) -> None:
        """Draw other samples, as ``lm`` would, from every role's own LM. No LM is pinned."""
        self._draws = _Draws(self._draws.record, lm.kwargs.get("rollout_id") or 0, lm.kwargs.get("temperature"))


@dataclass(frozen=True)
class _Draws:
    record: Record
    draw: int = 0
    temperature: float | None = None

    def run(self, module: Any, inputs: dict[str, Any]) -> dspy.Prediction:
        return self.record.run(module, inputs, self.draw, self.temperature)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def student_of(program: dspy.Module, record: Record) -> Student:
    """``program`` for an optimizer; whoever asks for the student's source code is shown the program's."""
    shown = {"__wrapped__": type(program), "__doc__": type(program).__doc__}
    kind: type[Student] = type(Student.__name__, (Student,), shown)
    return kind(program, record)
