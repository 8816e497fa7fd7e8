"""What is called and rated, and when to stop: one record of a compile, whichever optimizer runs it.

Optimizers do not agree on what they tell, count and keep. So the program that they see is a ``Student``, which has its
calls made here, and the metric is a ``Record``'s. The budget counts calls of the student, each of which is rated once;
the call beyond it ends the optimizer, and the best of the ``Candidates`` so far is the result. One that is rated 1 on
all dev examples that count ends the optimizer too, since nothing can take its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dspy

from rb_dspy.compile.answers import Cast
from rb_dspy.compile.broken import MOST_SAID, all_broke
from rb_dspy.compile.candidates import Candidates
from rb_dspy.compile.demos import fit
from rb_dspy.compile.progress import Teller
from rb_dspy.compile.ratings import rated_example
from rb_dspy.compile.state import Prompts, digest, prompts_of
from rb_dspy.compile.truth import Missing
from rb_dspy.errors import BackboneError, InfrastructureError, MissingDependency, RBError, describe_error

MAX_BROKEN_IN_A_ROW = 10
"""A compile ends when so many calls in a row broke: a server that is down would only use up the budget."""

Rate = Callable[..., Any]
"""A metric with five arguments, see ``rb_dspy.compile.metric``."""


class CompileOver(BaseException):
    """The compile is over: the budget is spent, or ``cause`` broke it.

    Not an ``Exception``, since optimizers swallow those.
    """

    def __init__(self, cause: Exception | None = None) -> None:
        super().__init__(str(cause or "the budget is spent"))
        self.cause = cause


class Record:
    """Calls, ratings and the budget of one compile. Thread-safe."""

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
        self._teller = teller
        self._on_best = on_best
        self._prefix = prefix
        self._candidates = Candidates(dev)
        self._missing = Missing(dev)
        self._in_a_row = 0
        self._running = 0
        self._over = False
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._keeping = threading.Lock()
        """For who writes the best: that may take long, and who reads the record does not wait for it."""
        self._telling = threading.Lock()
        """For who tells how far it is, likewise; numbers are told in their order."""

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
        self._rated(gold, pred, score)
        return score

    def explained(self, gold: Any, pred: Any) -> dspy.Prediction:
        """``metric`` for optimizers that look at nothing but one prediction: the score, and all there is to say."""
        score = self.metric(gold, pred)
        if getattr(pred, "_rb_error", ""):
            return dspy.Prediction(score=score)
        names = self._candidates.prompts(pred._rb_key)
        with self._working():
            said = {name: self._metric(gold, pred, None, name, None) for name in names}
        return dspy.Prediction(score=score, **{name.replace(".", "_"): each.feedback for name, each in said.items()})

    def _scored(self, gold: Any, pred: Any, trace: Any) -> float:
        try:
            with self._working():
                score = float(self._metric(gold, pred, trace))
        except InfrastructureError as exc:  # the program ran, and nobody can tell how good that was
            pred._rb_error = describe_error(exc, MOST_SAID)
            self._count_broken(pred._rb_error)
            return 0.0
        with self._lock:
            self._in_a_row = 0
        return score

    @contextmanager
    def _working(self) -> Iterator[None]:
        """For whoever rates: with the models of the compile, and never after its end."""
        with self._lock:
            if self._over:
                raise CompileOver
            self._running += 1
        try:
            with self.cast.playing():
                yield
        except (BackboneError, MissingDependency) as exc:
            raise CompileOver(exc) from exc
        finally:
            with self._lock:
                self._running -= 1
                self._idle.notify_all()
            self._check_kept()

    def best(self) -> tuple[float, Prompts] | None:
        """The best candidate so far, with its mean on dev."""
        with self._lock:
            return self._candidates.best()

    def candidates(self) -> list[tuple[float, Prompts]]:
        """Those rated on all of dev, in the order in which they came up."""
        with self._lock:
            return self._candidates.rated()

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
        except CompileOver as stop:
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
            best = self._candidates.best()
            if self._over or self.calls >= self.budget or (best is not None and best[0] >= 1):
                raise CompileOver
            self.calls += 1
            self._running += 1
            self._candidates.add(key, prompts)
        try:
            prediction = self._called(module, inputs, draw, temperature)
        finally:
            with self._lock:
                self._running -= 1
                self._idle.notify_all()
        prediction._rb_key = key
        return prediction

    @contextmanager
    def _rating(self) -> Iterator[None]:
        """For what comes of a call that ran; raises ``CompileOver`` where that is wanted no more."""
        with self._lock:
            if self._over:
                raise CompileOver
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._idle.notify_all()

    def _called(self, module: Any, inputs: dict[str, Any], draw: int, temperature: float | None) -> dspy.Prediction:
        trace = dspy.settings.trace
        before = len(trace) if trace is not None else 0
        try:
            with self.cast.playing(draw, temperature):
                prediction = module(**inputs)
        except (BackboneError, MissingDependency) as exc:
            raise CompileOver(exc) from exc
        except Exception as exc:  # noqa: BLE001 (an example that breaks is rated 0, whatever broke it)
            self._check_kept()
            prediction = dspy.Prediction()
            prediction._rb_error = describe_error(exc, MOST_SAID)
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
            raise CompileOver(exc) from exc

    def _count_broken(self, error: str) -> None:
        with self._lock:
            self._in_a_row += 1
            self.broken += 1
            if self._in_a_row == MAX_BROKEN_IN_A_ROW:
                raise CompileOver(
                    InfrastructureError(f"{self._in_a_row} metric calls in a row broke; the last one: {error}")
                )

    def _rated(self, example: Any, pred: Any, score: float) -> None:
        changed = False
        with self._rating():
            with self._lock:
                if self._candidates.counts(example):
                    if (missing := self._missing.after(example, pred)) is not None:
                        raise CompileOver(missing)
                    best = self._candidates.rate(pred._rb_key, example, rated_example(example, pred, score))
                    changed = best is not None
            if changed:
                self._keep_best()
            self._tell()

    def _keep_best(self) -> None:
        with self._keeping:
            best = self.best()  # which may be a later one by now, and must not be written over with an earlier
            assert best is not None
            try:
                self._on_best(best[1])
            except RBError as exc:
                raise CompileOver(exc) from exc

    def _tell(self) -> None:
        with self._telling:
            with self._lock:
                self._teller.metric_calls = self.calls
                best = self._candidates.best()
            self._teller.best = best[0] if best else None
            try:
                self._teller.tell()
            except Exception as exc:
                raise CompileOver(exc) from exc
