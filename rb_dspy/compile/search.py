"""The arguments of a compile, and the program as an optimizer sees it: with a budget, and a record of candidates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.metric import PREFIX, Metric, demonstrable
from rb_dspy.compile.models import Models, Sample
from rb_dspy.compile.progress import Reporter
from rb_dspy.compile.steps import CompileStep
from rb_dspy.errors import InfrastructureError, UnparseableOutput
from rb_dspy.jsonl import digest
from rb_dspy.matts import BankProgram
from rb_dspy.prompts import Prompts, prompts_of
from rb_dspy.protocols import Embedder
from rb_dspy.stream import StreamProgram, Streams
from rb_dspy.text import summary_line

MAX_ERRORS_IN_A_ROW = 5
"""Number of failures in a row after which a server counts as down."""


@dataclass(frozen=True)
class Setup:
    """The arguments of a compile."""

    program: BankProgram
    """A copy without backbones, with the original prompts."""
    step: CompileStep
    streams: Streams
    bank: MemoryBank | None
    embedder: Embedder | str | None
    models: Models
    reporter: Reporter
    budget: int
    orders: int
    seed: int
    jobs: int

    def run(self, module: Any, inputs: dict[str, Any]) -> dspy.Prediction:
        """Run ``module(program)`` on the inputs of one example, with the language models that are in use."""
        if self.step == "all":
            module = StreamProgram(module, self.bank, embedder=self.embedder)
        prediction: dspy.Prediction = module(**inputs)
        return prediction


class Search:
    """The state of one search: it counts calls and errors, and scores. Copies of the program share it.

    A call beyond the budget returns the score 0 at once. So does every call after a failure that would hit every
    other example: a bug, bad input, a language model that cannot be used. Optimizers swallow exceptions or
    count them as failures of the prompts, so the first such failure is stored here and raised by ``check``.
    """

    def __init__(self, setup: Setup, metric: Metric, dev: Sequence[Any]) -> None:
        self.budget = setup.budget
        self.used = 0
        self.broken = 0
        self.models = setup.models
        self._run = setup.run
        self._metric = metric
        self._dev = {id(example) for example in dev}
        self._reporter = setup.reporter
        self._failure: Exception | None = None
        self._in_a_row = 0
        self._candidates: dict[str, tuple[Prompts, dict[int, float]]] = {}
        self._lock = threading.RLock()

    @property
    def over(self) -> bool:
        """Whether further calls return at once."""
        return (self._failure or self.models.failure) is not None or self.used >= self.budget

    def fail(self, exc: Exception) -> None:
        """Store the first failure that ends the search."""
        with self._lock:
            self._failure = self._failure or exc

    def check(self) -> None:
        """Raise the error that ended the search early, if any."""
        failure = self._failure or self.models.failure
        if failure is not None:
            raise failure
        self.models.check_reflection()

    def call(self, program: dspy.Module, inputs: dict[str, Any], sample: Sample | None) -> dspy.Prediction:
        """Run ``program`` with its current prompts, if the budget allows."""
        with self._lock:
            if self.over:
                return dspy.Prediction(score=0.0, error="the budget is spent")
            self.used += 1
        prediction = dspy.Prediction(score=0.0)
        try:
            with dspy.context(usage_tracker=None), self.models.use(sample):
                prediction = self._run(program, inputs)
            error = stream_error(prediction)
        except (InfrastructureError, UnparseableOutput) as exc:
            error = summary_line(exc)
        except Exception as exc:  # noqa: BLE001 (stored, and raised when the optimizer is done)
            self.fail(exc)
            error = summary_line(exc)
        self._count(error)
        if error:
            prediction["error"] = error
        prediction["candidate"] = self._candidate(program)
        try:
            self._reporter.count(self.used)
        except Exception as exc:  # noqa: BLE001 (from the caller's on_progress; stored too)
            self.fail(exc)
        return prediction

    def metric(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """``Metric``, with a record of the scores on dev; a bug in it is stored like one in the program."""
        try:
            result = self._metric(gold, pred, trace, pred_name, pred_trace)
            if pred_name is None:
                if trace is not None:  # the optimizer turns it into demonstrations
                    trace[:] = demonstrable(pred, trace)
                self._record(gold, pred, result)
        except Exception as exc:  # noqa: BLE001 (optimizers would count it as a failure of the prompts)
            self.fail(exc)
            return 0.0 if pred_name is None else dspy.Prediction(score=0.0, feedback="")
        return result

    def explained(self, gold: Any, pred: Any) -> Any:
        """``metric`` with the feedback for every predictor, for optimizers that name none."""
        score = self.metric(gold, pred)
        candidate = pred.get("candidate") if pred is not None else None
        names = self._candidates[candidate][0] if candidate and not pred.get("error") else ()
        feedback = {name: self.metric(gold, pred, None, f"{PREFIX}{name}").feedback for name in names}
        return dspy.Prediction(score=score, **{name.replace(".", "_"): text for name, text in feedback.items()})

    def candidates(self) -> list[tuple[float, Prompts]]:
        """Mean score and prompts of the candidates scored on all of dev, oldest first."""
        with self._lock:
            known = list(self._candidates.values())
        return [(fmean(s.values()), prompts) for prompts, s in known if s and len(s) == len(self._dev)]

    def _candidate(self, program: dspy.Module) -> str:
        prompts = prompts_of(program)
        name = digest(prompts)
        with self._lock:
            self._candidates.setdefault(name, (prompts, {}))
        return name

    def _record(self, gold: Any, pred: Any, score: float) -> None:
        candidate = pred.get("candidate") if pred is not None else None
        with self._lock:
            if candidate is not None and id(gold) in self._dev:
                self._candidates[candidate][1][id(gold)] = score
                self._reporter.best = max((mean for mean, _ in self.candidates()), default=None)

    def _count(self, error: str) -> None:
        with self._lock:
            self.broken += bool(error)
            self._in_a_row = self._in_a_row + 1 if error else 0
            if self._in_a_row == MAX_ERRORS_IN_A_ROW:
                self.fail(
                    InfrastructureError(f"compile: {self._in_a_row} examples in a row failed; last error: {error}")
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Budgeted(dspy.Module):
    """An agent that learns from a stream of tasks: it retrieves lessons, acts, judges its rollout and writes lessons.

    ``program`` is the agent, or the one step of it that is optimized. Every call counts against a budget.
    """

    def __init__(self, program: dspy.Module, search: Search) -> None:
        super().__init__()
        self.program = program
        self._search = search
        self._sample: Sample | None = None

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return self._search.call(self.program, inputs, self._sample)

    def get_lm(self) -> Any:
        """The agent's LM, for optimizers that copy it to draw samples."""
        return self._search.models.backbones.lm("agent")

    def set_lm(self, lm: Any) -> None:
        """Draw samples as ``lm`` would, each role from its own LM; no LM is pinned."""
        self._sample = (lm.kwargs.get("rollout_id") or 0, lm.kwargs.get("temperature"))


def stream_error(prediction: Any) -> str:
    """The first error if every task of a stream failed; else empty."""
    report = prediction.get("report")
    errors = [result.error for result in report.results] if report is not None else []
    return errors[0] if errors and all(errors) else ""
