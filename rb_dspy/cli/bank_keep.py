"""What keeps a bank: ``rb-dspy bank export``, ``import``, ``snapshot``, ``reindex``, ``doctor``, ``backup`` ..."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rb_dspy.cli import work
from rb_dspy.cli.again import bank_command
from rb_dspy.cli.bank_common import chosen_settings, show_below
from rb_dspy.cli.common import err, out, print_json
from rb_dspy.cli.options import AtOption, BankOption, ConfigOption, JsonLinesOption, JsonOption, ScopeOption
from rb_dspy.errors import CorruptBank, InputError
from rb_dspy.text import counted
from rb_dspy.tracking.addresses import without_secrets

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank

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
    with work.opened_bank(config, bank, scope, at) as kept, err.status("writing …"):
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
        told = f"left out, since nobody has learned from them: the rollouts of {counted(waiting, 'task')}"
        out.print(Text(f"{told}; {bank_command('resume', config, bank, scope)} does"), soft_wrap=True)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="What `bank export` wrote; - is standard input.")],
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
    with _readable_again(file) as kept:
        done = work.import_experiences(kept, chosen, origin)
    if json_:
        counts = {"experiences": done.read, "new": done.new, "removed": done.gone, "others": done.others}
        print_json({"path": file, **counts})
        return
    here = max(0, done.read - done.new - done.gone)
    known = f"; {here:,} {'was' if here == 1 else 'were'} here before" if here else ""
    place = f"{without_secrets(chosen.url)}, scope {chosen.scope}"
    out.print(Text(f"{counted(done.new, 'experience')} imported into {place}{known}"))
    if done.gone:
        was, stay, them = ("was", "stays", "it") if done.gone == 1 else ("were", "stay", "them")
        told = f"{done.gone:,} of those in the file {was} deleted or rolled back here, and {stay} away"
        again = f"to have {them} again, import into another --scope or --bank"
        out.print(Text(f"{told}; {again}", "yellow"), soft_wrap=True)
    if done.others:
        has, stay = ("has", "stays") if done.others == 1 else ("have", "stay")
        told = f"{done.others:,} of those in the file {has} other lessons here, and {stay} as here"
        edit = bank_command("bank edit ID", config, bank, scope)
        again = f"to change lessons that are here, {edit}; to take the file's, another --scope"
        out.print(Text(f"{told}; {again}", "yellow"), soft_wrap=True)


@app.command()
def snapshot(
    name: Annotated[str, typer.Argument(help="A name for the present state.")],
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Name the present state, for good."""
    with work.opened_bank(config, bank, scope) as kept:
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
    """Make vectors that are missing, in all scopes; with --embedder, move the bank to another embedding model."""
    chosen = chosen_settings(config, bank, scope).bank
    if embedder is None:
        with work.whole_bank(chosen, scope, embeds=True) as kept, err.status("embedding …"):
            made = kept.reindex()
            name = kept.stats().embedder
    else:
        made, name = work.move_bank(embedder, chosen, scope)
    if json_:
        print_json({"embedder": name, "vectors": made})
    elif embedder is None:
        out.print(f"{counted(made, 'vector')} made" if made else "no vector was missing")
    else:
        out.print(Text(f"{counted(made, 'vector')} made; the bank belongs to {name} now"), soft_wrap=True)
        if embedder != chosen.embedder:
            setting = f"bank.embedder = {json.dumps(embedder, ensure_ascii=False)}"
            out.print(Text.assemble("set ", (setting, "bold"), " in rb.toml, so that it opens"), soft_wrap=True)


@app.command()
def doctor(
    config: ConfigOption = None, bank: BankOption = None, scope: ScopeOption = None, json_: JsonLinesOption = False
) -> None:
    """Read everything, of all scopes; say what is wrong with it and what to do. Exits with 6 when there is an error."""
    chosen = chosen_settings(config, bank, scope).bank
    with err.status("reading everything …"):
        findings, scopes = work.examined(chosen, scope)
    for finding in findings:
        if json_:
            print_json(finding)
            continue
        out.print(Text.assemble(("error", "red"), " ", (finding.kind, "dim"), " ", (finding.where, "bold")))
        show_below(Text(f"{finding.what}\n→ {finding.remedy}"))
    if findings:
        raise CorruptBank(f"the doctor found {counted(len(findings), 'error')}; what to do stands with each")
    if not json_:
        out.print(f"all is well in {counted(scopes, 'scope')}")


@app.command()
def backup(
    file: Annotated[str, typer.Argument(help="Where the copy goes; nothing may be there.")],
    config: ConfigOption = None,
    bank: BankOption = None,
    json_: JsonOption = False,
) -> None:
    """Copy the bank's file, whole, all scopes, also while others write to it; restore puts a copy back."""
    chosen = chosen_settings(config, bank, None).bank
    with err.status("copying …"):
        work.copied_bank(chosen, file)
    if json_:
        print_json({"path": chosen.url, "copy": file})
        return
    out.print(Text(f"{file} is a copy of {chosen.url}"), soft_wrap=True)


@app.command()
def restore(
    copy: Annotated[str, typer.Argument(help="A copy of a bank's file; it is only read.")],
    config: ConfigOption = None,
    bank: BankOption = None,
    json_: JsonOption = False,
) -> None:
    """Put a copy in the bank's place, whole, all scopes, once it was checked; what was there is moved aside."""
    chosen = chosen_settings(config, bank, None).bank
    with err.status("checking the copy …"):
        aside = work.restored_bank(chosen, copy)
    if json_:
        print_json({"path": chosen.url, "copy": copy, "moved_aside": None if aside is None else str(aside)})
        return
    was = f"what was there is {aside} now" if aside else "nothing was there before"
    out.print(Text(f"{chosen.url} is as the copy {copy}; {was}"), soft_wrap=True)


@contextlib.contextmanager
def _readable_again(file: Path) -> Iterator[Path]:
    """``file``, or what standard input gives as one: an import is checked as a whole before it is read."""
    if str(file) != "-":
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "import.jsonl"
        with aside.open("wb") as kept:
            shutil.copyfileobj(sys.stdin.buffer, kept)
        try:
            yield aside
        except InputError as exc:
            raise InputError(str(exc).replace(str(aside), "standard input")) from None


def _to_stdout(bank: MemoryBank) -> None:
    """Whole or not at all, as into a file."""
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "export.jsonl"
        bank.export_jsonl(aside)
        with aside.open("rb") as file:
            sys.stdout.flush()
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
