"""Live output of a run: a block for each task, filled in by dspy callbacks around the steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from rich.console import Console
from rich.rule import Rule
from rich.status import Status
from rich.table import Table
from rich.text import Text

from rb_dspy.cli.output import one_line, print_row, rollout_number
from rb_dspy.schema import Outcome, StopReason, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Contrast, Distill, Judge, Memory, Refine, Retrieve, Review, Select
from rb_dspy.stream import TaskResult
from rb_dspy.text import counted, middle_cut

_ENDED_EARLY: dict[StopReason, str] = {
    "max_steps": "the step limit was reached",
    "unparseable": "the agent's answer could not be parsed",
    "context": "the prompt no longer fits the model's context window",
}

_WAITS: dict[type, str] = {
    Retrieve: "looking for lessons",
    Act: "the agent works",
    Refine: "the agent works and checks its work",
    Judge: "the judge reads",
    Distill: "the distiller writes",
    Review: "the distiller reads and writes",
    Contrast: "the rollouts are contrasted and judged",
    Select: "one rollout is selected",
}

LABEL_COLORS = {"success": "green", "failure": "yellow", "unknown": "magenta"}


class Display(BaseCallback):
    """Prints the steps and results of a run to ``console``; on a terminal also the step that is in progress.

    A dspy callback. Steps of several rollouts are printed as they end, each line with the rollout's number.
    """

    def __init__(self, console: Console, total: int, *, several: bool = False) -> None:
        self.console = console
        self.total = total
        self.several = several
        self.number = 0
        self.status: Status | None = None
        self._lock = threading.RLock()
        self._task = ""
        self._calls: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Show what happens inside the block."""
        if self.console.is_terminal and not self.console.quiet:
            self.status = self.console.status("[dim]loading the embedder …[/]")
            self.status.start()
        try:
            with dspy.context(callbacks=[*dspy.settings.callbacks, self]):
                yield
        finally:
            if self.status is not None:
                self.status.stop()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        if type(instance) not in _WAITS:
            return
        arguments = (*inputs.get("args", ()), *inputs.get("kwargs", {}).values())
        with self._lock:
            self._calls[call_id] = instance, arguments
            task = next((each for each in arguments if isinstance(each, Task)), None)
            if task is not None:
                self._heading(task)
            if self.status is not None:
                self.status.update(f"[dim]{_WAITS[type(instance)]} …[/]")

    def on_module_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        with self._lock:
            instance, arguments = self._calls.pop(call_id, (None, ()))
            if instance is None or exception is not None:
                return
            if isinstance(outputs, Memory):
                self._recalled(outputs)
            elif isinstance(outputs, Trajectory):
                self._acted(outputs)
            elif isinstance(instance, Refine):
                for trajectory in outputs.trajectories:
                    self._acted(trajectory)
            elif isinstance(verdict := outputs[0] if isinstance(instance, Review) else outputs, Verdict):
                rollout = next((each.rollout_id for each in arguments if isinstance(each, Trajectory)), "0")
                self._row(self._of(rollout, "verdict"), _verdict(verdict))
            elif isinstance(instance, Select) and self.several and outputs.analysis:
                self._row("selected", Text(middle_cut(outputs.analysis, 300), "dim"))

    def on_result(self, result: TaskResult) -> None:
        """Show the result of a task."""
        with self._lock:
            self._heading(result.task)
            if result.error:
                self._row("failed", Text.assemble((result.error, "red")))
            prediction = result.prediction
            for lost in () if prediction is None else prediction.get("lost", ()):
                self._row(f"{rollout_number(lost.rollout_id)}·lost", Text(lost.error, "red"))
            if prediction is not None and prediction.experience is not None:
                self._learned(prediction.experience)
            self._truth(result)
            if result.resumed:
                known = "" if result.outcome is not None else ", whose outcome is unknown"
                self._row("resumed", Text(f"learned from an earlier rollout{known}", "dim"))
            usage = result.usage.values()
            tokens = sum(used.prompt_tokens + used.completion_tokens for used in usage)
            if tokens:
                seconds = f"{sum(used.seconds for used in usage):.1f} s of model calls"
                self._row("", Text(f"{seconds} · {counted(tokens, 'token')}", "dim"))

    def _heading(self, task: Task) -> None:
        if task.id == self._task:
            return
        self._task = task.id
        self.number += 1
        title = Text(f"{self.number}/{self.total}  {task.id}")
        self.console.print(Rule(title, align="left", style="dim", characters="─"))
        self._row("task", Text(middle_cut(task.instruction, 400)))

    def _recalled(self, memory: Memory) -> None:
        if not memory:
            self._row("recalled", Text("nothing", "dim"))
        scores = {item.id: match.score for match in memory.retrieved for item in match.items}
        for item in memory.items:
            score = f"{scores[item.id]:.2f}  " if item.id in scores else ""
            self._row(
                "recalled" if item is memory.items[0] else "", Text.assemble((score, "dim"), (item.title, "blue"))
            )

    def _acted(self, trajectory: Trajectory) -> None:
        for number, step in enumerate(trajectory.steps, 1):
            name = self._of(trajectory.rollout_id, f"step {number}")
            if step.thought:
                self._row(name, Text(middle_cut(step.thought, 300), "dim"))
            self._row("" if step.thought else name, Text(f"→ {middle_cut(step.action)}", "cyan"))
            if step.observation:
                self._row("", Text(middle_cut(step.observation, 200), "dim"))
        for check in trajectory.checks:
            color = "green" if check.decision == "confirm" else "yellow"
            findings = Text.assemble((check.decision, color), "  ", (middle_cut(check.findings, 300), "dim"))
            self._row(self._of(trajectory.rollout_id, "check"), findings)
        reason = _ENDED_EARLY.get(trajectory.stop_reason)
        if reason is not None:
            self._row(self._of(trajectory.rollout_id, "ended"), Text(reason, "yellow"))

    def _learned(self, experience: Any) -> None:
        width = 10 if self.several else 9
        for item in experience.items:
            name = "learned" if item is experience.items[0] else ""
            lesson = Text.assemble((f"• {one_line(item.title)}", "blue"), (f"  {one_line(item.content, 400)}", "dim"))
            print_row(self.console, Text(f"{name:>{width}} ", "bold") + lesson, 0)
        if not experience.items:
            self._row("learned", Text(f"nothing: {experience.note}" if experience.note else "nothing", "dim"))

    def _truth(self, result: TaskResult) -> None:
        if result.outcome is None:
            return
        labels = {True: "the judge agrees", False: "[red]the judge is wrong[/]", None: "the judge abstained"}
        judge = labels[result.agreed] if result.label is not None else "not judged"
        reward = f"[dim]reward {result.outcome.reward:.2f}[/]"
        self._row("truth", Text.from_markup(f"{solved(result.outcome)}  {reward}  {judge}"))
        if self.several and result.outcomes:
            by_id = zip((rollout.rollout_id for rollout in result.rollouts), result.outcomes, strict=True)
            each = ", ".join(f"{rollout_number(id)} {solved(outcome)}" for id, outcome in by_id)
            self._row("", Text.from_markup(f"[dim]rollouts:[/] {each}"))

    def _of(self, rollout: str, name: str) -> str:
        """``name``, with the rollout's number if there are several."""
        return f"{rollout_number(rollout)}·{name}" if self.several else name

    def _row(self, name: str, text: Text) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=10 if self.several else 9, justify="right", style="bold")
        grid.add_column(overflow="fold")
        grid.add_row(name, text)
        self.console.print(grid)


def solved(outcome: Outcome | None) -> str:
    """Ground truth in rich's markup."""
    if outcome is None:
        return "[dim]unknown[/]"
    return "[green]solved[/]" if outcome.success else "[yellow]not solved[/]"


def _verdict(verdict: Verdict) -> Text:
    return Text.assemble((verdict.label, LABEL_COLORS[verdict.label]), "  ", (middle_cut(verdict.reasons, 300), "dim"))
