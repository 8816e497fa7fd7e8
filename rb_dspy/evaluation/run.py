"""``evaluate``: run arms over the same tasks in the same orders, interleaved, and report."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rb_dspy.bank import MemoryBank
from rb_dspy.concurrency import run_parallel
from rb_dspy.errors import InputError
from rb_dspy.evaluation.arms import ArmLike, oracle_bank, prepare
from rb_dspy.evaluation.build import build_report
from rb_dspy.evaluation.costs import PILOT, Estimate, estimate_of
from rb_dspy.evaluation.plan import (
    Cell,
    Lessons,
    Plan,
    Tasks,
    describe,
    describe_sources,
    no_truth,
    plan_of,
    settings_of,
    versions,
)
from rb_dspy.evaluation.progress import Counter, Progress, Stopped
from rb_dspy.evaluation.records import Records
from rb_dspy.evaluation.report import Report
from rb_dspy.matts import BankProgram
from rb_dspy.protocols import Embedder
from rb_dspy.stream import TaskResult, TaskStream
from rb_dspy.stream.run import Policy, Run


def evaluate(
    arms: Mapping[str, ArmLike] | Sequence[ArmLike],
    stream: Tasks,
    *,
    program: BankProgram | None = None,
    orders: int = 8,
    jobs: int = 1,
    seed: int = 0,
    baseline: str | None = None,
    lessons: Lessons | None = None,
    embedder: Embedder | str | None = None,
    folder: str | Path | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_result: Callable[[str, TaskResult], object] | None = None,
    stop_after: int = 3,
    unequal_signals: bool = False,
) -> Report:
    """Run every arm over the same tasks in the same orders, and compare them with the baseline, paired.

    After an error (a server or an environment fails) the task is retried once, whatever the outcome was; a task that
    breaks twice counts as a failure, and ``Comparison.clean`` leaves it out. Tasks without ground truth do not count.
    An arm without memory whose agent samples at temperature 0 is run in one order, which counts for all.

    Args:
        arms: At least two: names of memory systems, programs, ``(program, backbones)``, or ``Arm``; a dict names them.
        stream: The tasks.
        program: The program of arms that are only the name of a memory system.
        orders: Number of task orders: the original one, then permuted by ``seed`` + 1, ``seed`` + 2, ...
        jobs: Cells (an arm in an order) that run in parallel, in threads.
        seed: Seed of the orders, and of memory systems that draw at random.
        baseline: The arm to compare the others with; default: "none" if there is one, else the first arm.
        lessons: For arms that get right lessons, as "oracle" does: drafts, or a JSON Lines file; default: those of the
            environment's family.
        embedder: Embedder of the banks of arms without a bank.
        folder: Stores records, banks and the report; an interrupted evaluation continues from there.
        on_progress: Called after every task, from the thread that ran it, one call at a time.
        on_result: Called in the same way with the name of the arm and the result of the task.
        stop_after: Stop after this many tasks in a row that ended with an error.
        unequal_signals: Give a verdict also on two arms of which one learns from the judge, the other from the truth.

    Returns:
        The report, which is also in ``folder``. The same records give the same report.

    Raises:
        InputError: An argument cannot be used, the folder has another evaluation, or no task has ground truth.
        InfrastructureError: ``stop_after`` tasks in a row broke.
        BackboneError: A language model cannot be used at all.
    """
    if inspect.iscoroutinefunction(on_progress) or inspect.iscoroutinefunction(on_result):
        raise InputError("evaluate: on_progress or on_result is async; pass plain functions")
    for name, value in (("jobs", jobs), ("stop_after", stop_after)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"evaluate: {name} is {value!r:.40}; expected an integer of at least 1")
    plan = plan_of(arms, stream, program=program, orders=orders, seed=seed, baseline=baseline)
    of_cells: dict[str, Any] = {"lessons": lessons, "embedder": embedder, "on_progress": on_progress}
    of_cells["on_result"] = on_result
    with _open(plan, folder=folder, stop_after=stop_after, **of_cells) as cells:
        cells.run(jobs)
        settings = {name: settings_of(arm) for name, arm in plan.arms.items()}
        about: dict[str, Any] = {"seed": seed, "baseline": plan.baseline, "date": cells.records.date}
        about["unequal_signals"] = unequal_signals
        report = build_report(plan.orders, settings, cells.records.all(), versions=versions(), **about)
        if folder is not None and not cells.records.shared:
            report.save(folder)
    return report


def measure(
    arms: Mapping[str, ArmLike] | Sequence[ArmLike], stream: Tasks, *, folder: str | Path, jobs: int = 1, **options: Any
) -> Estimate:
    """Do the first eight tasks of each arm, and estimate the others from them; ``evaluate`` continues in ``folder``.

    ``options`` and errors are those of ``evaluate``.
    """
    usual = {"program": None, "orders": 8, "seed": 0, "baseline": None}
    plan = plan_of(arms, stream, **{name: options.pop(name, value) for name, value in usual.items()})
    with _open(plan, folder=folder, stop_after=3, **options) as cells:
        cells.run(jobs, PILOT)
        return estimate_of(plan, {name: cells.records.of((name, 0)) for name in plan.arms}, jobs)


@contextmanager
def _open(
    plan: Plan,
    *,
    folder: str | Path | None,
    stop_after: int,
    lessons: Lessons | None = None,
    embedder: Embedder | str | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_result: Callable[[str, TaskResult], object] | None = None,
) -> Iterator[_Cells]:
    stated = describe(plan) | describe_sources(plan, lessons=lessons, embedder=embedder)
    with ExitStack() as stack:
        oracle = None
        if any(arm.needs_lessons for arm in plan.arms.values()):
            oracle = stack.enter_context(oracle_bank(lessons, plan.orders[0], embedder))
        records = stack.enter_context(closing(Records(folder, plan, stated)))
        yield _Cells(plan, records, Counter(plan.total, records, on_progress, on_result), oracle, embedder, stop_after)


def screen(program: BankProgram, stream: Tasks, *, tasks: int = 20, **options: Any) -> Report:
    """Check whether any memory could help: no memory against oracle lessons, on the first ``tasks`` tasks.

    ``Report.headroom`` is "yes" if the oracle lessons gain at least 15 points and the interval lies above 0, "no" if it
    ends below 15 points, else "unclear": take more tasks. Choose other tasks than those of the evaluation. ``options``
    are those of ``evaluate``, such as ``lessons``; by default there is one order, because nothing is learned.
    """
    first = TaskStream.of(stream)[:tasks]
    return evaluate(["none", "oracle"], first, program=program, **{"orders": 1, **options})


@dataclass(frozen=True)
class _Cells:
    """Runs the cells of a plan."""

    plan: Plan
    records: Records
    counter: Counter
    oracle: MemoryBank | None
    embedder: Embedder | str | None
    stop_after: int

    def run(self, jobs: int, most: int | None = None) -> None:
        """Run all cells, ``jobs`` in parallel; after a failure or Ctrl-C, no other task starts.

        With ``most`` only the first tasks of the first cell of each arm.
        """
        first = [cell for cell in self.plan.cells if most is None or cell[1] == 0]
        self._pass(first, jobs, most)
        self.records.repeats = False
        while self.records.shared and most is None:  # others have cells, or had them and died
            self.records.read()
            if self.records.complete():
                return
            self.counter.check()
            time.sleep(1)
            self._pass(first, jobs, most)

    def _pass(self, cells: Sequence[Cell], jobs: int, most: int | None) -> None:
        if jobs == 1:
            for cell in cells:
                self._run(cell, most)
            return

        def run(cell: Cell) -> None:
            try:
                self.counter.check()
                self._run(cell, most)
            except BaseException:
                self.counter.stop()
                raise

        results = run_parallel([partial(run, cell) for cell in cells], jobs, wait=True)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Stopped))  # the error that stopped the others

    def _run(self, cell: Cell, most: int | None) -> None:
        name, order = cell
        arm, stream = self.plan.arms[name], self.plan.orders[order][:most]
        if len(self.records.done(cell)) >= len(stream):
            return
        number = list(self.plan.arms).index(name)
        program, environments = prepare(arm, order, seed=self.plan.seed, draw=order * len(self.plan.arms) + number)
        with ExitStack() as stack:
            if not stack.enter_context(self.records.lock(cell)):
                return
            if self.records.shared:
                self.records.read(cell)
            if arm.needs_lessons and self.oracle is not None:
                bank = self.oracle
            elif not arm.learns:
                bank = stack.enter_context(MemoryBank.open(None, scope="none", embedder=self.embedder))
            else:
                bank = stack.enter_context(self.records.open_bank(cell, arm.bank, self.embedder))
            again = "" if self.records.in_memory else " with the same folder to continue"
            remedy = f"evaluate again{again} (arm {name}, order {order})"
            policy = Policy(tries=2, stop_after=self.stop_after, afresh=True, remedy=remedy)
            record = self.records.runs[cell]
            run = Run(
                program, bank, record, learn=arm.learns, policy=policy, environments=environments, transcripts=True
            )

            def on_result(result: TaskResult) -> None:
                self.counter.add(cell, result)

            run.over(stream, self.records.done(cell), on_result=on_result, check=self.counter.check)
        if most is None and all(record.score is None for record in self.records.of(cell)):
            raise no_truth(stream)
