"""How far a compile is: a line for each phase, and below them one bar, of metric calls, rollouts or scores."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from rb_dspy.compile.progress import Progress

_CALLS = "metric calls"


class CompileBar:
    """Prints the phases to ``console``; on a terminal it also shows the bar, for as long as it is entered."""

    def __init__(self, console: Console, budget: int, *, phases: bool = True) -> None:
        self.console = console
        self._phases = phases
        self._phase = ""
        self._bars = Bars(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]} ·"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._bars.add_task("", total=budget, said=_said(_CALLS, None, 0))

    def __enter__(self) -> CompileBar:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def on_progress(self, progress: Progress) -> None:
        """Show it. May be called from any thread."""
        if self._phases and progress.note != self._phase:
            self.console.print(Text(progress.note, "dim"))
        if progress.note != self._phase:
            self._phase = progress.note
            self._bars.tasks[0].finished_time = None  # else the clock stands still when a phase has come to its end
        tokens = sum(used.prompt_tokens + used.completion_tokens for used in progress.usage.values())
        what, done, total = _of(progress)
        if total is None:  # which update() takes for no change
            self._bars.tasks[0].total = self._bars.tasks[0].finished_time = None
        self._bars.update(self._bar, completed=done, total=total, said=_said(what, progress.best, tokens))


def _of(progress: Progress) -> tuple[str, int, int | None]:
    """What moves the bar in this phase, how far it is, and how far it goes, as far as that is known."""
    if progress.to_score:
        return "scored", progress.scored, progress.to_score
    if progress.harvested or progress.to_harvest:
        return "rollouts", progress.harvested, progress.to_harvest or None
    return _CALLS, progress.metric_calls, progress.budget


def _said(what: str, best: float | None, tokens: int) -> str:
    return f"{what} · best {'-' if best is None else f'{best:.2f}'} · {short_number(tokens)} tokens"


def short_number(number: int) -> str:
    """``950``, ``12.3k``, ``1.2M``."""
    for size, sign in ((1_000_000, "M"), (10_000, "k")):
        if number >= size:
            return f"{number / (1_000 if sign == 'k' else size):.1f}{sign}"
    return f"{number:,}"
