"""Entry point: the commands, and from an error to one line and an exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated, Any

# Before dspy is imported: litellm would otherwise fetch a price list, which stalls for seconds without a network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Keep MLflow's progress bars and notes out of the output.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")

import typer
from rich.text import Text

import rb_dspy
from rb_dspy.cli import (
    bank,
    compile,
    config,
    doctor,
    envs,
    evaluate,
    evaluations,
    memories,
    models,
    programs,
    run,
    runs,
    work,
)
from rb_dspy.cli.output import err
from rb_dspy.errors import RBError, describe_error
from rb_dspy.text import printable

app = typer.Typer(
    name="rb-dspy",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Agents that learn from their own successes and failures.",
)


def _examples(*lines: str) -> str:
    return "\n\n".join(["Examples:", *(f"- `rb-dspy {line}`" for line in lines)])


_RUN = "run tasks.jsonl --bank lessons.sqlite", "run directory -n 16 --memory both", 'run --task "Who owns quartz?"'
_OWN = "evaluate tasks.jsonl --agent my_agent:mine --score my_agent:right"
_ARMS = "evaluate tasks.jsonl --arms none,bank,exprag,awm --signal outcome --jobs 4"
_EVALUATE = "evaluate tasks.jsonl --screen", _ARMS, _OWN
_COMPILE = "compile tasks.jsonl --step judge --budget 60", "compile tasks.jsonl --optimizer miprov2 --register desk"
app.command(epilog=_examples(*_RUN))(run.run)
app.command(epilog=_examples(*_EVALUATE))(evaluate.evaluate)
app.command(epilog="Example: `rb-dspy work postgresql://me@host/evaluations --jobs 24`")(work.work)
app.command(epilog="Example: `rb-dspy learn --bank lessons.sqlite`")(bank.learn)
app.command("compile", epilog=_examples(*_COMPILE))(compile.compile_)
app.add_typer(evaluations.app, name="evaluations")
app.add_typer(runs.app, name="runs")
app.add_typer(bank.app, name="bank")
app.add_typer(programs.app, name="programs")
app.add_typer(models.app, name="models")
app.command(epilog="Example: `rb-dspy doctor --bank lessons.sqlite`")(doctor.doctor)
app.command(epilog="Example: `rb-dspy envs directory`")(envs.envs)
app.command(epilog="Example: `rb-dspy memories`")(memories.memories)
app.command("config", epilog="Example: `rb-dspy config program.retrieve`")(config.config)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rb-dspy {rb_dspy.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before a command."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; ``args`` default to the process's own.

    Exit codes: 0 done; 1 any other rb_dspy error; 2 bad input or usage; 3 something is not installed or downloaded; 4 a
    language model cannot be used; 5 infrastructure broke; 6 the bank or the disk refused; 7 a budget is spent; 8 an
    evaluation has another verdict than was required; 130 interrupted, 143 ended by SIGTERM. If the reader of the output
    closes it early, as ``head`` does, the command ends quietly with 0.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal lacks are shown as escapes
            stream.reconfigure(errors="backslashreplace")
    code = 0
    with _signals() as received:
        try:
            code = _run(args)
            sys.stdout.flush()
        except KeyboardInterrupt:
            code = 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing at exit cannot fail
        except OSError as exc:
            if exc.filename is not None or exc.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = _fail(f"the output cannot be written: {exc.strerror or exc}", 6)
    return 128 + received[0] if received else code


def _run(args: Sequence[str] | None) -> int:
    try:
        app(args=args, obj=[*(sys.argv[1:] if args is None else args)])
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer turns it into exit code 1
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except RBError as exc:
        return _fail(describe_error(exc), exc.exit_code)
    return 0


def _fail(message: str, code: int) -> int:
    with suppress(OSError):
        err.print(Text.assemble(("error:", "bold red"), " ", printable(message)))
    return code


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM raise ``KeyboardInterrupt`` inside the block; yields a list with the signal's number."""
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number, handler in usual.items() if signal.getsignal(number) == handler]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        for number in ours:
            signal.signal(number, usual[number])


if __name__ == "__main__":
    sys.exit(main())
