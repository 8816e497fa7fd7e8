"""A run as people read it: one block a task while it happens, and a table at the end."""

from __future__ import annotations

from rich.console import Console
from rich.rule import Rule
from rich.status import Status
from rich.table import Table
from rich.text import Text

from rb_dspy.steps.events import Appended, EpisodeStarted, Event, Judged, MemoryRetrieved, StepTaken
from rb_dspy.stream import RunReport, TaskResult

LABEL_COLOURS = {"success": "green", "failure": "yellow", "unknown": "magenta"}


class Display:
    """Prints events and results to ``console``; on a terminal also shows what is being waited for."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.number = 0
        self.status: Status | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.status = self.console.status("loading the model …")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()

    def on_event(self, event: Event) -> None:
        """One thing that happened inside the loop."""
        if isinstance(event, MemoryRetrieved):
            self.number += 1
            title = Text(f"{self.number}/{self.total}  {event.task.id}")
            self.console.print(Rule(title, align="left", style="dim", characters="─"))
            self._row("task", Text(short(event.task.instruction, 400)))
            if event.memory:
                for match in event.memory.retrieved:
                    self._row("recalled", Text(f"{match.score:.2f}  from {match.task_id}", "dim"))
                for item in event.memory.items:
                    self._row("", Text(f"• {item.title}", "blue"))
            else:
                self._row("recalled", Text("nothing", "dim"))
            self._wait("the agent thinks")
        elif isinstance(event, EpisodeStarted):
            if event.observation.strip() not in event.task.instruction:
                self._row("sees", Text(short(event.observation, 300), "dim"))
        elif isinstance(event, StepTaken):
            number = f"step {event.number}"
            if event.step.thought:
                self._row(number, Text(short(event.step.thought, 300), "dim"))
            self._row("" if event.step.thought else number, Text(f"→ {short(event.step.action)}", "cyan"))
            if event.step.observation:
                self._row("", Text(short(event.step.observation, 200), "dim"))
            self._wait("the environment or the judge is next")
        elif isinstance(event, Judged):
            colour = LABEL_COLOURS[event.verdict.label]
            reasons = short(event.verdict.reasons, 300)
            self._row("verdict", Text.assemble((event.verdict.label, colour), "  ", (reasons, "dim")))
            self._wait("the distiller thinks")
        elif isinstance(event, Appended):
            for n, item in enumerate(event.experience.items):
                self._row("learned" if n == 0 else "", Text(f"• {item.title}", "blue"))
                self._row("", Text(f"  {short(item.content, 240)}", "dim"))
            note = event.experience.note
            if not event.experience.items:
                self._row("learned", Text(f"nothing: {note}" if note else "nothing", "dim"))
            elif note:
                self._row("", Text(short(note, 240), "dim"))

    def on_result(self, result: TaskResult) -> None:
        """One task is over."""
        if result.error:
            why = "(neither success nor failure; not learned from)"
            self._row("broke", Text.assemble((result.error, "red"), " ", (why, "dim")))
        elif result.prediction is not None:
            if result.outcome is not None:
                solved = "[green]solved[/]" if result.outcome.success else "[yellow]not solved[/]"
                judge = {True: "the judge agrees", False: "[red]the judge is wrong[/]", None: "the judge abstained"}
                told = f"{solved}  reward {result.outcome.reward:.2f}  [dim]{judge[result.agreed]}[/]"
                self._row("truth", Text.from_markup(told))
            usage = result.usage.values()
            tokens = sum(used.prompt_tokens + used.completion_tokens for used in usage)
            self._row("", Text(f"{sum(used.seconds for used in usage):.1f} s · {tokens:,} tokens", "dim"))
        self._wait("the next task")

    def _row(self, name: str, text: Text) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=9, justify="right", style="bold")
        grid.add_column(overflow="fold")
        grid.add_row(name, text)
        self.console.print(grid)

    def _wait(self, what: str) -> None:
        if self.status is not None:
            self.status.update(f"[dim]{what} …[/]")


def print_summary(console: Console, report: RunReport) -> None:
    """The run in numbers."""
    summary = report.summary()
    console.print(Rule("summary", align="left", style="dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("solved", _share(summary.solved, summary.scored, "tasks, by ground truth"))
    table.add_row("judge agreement", _share(summary.agreements, summary.judged, "verdicts agree with ground truth"))
    if summary.unknown_verdicts:
        table.add_row("unknown verdicts", str(summary.unknown_verdicts))
    if summary.infrastructure_errors:
        table.add_row("infrastructure errors", f"[red]{summary.infrastructure_errors}[/]")
    table.add_row("mean steps", "-" if summary.mean_steps is None else f"{summary.mean_steps:.1f}")
    table.add_row("lessons learned", str(summary.items))
    console.print(table)
    roles = Table("role", box=None, pad_edge=False, header_style="bold")
    for heading in ("calls", "prompt tokens", "output tokens", "seconds"):
        roles.add_column(heading, justify="right")
    for role, used in summary.usage.items():
        calls = f"{used.calls:,}" + (f" ({used.cached_calls} cached)" if used.cached_calls else "")
        roles.add_row(
            Text(role), calls, f"{used.prompt_tokens:,}", f"{used.completion_tokens:,}", f"{used.seconds:.1f}"
        )
    console.print(roles)


def short(text: str, limit: int = 160) -> str:
    """``text`` on one line, its middle cut where it is longer than ``limit``."""
    line = " ".join(text.split())
    half = limit // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def _share(part: int, whole: int, what: str) -> str:
    return f"{part} of {whole} {what} ({part / whole:.0%})" if whole else f"no {what} to count"
