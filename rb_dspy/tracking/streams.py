"""A stream of tasks as a run: numbers by position, totals, pictures, the traces, what was learned."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.schema import RoleUsage, Usage
from rb_dspy.stream import RunReport, Scaling, Summary, TaskResult
from rb_dspy.text import counted
from rb_dspy.tracking import notes, plots
from rb_dspy.tracking.continued import CONTINUES, Before
from rb_dspy.tracking.hidden import Hidden
from rb_dspy.tracking.memory import Lessons
from rb_dspy.tracking.prices import costs, without_price
from rb_dspy.tracking.run import Run
from rb_dspy.tracking.traces import Traces

log = logging.getLogger("rb_dspy")

UNSAID = "rb.no_results"
"""The tag of a run to which no result was handed over: how many tasks were seen to be done."""


class StreamRun:
    """A stream that is under way. ``on_result`` is for ``run_stream``; ``finish`` is called where the block ends."""

    def __init__(
        self,
        run: Run,
        run_id: str,
        bank: MemoryBank,
        models: Mapping[str, str],
        traces: Traces | None,
        lessons: Lessons,
        before: Before,
    ) -> None:
        self.run = run
        self.tracked_run_id = run_id
        """The name of the stream's run: results of other runs are refused."""
        self._bank = bank
        self._models = models
        self._traces = traces
        self._lessons = lessons
        self._before = before
        self._results: list[TaskResult] = []
        self._finished = False

    @property
    def id(self) -> str:
        """MLflow's id of the run; empty where it could not be made."""
        return self.run.id

    def on_result(self, result: TaskResult) -> None:
        """Log the numbers of a task, at its position, from 1 on, and end its trace.

        Raises ``InputError`` for a result of a run of another name.
        """
        self._check(result.run_id)
        if self._traces is not None:
            self._traces.done(result)
        self._results.append(result)
        self.run.guard("counting", self._log_position, result)

    def finish(self, report: RunReport | None = None, bank: MemoryBank | None = None) -> None:
        """Log totals, pictures, a table of the tasks, and the bank as it is now. Done once, and with what ``on_result``
        was given, where the block ends and nobody did it before."""
        if report is not None:
            self._check(report.run_id)
        if self._finished:
            return
        self._finished = True
        report = report or RunReport("", self._results, self._skipped())
        bank = bank or self._bank
        unsaid = self._traces.unsaid if self._traces is not None else 0
        if unsaid and not report.results:  # totals of 0 would say that nothing was done
            self.run.guard("saying what is missing", self._log_unsaid, unsaid)
            self.run.made_file("bank.jsonl", bank.export_jsonl)
            return
        self.run.guard("adding up", self._log_totals, report)
        self.run.figure("plots/learning_curve.png", lambda: plots.learning_curve(report.results))
        self.run.figure("plots/judge.png", lambda: plots.judge_confusion(report.results))
        self.run.figure("plots/lessons.png", lambda: plots.item_use(report.results))
        self.run.guard(
            "listing the tasks", lambda: self.run.table("tasks.json", _table(report.results, self.run.hidden))
        )
        self.run.made_file("bank.jsonl", bank.export_jsonl)

    def _check(self, run_id: str) -> None:
        if run_id not in ("", self.tracked_run_id):
            raise InputError(
                f"the results are of the run {run_id!r}, and this stream_run tracks {self.tracked_run_id!r}; give both"
                " one run_id"
            )

    def _log_position(self, result: TaskResult) -> None:
        self._lessons.see(result)
        scored = [each.outcome.success for each in self._results if each.outcome is not None]
        judged = [each for each in self._results if each.agreed is not None and each.outcome is not None]
        truths = _mean([each.outcome.success for each in judged if each.outcome is not None])
        found: dict[str, float | None] = {
            "success/solved": None if result.outcome is None else float(result.outcome.success),
            "success/rate": _mean(scored),
            "success/judge_agreement": _mean([bool(each.agreed) for each in judged]),
            "success/judge_base_rate": None if truths is None else max(truths, 1 - truths),
            "bank/items": len(self._bank),
        }
        if result.prediction is not None:
            found["task/steps"] = len(result.prediction.trajectory.steps)
            found["task/lessons_shown"] = len(result.prediction.memory.items)
            found["task/lessons_learned"] = len(result.prediction.memory_items)
        for role, used in result.usage.items():
            found[f"tokens/{role}"] = _tokens(used)
            found[f"seconds/{role}"] = used.seconds
        self.run.metrics(found, step=len(self._results), later=True)

    def _log_unsaid(self, tasks: int) -> None:
        said = (
            f"{counted(tasks, 'task')} done, and no result handed over, so nothing was counted; give run_stream"
            " on_result=run.on_result, or call run.on_result(TaskResult(task, prediction)) after each call"
        )
        log.warning("tracking: %s", said)
        self.run.describe(said)
        self.run.tags({UNSAID: tasks})

    def _skipped(self) -> int:
        """Tasks that ``run_stream`` skipped, whose report is not at hand: a run that learns nothing does them again."""
        if self._lessons.memory in ("frozen", "off"):
            return 0
        return len(self._before.known - {result.task.id for result in self._results})

    def _log_totals(self, report: RunReport) -> None:
        for result in report.results:  # of who gave no ``on_result``
            self._lessons.see(result)
        summary = report.summary()
        summary = summary.model_copy(update={"skipped": summary.skipped + self._before.left_out})
        self.run.describe(notes.of_stream(summary, self._lessons.memory, self._log_continued(report, summary)))
        found: dict[str, float | None] = {
            "total/tasks": summary.tasks,
            "total/skipped": summary.skipped,
            "total/resumed": summary.resumed,
            "total/solved": summary.solved,
            "total/scored": summary.scored,
            "total/success_rate": summary.success_rate,
            "total/judge_agreement": summary.judge_agreement,
            "total/judge_base_rate": summary.judge_base_rate,
            "total/judge_balanced": summary.judge_balanced,
            "total/judged": summary.judged,
            "total/false_successes": summary.false_successes,
            "total/unknown_verdicts": summary.unknown_verdicts,
            "total/infrastructure_errors": summary.infrastructure_errors,
            "total/truncated": summary.truncated,
            "total/mean_steps": summary.mean_steps,
            "total/tasks_shown_lessons": summary.shown,
            "total/lessons_learned": summary.items,
        }
        if summary.scaling is not None:
            found |= _scaled(summary.scaling)
        log_usage(self.run, summary.usage, self._models, found, step=len(report.results))

    def _log_continued(self, report: RunReport, summary: Summary) -> str:
        """The run that this one goes on from, where that is known."""
        resumed = [result.task.id for result in report.results if result.resumed]
        if not ((summary.skipped or resumed) and self.run.id):
            return ""
        look = self._before.run
        first = self.run.guard("looking for the run before", look, self.run, self._bank.scope, resumed) or ""
        self.run.tags({CONTINUES: first or None})
        return first


