"""``compile_program``: compile better prompts on streams of tasks, and measure the gain."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import dspy

from rb_dspy.backbones import Backbones, active, metered
from rb_dspy.backbones.usage import entries_of, usage_of
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.examples import run_examples, stream_examples
from rb_dspy.compile.measure import compare_examples, compare_streams
from rb_dspy.compile.metric import MEASURES, PREFIX, Metric
from rb_dspy.compile.models import Models
from rb_dspy.compile.optimizers import Job, optimize, optimizer_name
from rb_dspy.compile.plan import check_budget, plan_compile
from rb_dspy.compile.progress import OnProgress, Reporter
from rb_dspy.compile.result import Candidate, Compiled, Part
from rb_dspy.compile.search import Budgeted, Search, Setup
from rb_dspy.compile.steps import CompileStep, step_module
from rb_dspy.matts import BankProgram
from rb_dspy.prompts import prompts_of, set_prompts, state_of
from rb_dspy.protocols import Embedder
from rb_dspy.stream import Streams, fingerprint


def compile_program(
    program: BankProgram,
    streams: Streams,
    optimizer: str | dspy.Teleprompter = "gepa",
    *,
    step: CompileStep = "all",
    budget: int = 100,
    reflection: Any = None,
    bank: MemoryBank | None = None,
    embedder: Embedder | str | None = None,
    orders: int = 8,
    window: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> Compiled:
    """Compile the prompts of ``program``, or of one step, and measure the change on held-out tasks.

    Language models use DSPy's cache. So an interrupted compile that is started again with the same arguments makes only
    the missing calls.

    Args:
        program: Not changed. If it has no backbones, the active ones are used, or DSPy's configured LM.
        streams: Tasks to compile on, to choose by, and to measure on; see ``split_streams``.
        optimizer: ``gepa``, ``miprov2``, ``simba``, ``bootstrap``, ``bootstrap_rs``, or an optimizer of DSPy; for
            its metric see ``rb_dspy.compile.metric.Metric``.
        step: ``all``: the whole program, on windows of a stream. ``judge``, ``select`` or ``agent``: one step, on
            examples from runs of the program; much cheaper.
        budget: Metric calls: runs of a candidate on an example. It excludes the runs that collect examples and the
            scoring before and after; ``plan_compile`` estimates the total.
        reflection: The model that proposes prompts: an LM, a ``BackboneConfig`` or a name; None: the agent's.
        bank: Every run starts with a fork of this bank; None: an empty bank.
        embedder: Embedder of the empty bank.
        orders: Number of orders in which the streams are scored; only for a whole program.
        window: Tasks in each example of a whole program; None: from 2 to 10, by the length of the streams.
        seed: Seed of the optimizer, the sampling of examples and the orders.
        jobs: Examples run in parallel. Above 1, DSPy runs an example again if it takes longer than two minutes.
        on_progress: Called after every metric call, task and example.

    Returns:
        The compiled program, its scores before and after on dev and held-out, the prompts, and the usage.

    Raises:
        InputError: An argument is invalid, or there is no ground truth.
        BackboneError: A language model cannot be used at all.
        InfrastructureError: A server is down.
    """
    planned = plan_compile(
        program, streams, optimizer, step=step, budget=budget, bank=bank, orders=orders, window=window, jobs=jobs
    )
    models = Models(program.backbones or active(), reflection)
    with Backbones().use(), metered() as ledger:  # the LM of ``dspy.context`` plays every role
        reporter = Reporter(on_progress, budget, ledger.usage)
        work = _copy(program)
        setup = Setup(work, step, streams, bank, embedder, models, reporter, budget, orders, seed, jobs)
        examples = stream_examples(setup, planned.window) if step == "all" else run_examples(setup)
        check_budget(budget, len(examples.train), len(examples.dev))

        search = Search(setup, Metric(step, work), examples.dev)
        student = Budgeted(step_module(work.deepcopy(), step), search)
        reporter.phase(optimizer_name(optimizer), budget)
        with dspy.track_usage() as reflected:
            best = optimize(optimizer, Job(student, search, examples.train, examples.dev, seed, jobs))

        before = prompts_of(work)
        chosen = {name.removeprefix(PREFIX): prompts for name, prompts in prompts_of(best).items()}
        after = {name: chosen.get(name, prompts) for name, prompts in before.items()}
        compiled = work.deepcopy()
        set_prompts(compiled, after)
        changed = compiled if after != before else None
        if step == "all":
            dev, held_out = (compare_streams(setup, changed, part) for part in (streams.dev, streams.held_out))
        else:
            dev, held_out = (compare_examples(setup, changed, examples.scored[p], p) for p in ("dev", "held_out"))
    compiled.backbones = program.backbones
    parts: tuple[Part, ...] = ("compile", "dev", "held_out")
    return Compiled(
        program=compiled,
        state=state_of(compiled),
        optimizer=optimizer_name(optimizer),
        step=step,
        budget=budget,
        metric_calls=search.used,
        seed=seed,
        dev=dev,
        held_out=held_out,
        measure=MEASURES[step],
        prompts_before=before,
        prompts_after=after,
        candidates=[Candidate(score=score, prompts=prompts) for score, prompts in search.candidates()],
        usage=ledger.usage() | ({"reflection": usage_of(entries_of(reflected), 0.0)} if reflected.usage_data else {}),
        reflection=str(models.reflection.model),
        seconds=reporter.seconds,
        broken=search.broken,
        orders=held_out.orders,
        streams={part: getattr(streams, part).digest for part in parts},
        task_parts={fingerprint(task): part for part in parts for task in getattr(streams, part)},
        versions={"rb_dspy": version("rb-dspy"), "dspy": version("dspy")},
    )


def _copy(program: BankProgram) -> BankProgram:
    """A copy without backbones; optimizers can see and change all its predictors."""
    copied: BankProgram = program.deepcopy()
    copied.backbones = None
    for _, module in copied.named_sub_modules():
        if getattr(module, "_compiled", False):
            module._compiled = False
    return copied
