"""Metrics in the form that dspy's optimizers take: five arguments, a score, and text where a predictor is named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import dspy

from rb_dspy.compile.evidence import ending, made_of, misjudged, passed_over, short, words
from rb_dspy.compile.feedback import MOST, stream_feedback
from rb_dspy.compile.stages import STAGES, Stage
from rb_dspy.errors import BackboneError, InfrastructureError, InputError, MissingDependency, describe_error
from rb_dspy.matts import BankProgram, MaTTS

log = logging.getLogger("rb_dspy")

T = TypeVar("T")


class Metric(Protocol):
    """Rates a prediction of a stage's module against its example; in [0, 1].

    Raises only where nothing could be rated: ``BackboneError``, ``MissingDependency``, ``InfrastructureError``. A
    number where ``pred_name`` is None, else ``dspy.Prediction(score=..., feedback=...)`` with the same number.
    """

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> float | dspy.Prediction: ...


def metric_for(stage: Stage, program: BankProgram) -> Metric:
    """The metric of ``stage``.

    ======  ====================================================================
    stage   score
    ======  ====================================================================
    judge   1 where the label is the environment's, else 0; no label is 0
    select  reward of the choice, from 0 for the worst rollout to 1 for the best
    agent   1 for a success
    all     tasks solved, of those with ground truth; 0 where none has
    ======  ====================================================================

    Without a prediction the score is 0. Raises ``InputError`` for an unknown stage.
    """
    if stage not in STAGES:
        raise InputError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
    if stage == "all":
        mode = program.config.mode if isinstance(program, MaTTS) else None
        return _Metric(
            lambda gold, pred: float(pred.score or 0.0),
            lambda gold, pred, name, call: stream_feedback(pred.report, name, mode=mode, task=call.task),
        )
    return {
        "judge": _stage(_judged, _tell_judge),
        "select": _stage(_selected, _tell_select),
        "agent": _Metric(
            lambda gold, pred: _solved(pred), lambda gold, pred, name, call: _tell_agent(gold, pred, call)
        ),
    }[stage]


@dataclass(frozen=True)
class _Call:
    """The call that an optimizer shows, as far as it is known: turns, the last of them with what was asked now."""

    turns: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, pred_trace: Any) -> _Call:
        """An agent's later turns have those before in their history."""
        if not pred_trace:
            return cls()
        inputs = pred_trace[0][1]
        return cls((*(getattr(inputs.get("history"), "messages", None) or ()), inputs))

    @property
    def task(self) -> str:
        """The instruction of its task; empty where that is not known."""
        return next((str(turn["task"]) for turn in self.turns if turn.get("task")), "")

    def commands(self) -> set[str]:
        """The words of what the environment says that can be done."""
        rules = [str(turn.get("action_rules") or "") for turn in self.turns]
        return words(*rules, *[str(action) for turn in self.turns for action in turn.get("valid_actions") or ()])


@dataclass(frozen=True)
class _Metric:
    score: Callable[[Any, Any], float]
    """Of example and prediction."""
    tell: Callable[[Any, Any, str, _Call], str]
    """Of example, prediction, predictor, and the call that an optimizer shows."""

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> float | dspy.Prediction:
        score = 0.0 if pred is None else self._guarded(0.0, lambda: min(1.0, max(0.0, float(self.score(gold, pred)))))
        if pred_name is None:
            return score
        text = "The program broke on this example."
        if pred is not None:
            name = pred_name.removeprefix("program.")
            text = self._guarded(f"The score is {score:g}.", lambda: self.tell(gold, pred, name, _Call.of(pred_trace)))
        return dspy.Prediction(score=score, feedback=_cut(text))

    def _guarded(self, otherwise: T, work: Callable[[], T]) -> T:
        try:
            return work()
        except (BackboneError, MissingDependency, InfrastructureError):
            raise  # not a rating: a number in its place would read as one
        except Exception as exc:  # noqa: BLE001 (an optimizer would end, or count it as it likes)
            log.warning("a metric broke: %s; it gives %r", describe_error(exc), otherwise)
            return otherwise


def _stage(score: Callable[[Any, Any], float], tell: Callable[[Any, Any], str]) -> _Metric:
    """A stage's example is one call, so nothing has to be found in it."""
    return _Metric(score, lambda gold, pred, name, call: tell(gold, pred))


def _judged(gold: Any, pred: Any) -> float:
    return float(pred.verdict.label == ("success" if gold.success else "failure"))


def _tell_judge(gold: Any, pred: Any) -> str:
    if pred.verdict.label == "unknown":
        return f"No label could be read: {short(pred.verdict.reasons, 300)}"
    if _judged(gold, pred):
        return f"Right: the environment says {pred.verdict.label} as well (reward {gold.reward:g})."
    step = gold.decisive or len(gold.trajectory.steps) or None
    return f"Wrong. {misjudged(gold.task, gold.trajectory, pred.verdict, gold.reward, step)}"


def _selected(gold: Any, pred: Any) -> float:
    worst, best = min(gold.rewards), max(gold.rewards)
    return 1.0 if worst == best else (gold.rewards[pred.selection.index] - worst) / (best - worst)


def _tell_select(gold: Any, pred: Any) -> str:
    best = gold.rewards.index(max(gold.rewards))
    if _selected(gold, pred) == 1:
        return f"Right: no attempt was better than the one that {ending(gold.trajectories[pred.selection.index])}."
    note = f" {pred.selection.note}" if pred.selection.note else ""
    solved = gold.rewards[best] == 1
    return f"Wrong. {passed_over(gold.task, gold.trajectories, pred.selection, best, solved)}{note}"


def _solved(pred: Any) -> float:
    return float(pred.outcome is not None and pred.outcome.success)


def _tell_agent(gold: Any, pred: Any, call: _Call) -> str:
    if pred.outcome is None:
        return "The environment does not say whether this task was solved."
    how = "Solved" if pred.outcome.success else "Failed"
    said = [f"{how} (reward {pred.outcome.reward:g}): the rollout {ending(pred.trajectory)}."]
    for item in gold.memory.items:
        made = made_of(item, gold.task, pred.trajectory, call.commands())
        said.append(f"It was shown the lesson {item.title!r} ({short(item.content, 160)}){made}.")
    return " ".join(said)


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"
