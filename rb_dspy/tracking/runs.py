"""What is logged for streams, compiles and evaluations: parameters, about ten numbers, tables, figures, files."""

from __future__ import annotations

import json
import logging
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import pydantic
from mlflow.data.pandas_dataset import from_pandas

from rb_dspy.backbones import Backbones, active
from rb_dspy.backbones.usage import price_of
from rb_dspy.bank import MemoryBank
from rb_dspy.errors import BackboneError, RBError
from rb_dspy.evaluation.chart import SOLVED, Line, known, picture, positions
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.prompts import prompts_of
from rb_dspy.schema import Usage
from rb_dspy.stream import RunReport, TaskResult, TaskStream
from rb_dspy.text import summary_line
from rb_dspy.tracking.connection import RunLog
from rb_dspy.tracking.traces import TaskTraces

if TYPE_CHECKING:
    from rb_dspy.compile.progress import Progress as CompileProgress
    from rb_dspy.compile.result import Compiled
    from rb_dspy.evaluation.intervals import Comparison, Interval
    from rb_dspy.evaluation.progress import Progress as EvaluationProgress
    from rb_dspy.evaluation.report import Report

log = logging.getLogger("rb_dspy")


class StreamRun:
    """A stream that is tracked while it runs."""

    def __init__(
        self,
        run: RunLog,
        program: BankProgram,
        stream: TaskStream,
        bank: MemoryBank,
        run_id: str,
        traces: TaskTraces | None,
    ) -> None:
        self.id: str | None = run.id
        self._run = run
        self._bank = bank
        self._run_id = run_id
        self._models = models_of(program.backbones)
        self._traces = traces
        self._results: list[TaskResult] = []
        self._solved = 0
        self._rates: list[float] = []
        self._started = time.monotonic()
        run.params({**program_params(program), "run_id": run_id})
        run.params({"bank.scope": bank.scope, "bank.lessons": len(bank)})
        log_stream(run, "stream", stream)
        run.write(mlflow.log_dict, prompts_of(program), "prompts.json")

    def on_result(self, result: TaskResult) -> None:
        """Log whether a task was solved, and the success rate so far. For ``run_stream``."""
        self._results.append(result)
        if result.solved is not None:  # False if the task broke
            self._solved += result.solved
            self._rates.append(self._solved / (len(self._rates) + 1))
            step: dict[str, float | None] = {"task.solved": float(result.solved), "success_rate": self._rates[-1]}
            self._run.metrics(step, step=len(self._results))

    def finish(self) -> None:
        """Log totals, the learning curve, the table of results and the bank."""
        run = self._run
        run.retry()
        if self._results:
            report = RunReport(self._run_id, self._results)
            summary = report.summary()
            totals = {
                "solved": summary.solved,
                "success_rate": summary.success_rate,
                "judge_agreement": summary.judge_agreement,
                "judge_base_rate": summary.judge_base_rate,
                "errors": summary.infrastructure_errors,
                "mean_steps": summary.mean_steps,
                "lessons": summary.items,
                "seconds": round(time.monotonic() - self._started, 2),
                **usage_metrics(summary.usage, self._models),
            }
            if summary.scaling is not None:
                totals |= {f"pass_at_{each.j}": each.rate for each in summary.scaling.pass_at[-1:]}
            run.metrics(totals, step=len(self._results))
            run.table([_cells(row) for row in report.rows()], "results.json")
        else:
            log.warning("MLflow: run %s has no results; pass on_result=run.on_result to run_stream", run.id)
        if self._traces is not None:
            self._traces.log_results(self._results)
        if self._rates:
            run.write(mlflow.log_text, learning_curve({"": self._rates}, ""), "learning_curve.svg")
        with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder:
            file = Path(folder) / "bank.jsonl"
            try:
                self._bank.export_jsonl(file)
            except RBError as exc:
                log.warning("MLflow: run %s has no bank.jsonl: %s", run.id, summary_line(exc, 300))
            else:
                run.write(mlflow.log_artifact, str(file))


