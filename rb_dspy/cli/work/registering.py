"""What ``rb-dspy programs register`` does: a program is kept in MLflow."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from rb_dspy.cli import registered
from rb_dspy.cli.again import settings_options
from rb_dspy.cli.built import give_prompts, lessons, program_for
from rb_dspy.cli.common import command_name, out, print_json
from rb_dspy.cli.registered import registry
from rb_dspy.cli.scaling import settings_for
from rb_dspy.text import counted
from rb_dspy.tracking.names import check_name


def register_program(
    name: str,
    file: Path,
    *,
    matts: str | None,
    k: int | None,
    bank: str | None,
    scope: str | None,
    config: Path | None,
    set_: list[str] | None,
    json_: bool,
) -> None:
    """The options of the command; a name that cannot be is refused before the settings are looked at."""
    check_name(name)
    chosen = settings_for(config, set_, matts, k)
    program = program_for(chosen)
    compiled, _ = give_prompts(program, file, whole=True)
    with lessons(chosen, bank, scope) as held, registry(chosen.tracking, create=True) as place:
        from rb_dspy.tracking.registry import register as kept

        before = registered.champion(place, name)
        number = kept(
            place, compiled, program, name, backbones=chosen.backbones, bank=held, embedder=chosen.bank.embedder
        )
        found = registered.version(place, name, str(number))
    if json_:
        print_json(asdict(found))
        return
    head = Text(f"{name} version {number}", "bold")
    there = settings_options(config, set_, only="tracking")
    promotion = ""
    if "champion" in found.aliases:
        instead = f", in place of version {before.number}" if before is not None else ""
        out.print(Text.assemble(head, " is ", ("champion", "bold green"), instead))
    else:
        why = "held-out tasks do not say that it is better"
        if found.improved and before is not None:
            why = f"it is better than what it came from, but not known to be better than version {before.number}"
            promotion = " ".join([command_name(), "programs promote", name, str(number), "--force", *there])
        out.print(Text.assemble(head, f" is registered, not champion: {why}"), soft_wrap=True)
    out.print(Text(found.summary, "dim"), soft_wrap=True)
    if held is not None:
        inside = f"{counted(found.lessons, 'lesson')} of scope {found.scope} inside"
        out.print(Text(inside, "dim" if found.lessons else "yellow"), soft_wrap=True)
    look = " ".join([command_name(), "programs show", name, str(number), *there])
    out.print(Text.assemble("look at it: ", (look, "bold")), soft_wrap=True)
    if promotion:
        out.print(Text.assemble("make it champion all the same: ", (promotion, "bold")), soft_wrap=True)
