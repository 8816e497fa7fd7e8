"""Plan a compile before it starts: examples, calls, tokens, and the gain that it can show."""

from __future__ import annotations

from contextlib import closing

import dspy
import pydantic

from rb_dspy.backbones import active
from rb_dspy.backbones.usage import price_of
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.optimizers import MINIBATCH, OPTIMIZERS, optimizer_name
from rb_dspy.compile.steps import STEPS, CompileStep, step_module
from rb_dspy.errors import InputError
from rb_dspy.evaluation import Arm, detectable
from rb_dspy.evaluation.plan import check_truth, settings_of
from rb_dspy.learner import check_bank
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.pace import silent
from rb_dspy.protocols import Embedder
from rb_dspy.schema import RoleUsage
from rb_dspy.stream import Streams, run_stream
from rb_dspy.text import counted

PILOT = 2
"""Tasks that ``measure_compile`` runs."""
WINDOW = (2, 10)
"""Minimum and maximum tasks of a window: a lesson comes from one task and helps with another."""
GOOD_SAMPLE = 30
"""Held-out tasks that show a gain of about 15 points in eight orders."""


class CompilePlan(pydantic.BaseModel, frozen=True):
    """What a compile will do.

    Calls, tokens and cost are upper estimates, without answers from the cache and without the reflection model; they
    are None until ``measure_compile`` has run two tasks.
    """

    optimizer: str
    step: str
    budget: int
    orders: int
    window: int
    """Tasks of one example if the whole program is compiled; else 1."""
    tasks: dict[str, int]
    """Part -> tasks."""
    train: int
    """Examples to compile on; for a single step the maximum."""
    dev: int
    """Examples to choose by; for a single step the maximum."""
    runs: int
    """Runs of a task, at most."""
    calls: int | None = None
    """Calls of language models."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    """In US dollars; None if a price is unknown."""
    detectable: float | None
    """The gain that the held-out part shows in 80 % of compiles; None if it can show none."""

    @property
    def tokens(self) -> int | None:
        """Prompt and completion tokens together."""
        both = self.prompt_tokens, self.completion_tokens
        return None if both[0] is None or both[1] is None else both[0] + both[1]

    @property
    def price(self) -> str:
        """The cost as text; empty if it is unknown."""
        return "" if self.cost is None else f", about ${self.cost:.2f}"

    def __str__(self) -> str:
        held_out, orders = self.tasks["held_out"], f" x {counted(self.orders, 'order')}" if self.step == "all" else ""
        examples = "windows" if self.window > 1 else "examples"
        of_tasks = f" of {self.window} tasks" if self.window > 1 else ""
        use = f"calls and cost are measured on the first {counted(PILOT, 'task')}"
        if self.calls is not None:
            use = f"{self.calls:,} calls, {self.tokens:,} tokens{self.price}"
        shown = f"{counted(held_out, 'held-out task')}{orders} can show"
        gain = f"{shown} a gain of {100 * self.detectable:.0f} points" if self.detectable else f"{shown} no gain"
        better = detectable(GOOD_SAMPLE, self.orders if self.step == "all" else 1)
        if held_out < GOOD_SAMPLE and better is not None:
            gain += f"; {GOOD_SAMPLE} tasks: {100 * better:.0f}"
        return (
            f"{self.optimizer} on {self.train} {examples}{of_tasks}, {self.dev} of dev; budget {self.budget};"
            f" at most {counted(self.runs, 'run')} of a task: {use}. {gain}."
        )


def plan_compile(
    program: BankProgram,
    streams: Streams,
    optimizer: str | dspy.Teleprompter = "gepa",
    *,
    step: CompileStep = "all",
    budget: int = 100,
    bank: MemoryBank | None = None,
    orders: int = 8,
    window: int | None = None,
    jobs: int = 1,
) -> CompilePlan:
    """Plan ``compile_program`` with these arguments: examples, runs, and the gain that it can show.

    No language model is called; ``measure_compile`` adds calls, tokens and cost.

    Raises:
        InputError: An argument is invalid.
    """
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise InputError(f"unknown optimizer {optimizer!r}; expected {', '.join(OPTIMIZERS)}, or a dspy optimizer")
    if not isinstance(optimizer, str) and not callable(getattr(optimizer, "compile", None)):
        raise InputError(f"got {type(optimizer).__name__} for optimizer; expected a name or an optimizer of DSPy")
    if step not in STEPS:
        raise InputError(f"unknown step {step!r}; expected {', '.join(STEPS)}")
    for name, value in (("budget", budget), ("jobs", jobs), ("orders", orders), ("window", window)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InputError(f"{name} is {value!r}; expected a number of at least 1")
    if not isinstance(program, BankProgram):
        raise InputError(f"got {type(program).__name__} for program; expected a ReasoningBank, or a MaTTS")
    if not isinstance(streams, Streams):
        raise InputError(f"got {type(streams).__name__} for streams; expected Streams, as split_streams returns them")
    if bank is not None:
        check_bank(bank)
    step_module(program, step)
    parts = {name: getattr(streams, name) for name in ("compile", "dev", "held_out")}
    for stream in parts.values():
        check_truth(stream, program)
    rollouts = program.config.k if isinstance(program, MaTTS) else 1
    size = (window or _window(streams)) if step == "all" else 1
    each = rollouts if step == "judge" else 1
    train, dev = (len(part.windows(size)) * each for part in (streams.compile, streams.dev))
    dev = min(dev, most_dev(budget))
    if step == "all":
        check_budget(budget, train, dev)
    scored = len(streams.dev) + len(streams.held_out)
    # Of a single step, one run of each part gives the examples; scoring runs at most the step, before and after.
    runs = 2 * orders * scored if step == "all" else len(streams.compile) + 3 * scored
    return CompilePlan(
        optimizer=optimizer_name(optimizer),
        step=step,
        budget=budget,
        orders=orders,
        window=size,
        tasks={name: len(stream) for name, stream in parts.items()},
        train=train,
        dev=dev,
        runs=budget * size + runs,
        detectable=detectable(len(streams.held_out), orders if step == "all" else 1),
    )


def measure_compile(
    plan: CompilePlan,
    program: BankProgram,
    streams: Streams,
    *,
    bank: MemoryBank | None = None,
    embedder: Embedder | str | None = None,
) -> CompilePlan:
    """The plan with calls, tokens and cost, estimated from the first two tasks to compile on, which are run for this.

    Raises:
        BackboneError: A language model cannot be used at all.
        InfrastructureError: The tasks break.
    """
    first = streams.compile[:PILOT]
    fork = bank.fork() if bank else MemoryBank.open(None, scope="compile", embedder=embedder)
    with closing(fork):
        report = run_stream(program, first, fork, on_progress=silent, stop_after=len(first))
    usage = report.summary().usage
    times, used = plan.runs / len(first), sum(usage.values(), RoleUsage())
    paid = price_of(usage, settings_of(Arm(program, backbones=program.backbones or active())).models)
    measured = {
        "calls": round(times * used.calls),
        "prompt_tokens": round(times * used.prompt_tokens),
        "completion_tokens": round(times * used.completion_tokens),
        "cost": None if paid is None else times * paid,
    }
    return plan.model_copy(update=measured)


def check_budget(budget: int, train: int, dev: int) -> None:
    """Raise ``InputError`` if the budget is below twice dev and two minibatches of train."""
    least = 2 * dev + min(train, 2 * MINIBATCH)
    if budget < least:
        raise InputError(
            f"a budget of {budget} metric calls is too small for {train} examples to compile on and {dev} of dev;"
            f" expected at least {least}"
        )


def most_dev(budget: int) -> int:
    """Maximum number of dev examples, so that the budget covers several candidates."""
    return max(4, budget // 8)


def _window(streams: Streams) -> int:
    """A size that gives enough windows to compile on and to choose by."""
    least, most = WINDOW
    return max(least, min(most, len(streams.compile) // 6, len(streams.dev) // 4))
