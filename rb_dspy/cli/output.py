"""What commands print: safe text, tables, JSON, one line for an error."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rb_dspy.errors import InputError, StorageError
from rb_dspy.pace import Pace, Step
from rb_dspy.redaction import redact, without_secrets
from rb_dspy.text import printable, short_number as short_number


class SafeConsole(Console):
    """A console that escapes control characters, because tasks, answers and lessons may contain any text.

    Print such text as ``rich.text.Text``, because rich cannot escape every backslash and bracket in markup.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else segment._replace(text=text)

    def print(self, *objects: Any, **options: Any) -> None:
        if not self.quiet:  # rich would lay out everything first
            super().print(*objects, **options)


SECONDS = 30.0
"""Time between two lines of progress."""
MANY_CALLS = 1_000
"""Number of language model calls above which the user must confirm."""

out = SafeConsole(highlight=False, soft_wrap=False, emoji=False)
"""Standard output; ``quiet`` with ``--json``, when only ``emit`` prints."""
err = SafeConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def say(*parts: str | tuple[str, str]) -> None:
    """Print a line to standard output, wrapped by the terminal. ``parts``: texts, or texts with a style."""
    out.print(Text.assemble(*parts), soft_wrap=True)


def print_row(console: Console, text: Text, indent: int) -> None:
    """Print ``text`` on one line: cut at the width of a terminal, whole in a file."""
    row = Text(" " * indent) + text
    if console.is_terminal:
        console.print(row, no_wrap=True, overflow="ellipsis")
    else:
        console.print(row, soft_wrap=True)


def table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines. Nothing is cut, because other commands need ids and names; an id stays on one line."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(
            Text(heading),
            no_wrap=heading == "id",
            overflow="fold",
            min_width=21 if heading == "id" else max(map(len, heading.split()), default=0),
            justify="right" if heading in right else "left",
        )
    return made


def facts() -> Table:
    """A table of names and values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def one_line(text: str, limit: int = 80) -> str:
    """``text`` on one line; if it is longer than ``limit``, its end is cut between two words."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    whole = line[:limit].rpartition(" ")[0]
    return f"{whole if len(whole) > limit // 2 else line[: limit - 1]}…"


def rollout_number(rollout_id: str) -> str:
    """The number of a rollout as people read it: from 1."""
    return str(int(rollout_id) + 1) if rollout_id.isdecimal() and len(rollout_id) < 10 else one_line(rollout_id)


def print_rollout(trajectory: Any, note: str = "") -> None:
    """Print each step: thought, action and observation. ``note`` follows the reason why it ended."""
    out.print(
        Text.assemble(
            "\n", (f"rollout {rollout_number(trajectory.rollout_id)}", "bold"), f" ({trajectory.stop_reason}{note})"
        )
    )
    out.print(Padding(Text(trajectory.first_observation), (0, 0, 0, 2)))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9, justify="right", style="bold")
    grid.add_column(overflow="fold")
    for place, step in enumerate(trajectory.steps, 1):
        if step.thought:
            grid.add_row(f"step {place}", Text(step.thought, "dim"))
        grid.add_row("" if step.thought else f"step {place}", Text(f"→ {step.action}", "cyan"))
        if step.observation:
            grid.add_row("", Text(step.observation, "dim"))
    out.print(grid)


def usage_table(usage: Any) -> Table:
    """Calls, tokens and seconds by role."""
    numbers = ("calls", "prompt tokens", "output tokens", "seconds")
    shown = table("role", *numbers, right=numbers)
    for role, used in usage.items():
        calls = f"{used.calls:,}" + (f" ({used.cached_calls} cached)" if used.cached_calls else "")
        cells = (calls, f"{used.prompt_tokens:,}", f"{used.completion_tokens:,}", f"{used.seconds:.1f}")
        shown.add_row(Text(str(role)), *cells)
    return shown


def command_line(context: typer.Context) -> str:
    """The command that runs, to be copied, without secrets."""
    return redact(without_secrets(shlex.join(["rb-dspy", *(context.find_root().obj or ())])))


def confirm(question: str) -> None:
    """Ask the user to confirm; ends the command on no. Raises ``InputError`` without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("this command needs a confirmation, but there is no terminal; pass --yes")
    typer.confirm(question, abort=True, err=True)


def confirm_cost(calls: int, *, yes: bool) -> None:
    """Ask the user to confirm many language model calls, if there is a terminal and not ``yes``."""
    if calls > MANY_CALLS and not yes and sys.stdin.isatty() and sys.stdout.isatty():
        confirm("start?")


@contextmanager
def ends_on_interrupt(text: str) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print ``interrupted: text`` and end the command."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(Text(f"interrupted: {text}"))
        raise typer.Exit(130) from None


@contextmanager
def bar(about: str) -> Iterator[Callable[[Step], None]]:
    """Show progress: a bar on a terminal, else a line every ``SECONDS``; as JSON on standard output with ``--json``.

    Yields the function that is called with each report.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    pace, ended = Pace(about), threading.Event()
    terminal = SafeConsole(file=sys.stderr, highlight=False)  # also while stderr is redirected
    lines = sys.stdout if out.quiet else sys.stderr

    def tell() -> None:
        while not ended.wait(SECONDS):
            with suppress(OSError):
                print(json.dumps(pace.row()) if out.quiet else pace, file=lines, flush=True)

    columns = (BarColumn(bar_width=16), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bars:
        task = bars.add_task(about, total=None)

        def show(step: Step) -> None:
            pace(step)
            bars.update(task, completed=step.done, total=step.total, description=str(pace))

        teller = threading.Thread(target=tell, daemon=True)
        if out.quiet or not terminal.is_terminal:
            teller.start()
        try:
            yield show
        finally:
            ended.set()
            if teller.is_alive():
                teller.join()


@contextmanager
def library_log(path: Path) -> Iterator[None]:
    """Send what libraries print and log inside the block to a file for its owner. Raises ``StorageError``."""
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")
    except OSError as exc:
        raise StorageError(f"{path}: cannot be written: {exc.strerror}") from exc
    with file, redirect_stderr(file), redirect_stdout(file):
        yield


def print_diff(diff: str) -> None:
    """Print a unified diff in color."""
    styles = {"---": "bold", "+++": "bold", "@@": "dim", "+": "green", "-": "red"}
    for line in diff.splitlines():
        style = next((style for sign, style in styles.items() if line.startswith(sign)), "")
        out.print(Text(line, style), soft_wrap=True)


def emit(value: Any) -> None:
    """If the command was asked for JSON, print ``value`` as one line of it; pydantic models in their own form."""
    if not out.quiet:
        return
    print(json.dumps(value, default=to_jsonable_python), flush=True)  # ASCII: safe for every terminal and encoding
