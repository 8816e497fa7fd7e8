"""Entry point: gathers the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, TextIO

# Before dspy is imported: litellm would otherwise fetch a price list, which stalls for seconds without a network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import typer
from rich.text import Text

import rb_dspy
from rb_dspy.cli import late
from rb_dspy.cli.common import err
from rb_dspy.cli.ending import told_to_end
from rb_dspy.errors import RBError, StorageError, describe_error
from rb_dspy.text import printable

app = typer.Typer(
    name="rb-dspy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Agents that learn from their own successes and failures.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"rb-dspy {rb_dspy.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """What can be given before a command."""


COMMANDS = {
    "run": (
        "rb_dspy.cli.run:run",
        "Run the program over a stream of tasks, learning from each; a second run goes on where the first ended.",
    ),
    "resume": (
        "rb_dspy.cli.resume:resume",
        "Learn from the rollouts that wait in a bank; no task is done again.",
    ),
    "compile": (
        "rb_dspy.cli.compile:compile_",
        "Compile the prompts for tasks of yours, and measure them on tasks that were kept apart.",
    ),
    "programs": ("rb_dspy.cli.programs:app", "Compiled programs in MLflow: versions, scores, who is champion."),
    "bank": ("rb_dspy.cli.bank:app", "Look into a bank, change it, keep it."),
    "backbones": ("rb_dspy.cli.roles:app", "The language models by role."),
    "models": ("rb_dspy.cli.models:app", "The language models that run on this machine."),
    "envs": ("rb_dspy.cli.envs:envs", "The environments, their templates, and how baselines do in them."),
    "settings": (
        "rb_dspy.cli.keys:settings_command",
        "Every key that rb.toml and --set take, with its default, what it is now, and what it means.",
    ),
}
"""Commands -> where they are, and what they do in one sentence, as their own help says it."""

for _name, (_where, _summary) in COMMANDS.items():
    late.add(app, _name, _where, _summary)


_YOUNG = 50_000
"""New objects between two looks for garbage, where Python has 700. What a run loads in its first task, torch for the
embedder above all, makes half a million that stay: each time they had grown by a quarter Python went through them all,
which was a sixth of what starting costs. ``gc.freeze`` would help only once all that is loaded, and then it is over."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code; ``args`` default to the process's own.

    Exit codes: 0 done; 1 any other error of ours; 2 bad input or usage; 3 something is not installed or downloaded; 4 a
    language model cannot be used; 5 infrastructure broke; 6 the bank or the disk refused; 130 interrupted, 143 by
    SIGTERM, which does what Ctrl-C does. Who interrupts again, while what is left is written, changes nothing.
    When the reader of the output goes before its end, as ``head`` does, the command stops there, quietly, with 0: who
    reads no further has what he wanted, and a script with ``pipefail`` goes on.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):  # what the terminal has no characters for is shown as escapes
            stream.reconfigure(errors="backslashreplace")
    if args is None:  # the process is ours
        gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    code = 0
    try:
        with told_to_end(last=args is None) as ending:
            try:
                code = _run(args)
            except KeyboardInterrupt:  # while what was interrupted before was put in order
                code = 130
        code = ending.code or code
        for stream in streams:
            stream.flush()  # what cannot be written is noticed here, not when Python ends
    except BrokenPipeError:
        _let_go(streams)
    except OSError as exc:
        if exc.errno not in _NO_ROOM or exc.filename is not None:
            raise
        _let_go(streams)
        what = f"the output cannot be written: {exc.strerror}; send it where there is room"
        code = code or _told(StorageError(what))
    return code


def _run(args: Sequence[str] | None) -> int:
    """Run, and give the exit code. Raises ``OSError`` where the output cannot be written."""
    try:
        app(args=args)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich make exit code 1 of it
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except RBError as exc:
        return _told(exc)
    return 0


def _told(error: RBError) -> int:
    """The exit code of an error that has been told in one line; where that cannot be written, the code says it all."""
    with suppress(OSError, SystemExit):
        err.print(Text.assemble(("error:", "bold red"), " ", printable(describe_error(error))))
    return error.exit_code


def _let_go(streams: Sequence[TextIO]) -> None:
    """What is left to be written where nothing can be goes nowhere: else Python would fail over it when it ends."""
    for stream in streams:
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):  # one that is no file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
