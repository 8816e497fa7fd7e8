"""What ``rb-dspy backbones matrix`` tells: the table, and what to compile again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from rb_dspy.cli.again import as_argument, options, settings_options
from rb_dspy.cli.bar import short_number
from rb_dspy.cli.common import CONFIG_FILE, command_name, out, settings
from rb_dspy.cli.prompts import is_registered
from rb_dspy.cli.scored import change, in_words, share
from rb_dspy.config_file import load_settings
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.compile.matrix import Matrix
    from rb_dspy.stream import TaskStream


def print_head(stream: TaskStream, orders: int, *, programs: int, backbones: int) -> None:
    """Before it begins: which tasks, and how many programs are run on how many backbones."""
    cells = f"{counted(programs, 'program')} on {counted(backbones, 'backbone')}"
    out.print(Text.assemble((stream.name, "bold"), f"  {size(stream, orders)}, {cells}"))


def size(stream: TaskStream, orders: int) -> str:
    """How much a cell has to do."""
    return counted(len(stream), "task") + (f" in {orders} orders" if orders > 1 else "")


def print_matrix(found: Matrix) -> None:
    """A line for every cell, and what went wrong in those that could not be run, unless it was told already."""
    from rb_dspy.compile.matrix import UNCOMPILED, shown  # brings scipy

    if found.left_out:
        out.print(Text(f"{counted(found.left_out, 'task')} left out: no ground truth", "yellow"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("backbone", "program", "solved", f"against {UNCOMPILED}", "judge", "tokens"):
        named = heading in ("backbone", "program")
        right = heading in ("judge", "tokens")
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=not named)
    for cell in found.cells:
        names = Text(cell.backbone), Text(shown(cell.program))
        if cell.error or cell.success is None:
            table.add_row(*names, "-", Text("could not be run", "red"), "-", short_number(cell.tokens))
            continue
        against = Text("")
        if cell.difference is not None:
            against = Text.assemble(change(cell.difference), "\n", in_words(cell.difference.says, short=True))
        agreed = "-" if cell.judge_agreement is None else f"{cell.judge_agreement:.0%}"
        if cell.judge_base_rate is not None:
            agreed += f"\nbase {cell.judge_base_rate:.0%}"
        if cell.judge_balanced is not None:
            agreed += f"\nbal. {cell.judge_balanced:.0%}"  # no longer than the line before: 80 columns are full
        solved = share(cell.success) + (f"\n{cell.broken} broke" if cell.broken else "")
        table.add_row(*names, solved, against, agreed, short_number(cell.tokens))
    out.print(table)
    told = (
        f"{UNCOMPILED}: the program without compiled prompts; in brackets, 95 % intervals; judge: in how many of the"
        " tasks that it judged it said what ground truth says; base: the same of one that always says the same; bal.:"
        " the mean of its right shares of solved and of unsolved tasks, 50 % for such a one, to compare judges by"
    )
    out.print(Text(told, "dim"), soft_wrap=True)
    for cell in found.cells:
        if cell.error and not cell.unusable:
            out.print(Text.assemble((f"{shown(cell.program)} on {cell.backbone}: ", "bold"), (cell.error, "red")))


def print_next(
    found: Matrix,
    models: Mapping[str, str],
    programs: Mapping[str, str],
    same: list[str] | None,
    config: Path | None,
    overrides: Iterable[str] | None,
) -> None:
    """Where more tasks are needed, what to compile again, and how.

    ``same``: options that compile takes as this command does; None where it would compile on what was measured.
    """
    few = ", ".join(f"{cell.program} on {cell.backbone}" for cell in found.cells if cell.too_few)
    if few:
        runs = any(cell.difference and cell.difference.says == "too few orders to tell" for cell in found.cells)
        more = "--orders 3, or more, may tell" if runs else "more tasks, or a compile with a larger --budget, may tell"
        told = f"\ntoo few {'orders' if runs else 'tasks'} to tell whether it is better than without: "
        out.print(Text.assemble(told, (few, "bold"), f"; {more}"), soft_wrap=True)
    errors = {(cell.program, cell.backbone) for cell in found.cells if cell.error}
    again = [pair for pair in found.to_recompile() if pair not in errors]
    if not again:
        return
    told = ", ".join(f"{program} for {backbone}" for program, backbone in again)
    out.print(Text.assemble("\nnot better than without, so compile again: ", (told, "bold")))
    if same is None:
        out.print(Text("on other tasks than these, or they say nothing any more", "dim"), soft_wrap=True)
        return
    program, backbone = again[0]
    given = programs[program]
    there = Path(given) if Path(given).is_dir() else Path(program)
    on = _played_by(models[backbone], config, overrides)
    command = [command_name(), "compile", *same, *on, *options(out=there / f"{backbone}.json")]
    out.print(Text.assemble("for example: ", (" ".join(command), "bold")), soft_wrap=True)
    told = f"then --program {as_argument(f'{program}={there}')} takes for each backbone the file of its name"
    if there != Path(given) and not is_registered(given):
        told += f", and for others {there / 'default.json'}: copy {given} there"
    out.print(Text("on a model that it was compiled on already: with a larger --budget", "dim"), soft_wrap=True)
    out.print(Text(told, "dim"), soft_wrap=True)


def _played_by(model: str, config: Path | None, overrides: Iterable[str] | None) -> list[str]:
    """Options that let ``model`` play all roles as it did here: nothing of the backbones in the settings is left."""
    others = [each for each in overrides or () if not each.strip().startswith(("backbones.", "backbones="))]
    if not model.endswith(".toml"):
        if "backbones" not in settings(config, others).model_fields_set:
            return settings_options(config, [*others, f"backbones.agent.model={model}"])
        played: dict[str, dict[str, Any]] = {"agent": {"model": model}}
    elif config is None and not CONFIG_FILE.exists():
        return settings_options(Path(model), others)
    else:
        loaded = load_settings(Path(model)).backbones
        played = {role: each.model_dump(mode="json", exclude_unset=True) for role, each in loaded.items()}
    return settings_options(config, [*others, f"backbones={_as_toml(played)}"])


def _as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_as_toml(each)}" for name, each in value.items() if each is not None) + "}"
    return json.dumps(value, ensure_ascii=False)
