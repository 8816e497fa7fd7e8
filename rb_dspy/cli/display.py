"""A run as people read it while it happens: one block a task."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.rule import Rule
from rich.status import Status
from rich.table import Table
from rich.text import Text

from rb_dspy.backbones.stop import stopped
from rb_dspy.schema import Outcome, StopReason, Task, Trajectory
from rb_dspy.steps.events import (
    Appended,
    Checked,
    EpisodeStarted,
    Event,
    Judged,
    MemoryRetrieved,
    RolloutLost,
    Selected,
    StepTaken,
)
from rb_dspy.stream import TaskResult
from rb_dspy.wording import counted

_CUT_SHORT: dict[StopReason, str] = {
    "max_steps": "the step limit was reached",
    "unreadable": "the agent's answer could not be read",
    "context": "nothing more fits into the model",
}

LABEL_COLOURS = {"success": "green", "failure": "yellow", "unknown": "magenta"}


class Display:
    """Prints events and results to ``console``; on a terminal also shows what is being waited for.

    With ``several`` rollouts a task each line says which one it is of, since they come as they happen. Safe to be told
    from several threads.
    """

    def __init__(self, console: Console, total: int, *, several: bool = False) -> None:
        self.console = console
        self.total = total
        self.several = several
        self.number = 0
        self.status: Status | None = None
        self._lock = threading.RLock()
        self._task = ""
        self._first: str | None = None
        """What this task's environments show first, to every rollout; None before one has."""
        self._ended: set[str] = set()
        """Its rollouts of which it was said what cut them short."""

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.status = self.console.status("[dim]loading the embedder, then looking for lessons …[/]")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()

    def on_event(self, event: Event) -> None:
        """One thing that happened inside the loop."""
        if stopped():  # a thread that ends after the run did: nothing comes of what it still tells
            return
        with self._lock:
            self._heading(event.task)
            if isinstance(event, MemoryRetrieved):
                self._recalled(event)
            elif isinstance(event, EpisodeStarted):
                self._begun(event)
            elif isinstance(event, StepTaken):
                self._step(event)
            elif isinstance(event, Checked):
                colour = "green" if event.check.decision == "confirm" else "yellow"
                told = Text.assemble((event.check.decision, colour), "  ", (short(event.check.findings, 300), "dim"))
                self._row(self._of(event.rollout, "check"), told)
                self._wait("the agent goes on")
            elif isinstance(event, RolloutLost):
                told = Text.assemble((event.error, "red"), " ", ("(what there is without it counts)", "dim"))
                self._row(self._of(event.rollout, "lost"), told)
            elif isinstance(event, Judged):
                self._cut_short(event.trajectory)
                colour = LABEL_COLOURS[event.verdict.label]
                reasons = short(event.verdict.reasons, 300)
                told = Text.assemble((event.verdict.label, colour), "  ", (reasons, "dim"))
                self._row(self._of(event.trajectory.rollout_id, "verdict"), told)
                self._wait(
                    "the others go on, or are judged and learned from" if self.several else "the distiller thinks"
                )
            elif isinstance(event, Selected):
                told = Text.assemble(f"rollout {event.rollout}", "  ", (short(event.analysis, 300), "dim"))
                self._row("handed in", told)
            elif isinstance(event, Appended):
                self._learned(event)

    def on_result(self, result: TaskResult) -> None:
        """One task is over."""
        with self._lock:
            self._heading(result.task)
            for rollout in result.rollouts:  # that nobody judged, or not now
                self._cut_short(rollout)
            if result.error:
                learned = "not learned from" if result.prediction is None else "learned from all the same"
                counts = "neither success nor failure" if result.outcome is None else "what was handed in counts"
                self._row("broke", Text.assemble((result.error, "red"), " ", (f"({counts}; {learned})", "dim")))
                self._truth(result)
            elif result.prediction is not None:
                self._truth(result)
                if result.resumed:
                    for item in result.prediction.memory.items:
                        self._row("recalled", Text(f"• {item.title}", "blue"))
                    told = "the rollout waited in the bank; it is learned from now, and not scored"
                    self._row("resumed", Text(told, "dim"))
                usage = result.usage.values()
                tokens = sum(used.prompt_tokens + used.completion_tokens for used in usage)
                seconds = f"{sum(used.seconds for used in usage):.1f} s of calls"
                beside = ", added up" if self.several else ""
                self._row("", Text(f"{seconds}{beside} · {counted(tokens, 'token')}", "dim"))
            self._wait("the next task")

    def _heading(self, task: Task) -> None:
        """Begin the block of a task, where this is the first that is heard of it."""
        if task.id == self._task:
            return
        self._task = task.id
        self._first = None
        self._ended.clear()
        self.number += 1
        title = Text(f"{self.number}/{self.total}  {task.id}")
        self.console.print(Rule(title, align="left", style="dim", characters="─"))
        self._row("task", Text(short(task.instruction, 400)))

    def _recalled(self, event: MemoryRetrieved) -> None:
        if event.memory:
            for match in event.memory.retrieved:
                self._row("recalled", Text(f"{match.score:.2f}  from {match.task_id}", "dim"))
            for item in event.memory.items:
                self._row("", Text(f"• {item.title}", "blue"))
        else:
            self._row("recalled", Text("nothing", "dim"))
        self._wait("the agent thinks")

    def _begun(self, event: EpisodeStarted) -> None:
        shown = event.observation.strip()
        if self._first is None:
            self._first, name = shown, "sees"
            new = "" if shown in event.task.instruction else shown
        else:
            name, new = self._of(event.rollout, "sees"), shown.removeprefix(self._first).strip()
        if new:
            self._row(name, Text(short(new, 300), "dim"))

    def _step(self, event: StepTaken) -> None:
        number = self._of(event.rollout, f"step {event.number}")
        if event.step.thought:
            self._row(number, Text(short(event.step.thought, 300), "dim"))
        self._row("" if event.step.thought else number, Text(f"→ {short(event.step.action)}", "cyan"))
        if event.step.observation:
            self._row("", Text(short(event.step.observation, 200), "dim"))
        self._wait("the rollouts go on" if self.several else "the environment or the judge is next")

    def _cut_short(self, rollout: Trajectory) -> None:
        """Say, once, that it was not the environment that ended it."""
        told = _CUT_SHORT.get(rollout.stop_reason)
        if told is not None and rollout.rollout_id not in self._ended:
            self._ended.add(rollout.rollout_id)
            self._row(self._of(rollout.rollout_id, "ended"), Text(told, "yellow"))

    def _learned(self, event: Appended) -> None:
        for n, item in enumerate(event.experience.items):
            self._row("learned" if n == 0 else "", Text(f"• {item.title}", "blue"))
            self._row("", Text(f"  {short(item.content, 240)}", "dim"))
        note = event.experience.note
        if not event.experience.items:
            self._row("learned", Text(f"nothing: {note}" if note else "nothing", "dim"))
        elif note:
            self._row("", Text(short(note, 240), "dim"))

    def _truth(self, result: TaskResult) -> None:
        if result.outcome is not None:
            judge = {True: "the judge agrees", False: "[red]the judge is wrong[/]", None: "the judge abstained"}
            said = judge[result.agreed] if result.label is not None else "nobody judged"
            told = f"reward {result.outcome.reward:.2f}  [dim]{said}[/]"
            self._row("truth", Text.from_markup(f"{_solved(result.outcome)}  {told}"))
        if self.several and result.passes:
            told = " → ".join(map(_solved, result.passes))
            self._row("", Text.from_markup(f"[dim]pass by pass:[/] {told}"))
        elif self.several and result.outcomes:
            by_id = zip((rollout.rollout_id for rollout in result.rollouts), result.outcomes, strict=True)
            told = ", ".join(f"{id} {_solved(outcome)}" for id, outcome in by_id)
            self._row("", Text.from_markup(f"[dim]rollouts:[/] {told}"))

    def _of(self, rollout: str, name: str) -> str:
        """``name``, marked by the rollout where there are several."""
        return f"{rollout}·{name}" if self.several else name

    def _row(self, name: str, text: Text) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=10 if self.several else 9, justify="right", style="bold")
        grid.add_column(overflow="fold")
        grid.add_row(name, text)
        self.console.print(grid)

    def _wait(self, what: str) -> None:
        if self.status is not None:
            self.status.update(f"[dim]{what} …[/]")


def _solved(outcome: Outcome | None) -> str:
    """Markup."""
    return (
        "[dim]not known[/]" if outcome is None else "[green]solved[/]" if outcome.success else "[yellow]not solved[/]"
    )


def short(text: str, limit: int = 160) -> str:
    """``text`` on one line, its middle cut where it is longer than ``limit``."""
    line = " ".join(text.split())
    half = limit // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"
