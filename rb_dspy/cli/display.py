"""A run as people read it: one block a task while it happens, and a table at the end."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.status import Status
from rich.table import Table

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
            self.console.print(
                Rule(f"{self.number}/{self.total}  {escape(event.task.id)}", align="left", style="dim", characters="─")
            )
            self._row("task", escape(short(event.task.instruction, 400)))
            if event.memory:
                for match in event.memory.retrieved:
                    self._row("recalled", f"[dim]{match.score:.2f}  from {escape(match.task_id)}[/]")
                for item in event.memory.items:
                    self._row("", f"[blue]• {escape(item.title)}[/]")
            else:
                self._row("recalled", "[dim]nothing[/]")
            self._wait("the agent thinks")
        elif isinstance(event, EpisodeStarted):
            if event.observation.strip() not in event.task.instruction:
                self._row("sees", f"[dim]{escape(short(event.observation, 300))}[/]")
        elif isinstance(event, StepTaken):
            if event.step.thought:
                self._row(f"step {event.number}", f"[dim]{escape(short(event.step.thought, 300))}[/]")
            self._row(
                "" if event.step.thought else f"step {event.number}", f"[cyan]→ {escape(short(event.step.action))}[/]"
            )
            if event.step.observation:
                self._row("", f"[dim]{escape(short(event.step.observation, 200))}[/]")
            self._wait("the environment or the judge is next")
        elif isinstance(event, Judged):
            colour = LABEL_COLOURS[event.verdict.label]
            reasons = escape(short(event.verdict.reasons, 300))
            self._row("verdict", f"[{colour}]{event.verdict.label}[/]  [dim]{reasons}[/]")
            self._wait("the distiller thinks")
        elif isinstance(event, Appended):
            for n, item in enumerate(event.experience.items):
                self._row("learned" if n == 0 else "", f"[blue]• {escape(item.title)}[/]")
                self._row("", f"  [dim]{escape(short(item.content, 240))}[/]")
            if not event.experience.items:
                self._row(
                    "learned", f"[dim]nothing{': ' if event.experience.note else ''}{escape(event.experience.note)}[/]"
                )
            elif event.experience.note:
                self._row("", f"[dim]{escape(short(event.experience.note, 240))}[/]")

    def on_result(self, result: TaskResult) -> None:
        """One task is over."""
        if result.error:
            self._row(
                "broke", f"[red]{escape(result.error)}[/] [dim](neither success nor failure; not learned from)[/]"
            )
        elif result.prediction is not None:
            if result.outcome is not None:
                solved = "[green]solved[/]" if result.outcome.success else "[yellow]not solved[/]"
                judge = {True: "the judge agrees", False: "[red]the judge is wrong[/]", None: "the judge abstained"}
                self._row("truth", f"{solved}  reward {result.outcome.reward:.2f}  [dim]{judge[result.agreed]}[/]")
            usage = result.usage.values()
            tokens = sum(used.prompt_tokens + used.completion_tokens for used in usage)
            self._row("", f"[dim]{sum(used.seconds for used in usage):.1f} s · {tokens:,} tokens[/]")
        self._wait("the next task")

    def _row(self, name: str, text: str) -> None:
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
        roles.add_row(role, calls, f"{used.prompt_tokens:,}", f"{used.completion_tokens:,}", f"{used.seconds:.1f}")
    console.print(roles)


def short(text: str, limit: int = 160) -> str:
    """``text`` on one line, its middle cut where it is longer than ``limit``."""
    line = " ".join(text.split())
    half = limit // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def _share(part: int, whole: int, what: str) -> str:
    return f"{part} of {whole} {what} ({part / whole:.0%})" if whole else f"no {what} to count"
