"""``rb-dspy bank list --experiences``: a line for each, as wide as the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from rb_dspy.cli.bank_common import line, show_below
from rb_dspy.cli.common import out
from rb_dspy.schema import Experience, Task

_RUN = 24
"""How wide the names of runs may be."""

_SHORT_RUN = 12
"""As long as the names that runs are given where nobody names them."""

_TASK = 18
"""How wide tasks are to be; what says less gives way until they are."""

_BETWEEN = 2
"""Spaces between two columns."""

_HASH = re.compile(r"/([0-9a-f]{16}|[0-9a-f]{10}(-\d+)?)$")
"""The end of an id that was made of what is to be done, of a text (after ``text/``) or a record of a file."""


def show_experiences(found: Sequence[Experience]) -> None:
    """A line for each, and under one without lessons why it has none; ``show`` tells what a narrow one leaves out."""
    cells = [
        {
            "id": each.id,
            "verdict": ", ".join(dict.fromkeys(verdict.label for verdict in each.verdicts)),
            "lessons": str(len(each.items)),
            "run": each.run_id,
        }
        for each in found
    ]
    widths = _widths({name: [name, *(each[name] for each in cells)] for name in ("id", "verdict", "lessons", "run")})
    tasks = [_named(each.task, widths["task"]) for each in found]
    widths["task"] = min(widths["task"], max(map(cell_len, ("task", *tasks))))
    part = _part(widths, headed=True)
    for each, task, shown in zip(found, tasks, cells, strict=True):
        texts = {name: Text(text, "dim" if name == "run" else "") for name, text in (shown | {"task": task}).items()}
        part.add_row(*(texts[name] for name in widths))
        if each.note and not each.items:
            out.print(part)
            show_below(Text(line(each.note, out.width - 2), "dim"))
            part = _part(widths, headed=False)
    if part.row_count:
        out.print(part)


def _widths(cells: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Of the columns that are shown, in order. Without room, names of runs are folded, then left out, and so on.

    An id is never cut, however narrow the terminal is: other commands take it.
    """
    id, verdict, lessons, run = (max(map(cell_len, column)) for column in cells.values())
    label = max(cell_len(word) for each in cells["verdict"] for word in each.split(" "))
    widths = {"id": id, "task": 0, "verdict": verdict, "lessons": lessons, "run": min(run, _RUN)}
    for given in ({}, {"verdict": label}, {"run": min(run, _SHORT_RUN)}, {"run": 0}, {"lessons": 0}, {"verdict": 0}):
        widths |= given
        room = out.width - sum(width + _BETWEEN for width in widths.values() if width)
        if room >= _TASK:
            break
    return {name: width for name, width in (widths | {"task": max(room, 1)}).items() if width}


def _part(widths: Mapping[str, int], *, headed: bool) -> Table:
    """Of fixed widths, so that what stands between two parts of the table moves no column."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_header=headed)
    for heading, width in widths.items():
        if heading == "id":
            made.add_column(heading, min_width=width, no_wrap=True)
        else:
            made.add_column(heading, width=width, overflow="fold")
    return made


def _named(task: Task, room: int) -> str:
    """Its id; where that is a hash, which tells nobody anything, what is to be done as well, cut to the ``room``."""
    if not _HASH.search(task.id):
        return line(task.id)
    from_text = task.id.startswith("text/")
    return line(task.instruction if from_text else f"{task.id}: {task.instruction}", room)
