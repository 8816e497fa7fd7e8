"""Plan a compile before it starts: examples, calls, tokens, and the gain that it can show."""

from __future__ import annotations

from collections.abc import Mapping

import dspy
import pydantic

from rb_dspy.backbones import active
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.optimizers import MINIBATCH, check_optimizer, optimizer_name
from rb_dspy.compile.steps import STEPS, CompileStep, step_module
from rb_dspy.environments import make_environment
from rb_dspy.environments.question import ANSWERS
from rb_dspy.errors import InputError
from rb_dspy.evaluation import Arm, detectable, estimate
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.program import check_bank
from rb_dspy.stream import Streams, TaskStream
from rb_dspy.text import counted

WINDOW = (2, 10)
"""Minimum and maximum tasks of a window: a lesson comes from one task and helps with another."""
GOOD_SAMPLE = 30
"""Held-out tasks that show a gain of about 15 points in eight orders."""


class CompilePlan(pydantic.BaseModel):
    """What a compile will do. Calls, tokens and cost are rough upper estimates, without answers from the cache."""

    model_config = pydantic.ConfigDict(frozen=True)

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
    calls: int
    """Calls of language models."""
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """In US dollars; None if a price is unknown."""
    detectable: float | None
    """The gain that the held-out part shows in 80 % of compiles; None if it can show none."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def __str__(self) -> str:
        held_out, orders = self.tasks["held_out"], f" x {counted(self.orders, 'order')}" if self.step == "all" else ""
        examples = "windows" if self.window > 1 else "examples"
        of_tasks = f" of {self.window} tasks" if self.window > 1 else ""
        cost = "" if self.cost is None else f", about ${self.cost:.2f}"
        shown = f"{counted(held_out, 'held-out task')}{orders} can show"
        gain = f"{shown} a gain of {100 * self.detectable:.0f} points" if self.detectable else f"{shown} no gain"
        better = detectable(GOOD_SAMPLE, self.orders if self.step == "all" else 1)
        if held_out < GOOD_SAMPLE and better is not None:
            gain += f"; {GOOD_SAMPLE} tasks: {100 * better:.0f}"
        return (
            f"{self.optimizer} on {self.train} {examples}{of_tasks}, {self.dev} of dev; budget {self.budget};"
            f" at most {self.calls:,} calls, {self.tokens:,} tokens{cost}. {gain}."
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
    threads: int = 1,
) -> CompilePlan:
    """Plan ``compile_program`` with these arguments: examples, calls, tokens, and the gain that it can show.

    No language model is called. Calls of the reflection model are not counted.

    Raises:
        InputError: An argument is invalid.
    """
    check_optimizer(optimizer)
    if step not in STEPS:
        raise InputError(f"unknown step {step!r}; expected {', '.join(STEPS)}")
    for name, value in (("budget", budget), ("threads", threads), ("orders", orders), ("window", window)):
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
    usage, cost = _usage(program, parts, step, runs=budget * size, orders=orders)
    return CompilePlan(
        optimizer=optimizer_name(optimizer),
        step=step,
        budget=budget,
        orders=orders,
        window=size,
        tasks={name: len(stream) for name, stream in parts.items()},
        train=train,
        dev=dev,
        calls=usage[0],
        prompt_tokens=usage[1],
        completion_tokens=usage[2],
        cost=cost,
        detectable=detectable(len(streams.held_out), orders if step == "all" else 1),
    )


def _usage(
    program: BankProgram, parts: Mapping[str, TaskStream], step: CompileStep, *, runs: int, orders: int
) -> tuple[list[int], float | None]:
    """Calls, prompt tokens and completion tokens, and the cost. ``runs``: tasks that the optimizer runs."""
    arm = Arm(program, backbones=program.backbones or active())
    usage = [0, 0, 0]
    cost: float | None = 0.0
    for part, stream in parts.items():
        once = estimate({"before": arm, "after": arm}, stream, orders=1)  # two runs of the stream
        # A single step: half for the run that gives the examples; scoring costs at most one run before and one after.
        first = 0.0 if step == "all" else 0.5
        times = first + (runs / len(stream) / 2 if part == "compile" else orders if step == "all" else 1)
        each = (once.calls, once.prompt_tokens, once.completion_tokens)
        usage = [so_far + round(times * more) for so_far, more in zip(usage, each, strict=True)]
        cost = None if cost is None or once.cost is None else cost + times * once.cost
    return usage, cost


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


def check_truth(stream: TaskStream, program: BankProgram) -> None:
    """Raise ``InputError`` if the stream is empty, or has only questions without a known answer.

    Other environments say only at the end of a rollout whether there is ground truth.
    """
    if not len(stream):
        raise InputError(f"{stream.name}: has no tasks; expected at least one")
    questions = program.environments is make_environment and all(task.env == "question" for task in stream)
    if questions and all(task.env_args.keys().isdisjoint(ANSWERS) for task in stream):
        raise no_truth(stream)


def no_truth(stream: TaskStream) -> InputError:
    """The error for a stream without ground truth."""
    question = stream.tasks[0].env == "question"
    cure = "put the answers into env_args.answer" if question else "let Environment.outcome return it"
    return InputError(f"{stream.name}: no task has ground truth, so nothing can be scored; {cure}")


def _window(streams: Streams) -> int:
    """A size that gives enough windows to compile on and to choose by."""
    least, most = WINDOW
    return max(least, min(most, len(streams.compile) // 6, len(streams.dev) // 4))