class CompileRun:
    """A compile that is tracked while it runs."""

    def __init__(self, run: RunLog, program: BankProgram, streams: Mapping[str, TaskStream]) -> None:
        self.id: str | None = run.id
        self._run = run
        self._models = models_of(program.backbones)
        self._best: float | None = None
        run.params(program_params(program))
        for part, stream in streams.items():
            log_stream(run, part, stream)

    def on_progress(self, progress: CompileProgress) -> None:
        """Log the best score so far, at its metric call. For ``compile_program``."""
        if progress.best is not None and progress.best != self._best:
            self._best = progress.best
            self._run.metrics({"best": progress.best}, step=progress.metric_calls)

    def log_compiled(self, compiled: Compiled) -> None:
        """Log the result: scores before and after, the cost, the prompts and their changes, all candidates."""
        run = self._run
        run.retry()
        run.params(
            {name: getattr(compiled, name) for name in ("optimizer", "step", "budget", "seed", "orders", "measure")}
        )
        run.metrics(
            {
                **_comparison("dev", compiled.dev),
                **_comparison("held_out", compiled.held_out),
                "metric_calls": compiled.metric_calls,
                "broken": compiled.broken,
                "seconds": compiled.seconds,
                **usage_metrics(compiled.usage, {**self._models, "reflection": compiled.reflection}),
            }
        )
        run.tags({"improved": compiled.improved, "changed": ", ".join(compiled.changed) or "nothing"})
        run.write(mlflow.log_dict, compiled.prompts_after, "prompts.json")
        run.write(mlflow.log_text, compiled.diff() or "no prompt changed\n", "prompts_diff.txt")
        run.table(_candidates(compiled), "candidates.json")
        with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder:
            compiled.save(Path(folder) / "compiled.json")
            run.write(mlflow.log_artifact, str(Path(folder) / "compiled.json"))


class EvaluationRun:
    """An evaluation that is tracked while it runs."""

    def __init__(self, run: RunLog, stream: TaskStream) -> None:
        self.id: str | None = run.id
        self._run = run
        log_stream(run, "stream", stream, context="evaluation")

    def on_progress(self, progress: EvaluationProgress) -> None:
        """Log how many tasks are done. For ``evaluate``."""
        self._run.metrics({"done": progress.done}, step=progress.done)

    def log_report(self, report: Report) -> None:
        """Log the report: success of each arm, differences with intervals, learning curves, and the report itself."""
        run = self._run
        run.retry()
        run.params({name: getattr(report, name) for name in ("orders", "seed", "baseline")})
        run.params({"arms": ", ".join(report.arms)})
        metrics: dict[str, float | None] = {}
        for name, arm in report.arms.items():
            metrics[f"success.{_key(name)}"] = None if arm.success is None else arm.success.mean
        for name, comparison in report.comparisons.items():
            metrics |= _interval(f"difference.{_key(name)}", comparison.difference)
        costs = [arm.cost for arm in report.arms.values()]
        metrics["errors"] = sum(arm.errors for arm in report.arms.values())
        metrics["tokens"] = sum(arm.tokens for arm in report.arms.values())
        metrics["cost"] = None if None in costs else sum(cost or 0 for cost in costs)
        metrics["seconds"] = sum(arm.seconds for arm in report.arms.values())
        run.metrics(metrics)
        verdicts = {f"verdict.{_key(name)}": each.verdict for name, each in report.comparisons.items()}
        run.tags({**verdicts, "exploratory": report.exploratory, "headroom": report.headroom or "not measured"})
        run.table([_cells(row) for row in report.rows()], "arms.json")
        curves = {name: arm.curve for name, arm in report.arms.items()}
        run.write(mlflow.log_text, learning_curve(curves, report.primary), "learning_curve.svg")
        with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder:
            report.save(folder)
            run.write(mlflow.log_artifacts, folder)


