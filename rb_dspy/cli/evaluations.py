"""``rb-dspy evaluations``: what stored evaluations did, task by task."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, one_line, out, print_rollout, say, table
from rb_dspy.errors import InputError
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.evaluation.records import TaskRecord

FOLDER = Path("rb-evaluations")
"""The default folder of evaluations."""

_CONTENT = 240
"""Maximum number of characters that are shown of a lesson's content."""

app = typer.Typer(no_args_is_help=True, help="Stored evaluations: their tasks, transcripts and rows.")

Place = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of an evaluation, or a postgresql:// URL.")]


@app.command("list", epilog="Example: `rb-dspy evaluations list`")
@options.shared
def list_evaluations(
    folder: Annotated[str, typer.Argument(help="The folder of their folders, or a postgresql:// URL.")] = str(FOLDER),
) -> None:
    """List the evaluations in a folder or a database, oldest first."""
    from rb_dspy.evaluation.records import PLAN, journal_of, read_records

    if "://" in folder:
        with closing(journal_of(folder)) as journal:
            ids = [run.id.partition(".")[0] for run in journal.runs("evaluation-") if run.id.endswith(f".{PLAN}")]
        for id in ids:
            done = len(read_records(folder, id))
            emit({"evaluation": id, "done": done})
            say(f"{id}  {counted(done, 'task')} done")
        if not ids:
            say("no evaluations yet; rb-dspy evaluate --on URL starts one")
        return
    paths = sorted(Path(folder).glob("*"))
    found = [(run, path) for path in paths if (run := journal_of(path).run(PLAN)) is not None]
    shown = table("folder", "started", "arms", "tasks", "done", right=("tasks", "done"))
    for run, path in sorted(found, key=lambda each: str(each[0].head["created_at"])):
        plan, records = run.head["plan"], read_records(path)
        about = {"folder": path, "started": run.head["created_at"], "arms": plan["names"], "tasks": plan["tasks"]}
        emit({**about, "done": len(records)})
        arms = Text(", ".join(plan["names"]))
        shown.add_row(Text(str(path)), about["started"][:10], arms, str(plan["tasks"]), f"{len(records):,}")
    out.print(shown) if found else say(f"{folder}: no evaluations yet; rb-dspy evaluate starts one")


@app.command(epilog="Example: `rb-dspy evaluations show rb-evaluations/desk --rows rows.csv`")
@options.shared
def show(
    place: Place,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Id of a task, for its transcripts.")] = None,
    evaluation: Annotated[
        str, typer.Option(metavar="ID", help="Which evaluation of a database: the beginning of its id.")
    ] = "",
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row for each task, arm and order to this .csv or .parquet file."),
    ] = None,
) -> None:
    """Show each task of an evaluation with the orders in which each arm solved it, or the transcripts of one task."""
    from rb_dspy.evaluation.records import read_records, transcript

    records = read_records(place, evaluation)
    if not records:
        raise InputError(f"{place}: no results of an evaluation; expected a folder such as {FOLDER}/NAME")
    if rows is not None:
        _write(rows, [record.model_dump(mode="json") for record in records])
        say(f"{counted(len(records), 'row')} in {rows}")
        return
    arms = list(dict.fromkeys(record.arm for record in records))
    if task is None:
        instructions = {record.task: record.instruction for record in records}
        ids = min(40, max(map(len, instructions)))
        counts = max(len(f"{len(records)} of {len(records)}"), *map(len, arms)) + 2
        room = max(20, out.width - ids - counts * len(arms) - 4)
        shown = table("task", *arms, "instruction", right=tuple(arms))
        for id, instruction in instructions.items():
            of_task = {arm: [each for each in records if (each.task, each.arm) == (id, arm)] for arm in arms}
            solved = {arm: sum(bool(each.solved) for each in found) for arm, found in of_task.items()}
            orders = {arm: len(found) for arm, found in of_task.items()}
            emit({"task": id, "instruction": instruction, "solved": solved, "orders": orders})
            cells = [f"{solved[arm]} of {len(of_task[arm])}" for arm in arms]
            shown.add_row(Text(one_line(id, 40)), *cells, Text(one_line(instruction, room), "dim"))
        out.print(shown)
        _print_arms({arm: [each for each in records if each.arm == arm] for arm in arms})
        return
    chosen = [record for record in records if record.task == task]
    if not chosen:
        raise InputError(f"{place}: has no task {task!r}; rb-dspy evaluations show {place} lists them")
    if chosen[0].instruction:
        say((chosen[0].instruction, "bold"))
    for record in sorted(chosen, key=lambda each: (arms.index(each.arm), each.order)):
        rollouts = transcript(place, record.run_id, task)
        emit({**record.model_dump(mode="json"), "trajectories": [each.model_dump(mode="json") for each in rollouts]})
        result = {True: ("solved", "green"), False: ("not solved", "yellow"), None: ("unknown", "dim")}[record.solved]
        say((f"\n{record.arm}, order {record.order + 1}, position {record.position}", "bold"), "  ", result)
        if record.error:
            say((record.error, "red"))
        if record.recalled:
            say((f"lessons shown: {_lessons(record.recalled, record.recalled_content)}", "dim"))
        for rollout in rollouts:
            print_rollout(rollout)
        if record.verdict:
            say(f"verdict: {record.verdict}")
        if record.learned:
            say((f"learned: {_lessons(record.learned, record.learned_content)}", "dim"))


def _lessons(titles: Sequence[str], contents: Sequence[str]) -> str:
    """Each lesson on a line: its title, and the beginning of its content."""
    lines = [
        one_line(title) + (f": {one_line(content, _CONTENT)}" if content else "")
        for title, content in zip_longest(titles, contents[: len(titles)], fillvalue="")
    ]
    return lines[0] if len(lines) == 1 else "".join(f"\n  - {line}" for line in lines)


def _print_arms(records: dict[str, list[TaskRecord]]) -> None:
    """What each arm learns from, and what it shows and asks a task."""
    columns = {"tokens_shown": "tokens shown", "tokens_beyond": "beyond the cap", "calls": "calls"}
    shown = table("arm", "signal", *columns.values(), right=tuple(columns.values()))
    for arm, found in records.items():
        known = {name: [value for each in found if (value := getattr(each, name)) is not None] for name in columns}
        means = {name: fmean(values) if values else None for name, values in known.items()}
        emit({"arm": arm, "signal": found[0].signal, **means})
        cells = ("-" if mean is None else f"{mean:,.1f}" for mean in means.values())
        shown.add_row(Text(arm), found[0].signal or "-", *cells)
    out.print("\na task:", shown)


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows; what is a list or a table becomes JSON. Raises ``InputError`` for another kind of file."""
    flat = [
        {name: json.dumps(each) if isinstance(each, list | dict) else each for name, each in row.items()}
        for row in rows
    ]
    if not file.parent.is_dir():
        raise InputError(f"{file.parent}: no such folder; create it, or give another path")
    if file.suffix == ".csv":
        with file.open("w", encoding="utf-8", newline="") as text:
            writer = csv.DictWriter(text, flat[0])
            writer.writeheader()
            writer.writerows({name: _cell(each) for name, each in row.items()} for row in flat)
    elif file.suffix == ".parquet":
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        pq.write_table(pa.Table.from_pylist(flat), file)
    else:
        raise InputError(f"{file}: expected a name that ends with .csv or .parquet")


def _cell(value: Any) -> Any:
    """A cell that a spreadsheet does not take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
