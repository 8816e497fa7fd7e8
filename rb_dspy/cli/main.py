"""Entry point: gathers the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Before dspy is imported: litellm would otherwise fetch a price list, which stalls for seconds without a network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import typer

from rb_dspy.cli import bank, envs, models, roles, run
from rb_dspy.cli.common import err
from rb_dspy.errors import RBError

app = typer.Typer(
    name="rb-dspy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Agents that learn from their own successes and failures.",
)
app.command("run")(run.run)
app.add_typer(bank.app, name="bank")
app.add_typer(roles.app, name="backbones")
app.add_typer(models.app, name="models")
app.command("envs")(envs.envs)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code; ``args`` default to the process's own.

    Exit codes: 0 done; 1 any other error of ours; 2 bad input or usage; 3 something is not installed or downloaded; 4 a
    language model cannot be used; 5 infrastructure broke; 6 the bank refused; 130 interrupted.
    """
    try:
        app(args=args)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except RBError as exc:
        err.print(f"[bold red]error:[/] {_escape(str(exc))}")
        return exc.exit_code
    except BrokenPipeError:  # the reader of our output has gone: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main())