def _scaled(scaling: Scaling) -> dict[str, float | None]:
    """What test-time scaling gained; each pass@k with the number of tasks it is over.

    Passes over one trajectory have nothing that is counted of rollouts side by side, and those no passes.
    """
    lists = {"pass_at", "passes"}
    chosen = set() if scaling.compared else {"compared", "handed_in", "solvable"}
    if scaling.passes is not None:
        chosen |= {"fallbacks"}
    found: dict[str, float | None] = {
        f"scaling/{name}": value for name, value in scaling.model_dump(exclude=lists | chosen).items()
    }
    for each in scaling.pass_at:
        found[f"scaling/pass_at_{each.j}"] = each.rate
        found[f"scaling/pass_at_{each.j}.tasks"] = each.tasks
    if scaling.passes is not None:
        found |= {f"scaling/passes.{name}": value for name, value in scaling.passes.model_dump().items()}
    return found


def log_usage(
    run: Run, usage: Usage, models: Mapping[str, str], others: Mapping[str, float | None], step: int = 0
) -> None:
    """Log calls, tokens, seconds and money, of each role and in all, and ``others``, as metrics.

    Money only of what has a known price. Where a role has none there is no total; the tag ``rb.no_price`` names it.
    """
    found = dict(others)
    for role, used in usage.items():
        found[f"usage/{role}.calls"] = used.calls
        found[f"usage/{role}.prompt_tokens"] = used.prompt_tokens
        found[f"usage/{role}.completion_tokens"] = used.completion_tokens
        found[f"usage/{role}.seconds"] = used.seconds
    found["total/tokens"] = sum(_tokens(used) for used in usage.values())
    money, unknown = costs(usage, models), without_price(usage, models)
    found |= {f"usage/{role}.usd": cost for role, cost in money.items()}
    if unknown:
        run.tags({"rb.no_price": ", ".join(unknown)})
    elif money:
        found["total/usd"] = sum(money.values())
    run.metrics(found, step=step)


def _table(results: list[TaskResult], hidden: Hidden) -> dict[str, list[Any]]:
    """A row for each task."""
    rows = []
    for position, result in enumerate(results, 1):
        found = result.row()
        rows.append(
            {
                "position": position,
                "task": found["task"],
                "template": found["template"] or "",
                "solved": {None: "", True: "yes", False: "no"}[found["solved"]],
                "verdict": found["verdict"] or "",
                "steps": found["steps"],
                "stop reason": found["stop_reason"] or "",
                "answer": found["answer"] or "",
                "lessons shown": found["recalled"],
                "lessons learned": found["learned"],
                "tokens": found["tokens"],
                "error": hidden(found["error"]),
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {"position": []}


def _tokens(used: RoleUsage) -> int:
    return used.prompt_tokens + used.completion_tokens


def _mean(values: list[bool]) -> float | None:
    return sum(values) / len(values) if values else None
