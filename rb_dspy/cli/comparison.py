"""``rb-dspy run --memory both``: the same tasks without memory, then with it, side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rb_dspy.backbones import active
from rb_dspy.bank import MemoryBank
from rb_dspy.cli.output import emit, ends_on_interrupt, err, out, print_row, table
from rb_dspy.config import Settings
from rb_dspy.errors import InfrastructureError
from rb_dspy.evaluation import Arm, evaluate
from rb_dspy.matts import BankProgram
from rb_dspy.plugins import family_attribute
from rb_dspy.schema import Task
from rb_dspy.stream import RunReport, TaskResult, TaskStream
from rb_dspy.text import counted, middle_cut


def compare_memory(program: BankProgram, name: str, tasks: Sequence[Task], chosen: Settings) -> None:
    """Evaluate ``tasks`` without memory, then with a bank that starts empty, and print both results of each task.

    Raises ``InfrastructureError`` if every task of one arm failed.
    """
    started = time.monotonic()
    without, with_memory = reports = RunReport("none"), RunReport("bank")
    model = (program.backbones or active()).lm("agent").model
    out.print(Text.assemble((name, "bold"), f"  {counted(len(tasks), 'task')}  ", (str(model), "dim")))
    status = out.status(Text("", "dim"))

    def waits() -> None:
        done = len(without.results) + len(with_memory.results)
        side = "without memory" if done < len(tasks) else "with memory"
        status.update(Text(f"{side}: task {done % len(tasks) + 1} of {len(tasks)} …", "dim"))

    def on_result(arm: str, result: TaskResult) -> None:
        report = without if arm == without.run_id else with_memory
        report.results.append(result)
        emit({"memory": "none" if report is without else "bank", **result.row()})
        if report is with_memory:
            before = next((each for each in without.results if each.task.id == result.task.id), None)
            marks = [Text("?") if before is None else _mark(before), _mark(result)]
            _show(result, len(report.results), marks)
        elif not out.is_terminal:  # a terminal shows a status instead
            _show(result, len(report.results), [_mark(result)])
        if report is without and len(report.results) == len(tasks):
            out.print(f"without memory: {report.score()}; now with memory")
            out.print(Text("marks: without memory, with memory", "dim"))
        waits()

    waits()
    opened = MemoryBank.open(None, scope="comparison", embedder=chosen.bank.embedder, trust=chosen.trust)
    with ends_on_interrupt("nothing was stored"), opened as bank:
        arms = {"none": Arm(program, "none"), "bank": Arm(program, "bank", bank=bank)}
        with status if out.is_terminal and not out.quiet else nullcontext():
            stream = TaskStream(name, tasks)
            evaluate(arms, stream, orders=1, seed=chosen.run.seed, embedder=chosen.bank.embedder, on_result=on_result)
        summary = _summary(tasks, without, with_memory)
    emit({"comparison": summary})
    _print(summary, time.monotonic() - started)
    for report in reports:
        if all(result.error for result in report.results):
            raise InfrastructureError(f"every task failed; last error: {report.results[-1].error}")


def _show(result: TaskResult, number: int, marks: Sequence[Text]) -> None:
    """Print the task and its answer on one line, and the learned lessons in full below."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=3, justify="right", style="dim")
    for _ in marks:
        grid.add_column(width=1)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(max_width=max(16, out.width // 3), no_wrap=True, overflow="ellipsis", style="cyan")
    done = result.prediction
    answer = "" if done is None else f"→ {middle_cut(str(done.answer))}"
    grid.add_row(str(number), *marks, Text(middle_cut(result.task.instruction, 400)), Text(answer))
    out.print(grid)
    indent = (0, 0, 0, 4 + 2 * len(marks))
    if result.error:
        out.print(Padding(Text(middle_cut(result.error, 400), "red"), indent))
    for item in () if done is None else done.memory_items:
        print_row(out, Text(" ".join(f"learned: {item.title}: {item.content}".split()), "dim"), indent[3])


def _mark(result: TaskResult) -> Text:
    if result.solved is None or (result.error and result.outcome is None):
        return Text("?", "red" if result.error else "dim")
    return Text("✓", "green") if result.solved else Text("✗", "yellow")


def _summary(tasks: Sequence[Task], without: RunReport, with_memory: RunReport) -> dict[str, Any]:
    """The comparison in numbers. ``facts_kept``: tasks whose lessons keep the fact, if the environment can tell."""
    unscored = {each.task.id for report in (without, with_memory) for each in report.results if each.solved is None}
    late = {task.id for task in tasks[len(tasks) // 2 :]} - unscored

    def late_solved(report: RunReport) -> int:
        return sum(bool(each.solved) for each in report.results if each.task.id in late)

    before, after = without.summary(), with_memory.summary()
    numbers = {
        "tasks": len(tasks),
        "scored": len(tasks) - len(unscored) if before.scored or after.scored else 0,
        "without": before.solved,
        "with": after.solved,
        "without_broke": without.score().broke,
        "with_broke": with_memory.score().broke,
        "judge_right": after.agreements,
        "judged": after.judged,
        "errors": before.infrastructure_errors + after.infrastructure_errors,
        "second_half": len(late),
        "without_second_half": late_solved(without),
        "with_second_half": late_solved(with_memory),
    }
    keeps_fact = family_attribute(tasks[0].env, "keeps_fact", None)
    if keeps_fact is not None:
        numbers["facts_kept"] = sum(
            any(keeps_fact(each.task, f"{item.title} {item.content}") for item in each.prediction.memory_items)
            for each in with_memory.results
            if each.prediction is not None
        )
    return numbers


def _print(numbers: dict[str, Any], seconds: float) -> None:
    shown = table("", "without memory", "with memory", right=("without memory", "with memory"))
    shown.title, shown.title_justify, shown.title_style = "the same tasks", "left", "bold"
    scored, sides = numbers["scored"], ("without", "with")
    broke = [f", {numbers[f'{side}_broke']} broke" if numbers[f"{side}_broke"] else "" for side in sides]
    shown.add_row("solved", *(_of(numbers[side], scored) + lost for side, lost in zip(sides, broke, strict=True)))
    shown.add_row("second half", *(_of(numbers[f"{side}_second_half"], numbers["second_half"]) for side in sides))
    out.print()
    out.print(shown)
    facts = f"; {numbers['facts_kept']} of {numbers['tasks']} lessons keep the fact" if "facts_kept" in numbers else ""
    judge = f"with memory the judge was right on {numbers['judge_right']} of {numbers['judged']}"
    took = f"{seconds / 60:.1f} minutes" if seconds > 60 else f"{seconds:.0f} seconds"
    out.print(f"{judge}{facts}; {took}", soft_wrap=True)
    if numbers["errors"]:
        err.print(Text(f"{counted(numbers['errors'], 'error')}: tasks with an error count as not solved", "yellow"))
    if not scored:
        out.print("\nNo task has a known answer, so nothing can be compared; add answers to the tasks", soft_wrap=True)
        return
    out.print(
        f"\nWith memory {numbers['with']} of {scored} tasks were solved{broke[1]}, without {numbers['without']}"
        f"{broke[0]}. To try another model, add --set agent=PROVIDER/MODEL; to measure the difference on your own"
        " tasks: rb-dspy evaluate TASKS",
        soft_wrap=True,
    )


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else "unknown"
