"""``rb-dspy bank export``, ``import``, ``snapshot``, ``reindex``, ``doctor``: a bank is moved, named, checked."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rb_dspy import plugins
from rb_dspy.bank import MemoryBank, portability
from rb_dspy.bank.admission import checked_name
from rb_dspy.cli.bank_common import AtOption, chosen_settings, counted, opened, show_below
from rb_dspy.cli.bank_embedder import named, of_all_scopes, of_any_embedder, watched
from rb_dspy.cli.common import BankOption, ConfigOption, JsonOption, ScopeOption, command_name, err, out, print_json
from rb_dspy.config import BankConfig
from rb_dspy.errors import CorruptBank

app = typer.Typer()


@app.command("export")
def export_(
    file: Annotated[str, typer.Argument(help="Where to; - is standard output.")] = "-",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    at: AtOption = None,
    json_: JsonOption = False,
) -> None:
    """Write a scope as JSON Lines: every experience whole, with its provenance."""
    with opened(config, bank, scope, at) as kept, err.status("writing …"):
        if file == "-":
            _to_stdout(kept)
            return
        number = kept.export_jsonl(file)
        waiting = len(kept.pending())
    if json_:
        print_json({"path": file, "experiences": number, "pending": waiting})
        return
    out.print(Text(f"{counted(number, 'experience')} written to {file}"), soft_wrap=True)
    if waiting:
        out.print(
            f"left out, since nobody has learned from them: the rollouts of {counted(waiting, 'task')};"
            f" {command_name()} resume does",
            soft_wrap=True,
        )


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="What `bank export` wrote.")],
    origin: Annotated[
        str, typer.Option("--origin", metavar="NAME", help="Who brought it; `bank rollback origin:NAME` undoes it.")
    ] = "",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Append what was exported; what is here already is not repeated. Makes the bank where there is none."""
    chosen = chosen_settings(config, bank, scope).bank
    # A file that cannot be used makes no bank, nor does a name.
    portability.read(file, chosen.scope, origin=checked_name("origin", origin) if origin else "")
    with ExitStack() as open_:
        embedder = open_.enter_context(watched(plugins.embedder(chosen.embedder), "importing"))
        with named():
            kept = open_.enter_context(MemoryBank.open(chosen.url, scope=chosen.scope, embedder=embedder))
        before = kept.stats().experiences
        read = len(kept.import_jsonl(file, origin=origin))
        new = max(0, kept.stats().experiences - before)
    if json_:
        print_json({"path": file, "experiences": read, "new": new})
        return
    known = f"; {read - new:,} were here before" if read > new else ""
    place = f"{chosen.url}, scope {chosen.scope}"
    out.print(Text(f"{counted(new, 'experience')} imported into {place}{known}"))


@app.command()
def snapshot(
    name: Annotated[str, typer.Argument(help="A name for the present state.")],
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Name the present state, for good."""
    with opened(config, bank, scope) as kept:
        made = kept.snapshot(name)
    if json_:
        print_json(made)
    else:
        told = f"{made.name} is the state at number {made.seq}; list, show, search and export take "
        out.print(Text.assemble(told, (f"--at {shlex.quote(made.name)}", "bold")))


@app.command()
def reindex(
    embedder: Annotated[
        str | None, typer.Option("--embedder", metavar="NAME", help="Move the whole bank to this one; default: stay.")
    ] = None,
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Make the index new; with --embedder also all vectors, of all scopes."""
    chosen = chosen_settings(config, bank, scope).bank
    if embedder is None:
        with opened(config, bank, scope) as kept, err.status("building the index …"):
            made = kept.reindex()
            name = kept.stats().embedder
    else:
        with (
            watched(plugins.embedder(embedder), "embedding") as new,
            _whole(chosen, scope) as kept,
        ):
            made = kept.reindex(new)
            name = kept.stats().embedder
    if json_:
        print_json({"embedder": name, "vectors": made})
    elif embedder is None:
        out.print("the index is new")
    else:
        out.print(Text(f"{counted(made, 'vector')} made; the bank belongs to {name} now"), soft_wrap=True)
        if embedder != chosen.embedder:
            setting = f"bank.embedder = {json.dumps(embedder, ensure_ascii=False)}"
            out.print(Text.assemble("set ", (setting, "bold"), " in rb.toml, so that it opens"), soft_wrap=True)


@app.command()
def doctor(
    config: ConfigOption = None, bank: BankOption = None, scope: ScopeOption = None, json_: JsonOption = False
) -> None:
    """Read everything, of all scopes; say what is wrong with it and what to do. Exits with 6 when there is an error."""
    chosen = chosen_settings(config, bank, scope).bank
    with _whole(chosen, scope) as kept:
        with err.status("reading everything …"):
            findings = kept.doctor()
        scopes = len(kept.scopes())
    for finding in findings:
        if json_:
            print_json(finding)
            continue
        colour = "red" if finding.severity == "error" else "yellow"
        parts = (finding.severity, colour), " ", (finding.kind, "dim"), " ", (finding.where, "bold")
        out.print(Text.assemble(*parts))
        show_below(Text(f"{finding.what}\n→ {finding.remedy}"))
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        raise CorruptBank(f"the doctor found {counted(errors, 'error')}; what to do stands with each")
    if not json_:
        warned = f"nothing is lost; {counted(len(findings), 'warning')}" if findings else "all is well"
        out.print(f"{warned} in {counted(scopes, 'scope')}")


def _whole(chosen: BankConfig, scope: str | None) -> MemoryBank:
    """A bank for what is done to all its scopes; ``scope``: the command's own option, which must be there."""
    with_any = of_all_scopes if scope is None else of_any_embedder
    return with_any(chosen.url, chosen.scope)


def _to_stdout(bank: MemoryBank) -> None:
    """Whole or not at all, as into a file."""
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "export.jsonl"
        bank.export_jsonl(aside)
        with aside.open("rb") as file:
            sys.stdout.flush()
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
