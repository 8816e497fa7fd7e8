"""Metrics as DSPy's optimizers take them: five arguments, a score, and feedback if a predictor is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from rb_dspy.compile.feedback import agent_feedback, judge_feedback, select_feedback, stream_feedback
from rb_dspy.compile.steps import STEPS, CompileStep
from rb_dspy.errors import InputError
from rb_dspy.matts import BankProgram, MaTTS

PREFIX = "program."
"""Prefix of predictor names in the module that optimizers see."""

MEASURES: dict[CompileStep, str] = {
    "all": "share of tasks solved",
    "judge": "balanced accuracy of the verdicts: 0.5 is a judge that always says the same",
    "select": "reward of the choice: 0 for the worst rollout, 1 for the best",
    "agent": "share of tasks solved with the same lessons",
}


class Metric:
    """Scores a prediction in [0, 1]. With ``pred_name`` it returns ``dspy.Prediction(score=..., feedback=...)``.

    Use it for a DSPy optimizer that you configure yourself: ``dspy.GEPA(metric=Metric("all", program), ...)``.

    Args:
        step: The step that is compiled.
        program: The program that it belongs to.
    """

    def __init__(self, step: CompileStep, program: BankProgram) -> None:
        if step not in STEPS:
            raise InputError(f"unknown step {step!r}; expected {', '.join(STEPS)}")
        self.step = step
        self.mode = program.config.mode if isinstance(program, MaTTS) else None

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """Score ``pred``, the prediction for the example ``gold``."""
        error = "no prediction" if pred is None else pred.get("error")
        score = 0.0 if error else self._score(gold, pred)
        if pred_name is None:
            return score
        if error:
            return dspy.Prediction(score=score, feedback=f"The program failed on this example: {error}")
        return dspy.Prediction(score=score, feedback=self._feedback(gold, pred, pred_name, pred_trace))

    def _score(self, gold: Any, pred: Any) -> float:
        if self.step == "all":
            return float(pred.score or 0.0)
        if self.step == "judge":
            return float(pred.verdict.label == ("success" if gold.success else "failure"))
        if self.step == "select":
            worst, best = min(gold.rewards), max(gold.rewards)
            return float((gold.rewards[pred.selection.index] - worst) / (best - worst))
        return float(pred.outcome is not None and pred.outcome.success)

    def _feedback(self, gold: Any, pred: Any, name: str, calls: Any) -> str:
        if self.step == "all":
            predictor = name.removeprefix(PREFIX)
            return stream_feedback(pred.report, predictor, mode=self.mode, task=_instruction(calls))
        if self.step == "judge":
            return judge_feedback(gold, pred.verdict)
        if self.step == "select":
            return select_feedback(gold, pred.selection)
        return agent_feedback(gold, pred.trajectory, pred.outcome)


def demonstrable(pred: Any, calls: Sequence[Any]) -> list[Any]:
    """The calls in a trace that can serve as demonstrations: those for a task that was solved.

    An optimizer takes every call of a run with a good score, but most streams also have tasks that failed.
    """
    report = pred.get("report")
    if report is None:
        return list(calls)
    solved = {result.task.instruction for result in report.results if result.solved}
    return [call for call in calls if not (text := _instruction([call])) or text in solved]


def _instruction(calls: Any) -> str:
    """The task of the first call; the later turns of an agent have it in their history."""
    if not calls:
        return ""
    inputs = calls[0][1]
    turns = [*(getattr(inputs.get("history"), "messages", None) or ()), inputs]
    return next((str(turn["task"]) for turn in turns if turn.get("task")), "")