def learning_curve(curves: Mapping[str, Sequence[float | None]], main: str) -> str:
    """Shares of solved tasks by position in the stream, for each name in ``curves``, as SVG."""
    lines = [Line(name, known(curve)) for name, curve in curves.items()]
    x = positions(max(2, *map(len, curves.values())), "tasks with a known outcome")
    return picture(lines, x, SOLVED, main=main, names=160 if len(lines) > 1 else 0)


def program_params(program: BankProgram) -> dict[str, Any]:
    """Kind, models, and the settings that are not the default."""
    params: dict[str, Any] = {"program": type(program).__name__}
    if isinstance(program, MaTTS):
        params |= {"mode": program.config.mode, "k": program.config.k}
        params |= _flat("matts", program.config.model_dump(mode="json", exclude_defaults=True, exclude={"mode", "k"}))
    for step in ("retrieve", "act", "judge", "distill"):
        config = getattr(getattr(program, step), "config", None)
        if isinstance(config, pydantic.BaseModel):
            params |= _flat(step, config.model_dump(mode="json", exclude_defaults=True))
        else:
            params[step] = type(getattr(program, step)).__name__
    params |= {"learn": "one_call" if program.review else "two_calls", "skip_known": program.skip_known}
    return params | {f"lm.{role}": model for role, model in models_of(program.backbones).items()}


def models_of(backbones: Backbones | None) -> dict[str, str]:
    """Role -> name of its model, for the agent and each role that has one of its own."""
    backbones = backbones or active()
    own = {role: str(lm.model) for role, lm in backbones.own.items()}
    try:
        return {"agent": str(backbones.lm("agent").model)} | own
    except BackboneError:  # the agent has none, because nothing is configured yet
        return own


def log_stream(run: RunLog, name: str, stream: TaskStream, *, context: str | None = None) -> None:
    """Log which tasks a run uses: name, size and digest as parameters, and a dataset without ground truth."""
    run.params({name: stream.name, f"{name}.tasks": len(stream), f"{name}.digest": stream.digest})
    columns = ("id", "instruction", "env", "template")
    frame = pd.DataFrame([{name: getattr(task, name) or "" for name in columns} for task in stream], columns=columns)
    dataset = from_pandas(frame, name=stream.name, digest=stream.digest)
    run.write(lambda run_id: mlflow.log_input(dataset, context=context or name))


def usage_metrics(usage: Usage, models: Mapping[str, str]) -> dict[str, float | None]:
    """Tokens of all roles, and their price in US dollars if that of each model is known."""
    tokens = sum(used.prompt_tokens + used.completion_tokens for used in usage.values())
    return {"tokens": tokens, "cost": price_of(usage, models)}


def _comparison(part: str, comparison: Comparison) -> dict[str, float | None]:
    scores = {f"{part}.before": comparison.before, f"{part}.after": comparison.after}
    return {**scores, **_interval(f"{part}.difference", comparison.difference)}


def _interval(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.mean, f"{name}.low": interval.low, f"{name}.high": interval.high}


def _candidates(compiled: Compiled) -> list[dict[str, Any]]:
    """A row for each prompt of a candidate that differs from before the compile; the best candidate first."""
    ranked = sorted(enumerate(compiled.candidates), key=lambda each: -each[1].score)
    return [
        {
            "candidate": number,
            "score": candidate.score,
            "predictor": name,
            "instructions": prompt["instructions"],
            "demos": len(prompt["demos"]),
        }
        for number, candidate in ranked
        for name, prompt in candidate.prompts.items()
        if prompt != compiled.prompts_before.get(name)
    ]


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose lists and tables are texts, as MLflow's pages show them."""
    return {
        name: "; ".join(map(str, value)) if isinstance(value, list | tuple)
        else json.dumps(value) if isinstance(value, dict) else value
        for name, value in row.items()
    }  # fmt: skip


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(f"{prefix}.{name}", value) if isinstance(value, Mapping) else {f"{prefix}.{name}": value}
    return flat


def _key(name: str) -> str:
    """A name that MLflow accepts in metrics and tags."""
    return re.sub(r"[^\w .:/-]", "_", name)
