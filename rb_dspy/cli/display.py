"""A run as people read it while it happens: one block a task.

The steps are dspy modules, so dspy's callbacks say what they were asked and what they returned.
"""

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

from rb_dspy.schema import Outcome, StopReason, Task, Trajectory, Verdict
from rb_dspy.steps import Act, Contrast, Distill, Judge, Memory, Refine, Retrieve, Select
from rb_dspy.stream import TaskResult
from rb_dspy.text import counted

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
    Contrast: "the rollouts are contrasted and judged",
    Select: "one rollout is selected",
}

LABEL_COLOURS = {"success": "green", "failure": "yellow", "unknown": "magenta"}


class Display(BaseCallback):
    """Prints the steps and results of a run to ``console``; on a terminal also shows what is being waited for.

    Used as a dspy callback. Steps of several rollouts come as they happen, each line with the rollout's number.
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
        if self.console.is_terminal:
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
            elif isinstance(outputs, Verdict):
                rollout = next((each.rollout_id for each in arguments if isinstance(each, Trajectory)), "0")
                self._row(self._of(rollout, "verdict"), _verdict(outputs))
            elif isinstance(instance, Select) and self.several and outputs.analysis:
                self._row("selected", Text(short(outputs.analysis, 300), "dim"))

    def on_result(self, result: TaskResult) -> None:
        """Show what came of a task."""
        with self._lock:
            self._heading(result.task)
            if result.error:
                self._row("failed", Text.assemble((result.error, "red")))
            prediction = result.prediction
            for lost in () if prediction is None else prediction.get("lost", ()):
                self._row(f"{lost.rollout_id}·lost", Text(lost.error, "red"))
            if prediction is not None and prediction.experience is not None:
                self._learned(prediction.experience)
            self._truth(result)
            if result.resumed:
                self._row(
                    "resumed", Text("the rollout waited in the bank; it is learned from now, and not scored", "dim")
                )
            usage = result.usage.values()
            tokens = sum(used.prompt_tokens + used.completion_tokens for used in usage)
            if tokens:
                seconds = f"{sum(used.seconds for used in usage):.1f} s of calls"
                beside = ", added up" if self.several else ""
                self._row("", Text(f"{seconds}{beside} · {counted(tokens, 'token')}", "dim"))

    def _heading(self, task: Task) -> None:
        if task.id == self._task:
            return
        self._task = task.id
        self.number += 1
        title = Text(f"{self.number}/{self.total}  {task.id}")
        self.console.print(Rule(title, align="left", style="dim", characters="─"))
        self._row("task", Text(short(task.instruction, 400)))

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
                self._row(name, Text(short(step.thought, 300), "dim"))
            self._row("" if step.thought else name, Text(f"→ {short(step.action)}", "cyan"))
            if step.observation:
                self._row("", Text(short(step.observation, 200), "dim"))
        for check in trajectory.checks:
            colour = "green" if check.decision == "confirm" else "yellow"
            findings = Text.assemble((check.decision, colour), "  ", (short(check.findings, 300), "dim"))
            self._row(self._of(trajectory.rollout_id, "check"), findings)
        reason = _ENDED_EARLY.get(trajectory.stop_reason)
        if reason is not None:
            self._row(self._of(trajectory.rollout_id, "ended"), Text(reason, "yellow"))

    def _learned(self, experience: Any) -> None:
        for item in experience.items:
            self._row("learned" if item is experience.items[0] else "", Text(f"• {item.title}", "blue"))
            self._row("", Text(f"  {short(item.content, 240)}", "dim"))
        if not experience.items:
            self._row("learned", Text(f"nothing: {experience.note}" if experience.note else "nothing", "dim"))

    def _truth(self, result: TaskResult) -> None:
        if result.outcome is None:
            return
        judge = {True: "the judge agrees", False: "[red]the judge is wrong[/]", None: "the judge abstained"}
        said = judge[result.agreed] if result.label is not None else "not judged"
        self._row(
            "truth", Text.from_markup(f"{solved(result.outcome)}  [dim]reward {result.outcome.reward:.2f}[/]  {said}")
        )
        if self.several and result.outcomes:
            by_id = zip((rollout.rollout_id for rollout in result.rollouts), result.outcomes, strict=True)
            each = ", ".join(f"{id} {solved(outcome)}" for id, outcome in by_id)
            self._row("", Text.from_markup(f"[dim]rollouts:[/] {each}"))

    def _of(self, rollout: str, name: str) -> str:
        """``name``, with the rollout's number if there are several."""
        return f"{rollout}·{name}" if self.several else name

    def _row(self, name: str, text: Text) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=10 if self.several else 9, justify="right", style="bold")
        grid.add_column(overflow="fold")
        grid.add_row(name, text)
        self.console.print(grid)


def solved(outcome: Outcome | None) -> str:
    """In rich's markup, whether ground truth says that a task was solved."""
    if outcome is None:
        return "[dim]not known[/]"
    return "[green]solved[/]" if outcome.success else "[yellow]not solved[/]"


def short(text: str, limit: int = 160) -> str:
    """``text`` on one line, cut in its middle if it is longer than ``limit``."""
    line = " ".join(text.split())
    half = limit // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def _verdict(verdict: Verdict) -> Text:
    return Text.assemble((verdict.label, LABEL_COLOURS[verdict.label]), "  ", (short(verdict.reasons, 300), "dim"))
