"""What a compile works on: the program, its streams, and the examples that are made of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import dspy
import pydantic

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.answers import Cast
from rb_dspy.compile.balance import chosen
from rb_dspy.compile.broken import first_error
from rb_dspy.compile.examples import to_plain
from rb_dspy.compile.gather import UNKNOWN
from rb_dspy.compile.harvest import Harvest, harvest as harvested
from rb_dspy.compile.identity import named_embedder
from rb_dspy.compile.parts import OwnPart, part
from rb_dspy.compile.progress import Teller
from rb_dspy.compile.result import Hashes, Split
from rb_dspy.compile.stages import Stage, stage_module
from rb_dspy.compile.state import digest, prompts_of, signature_hash
from rb_dspy.compile.truth import check_truth, may_be_scored, no_truth
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.protocols import Embedder
from rb_dspy.steps import Judge
from rb_dspy.stream import RunReport, Streams, TaskStream, fingerprint, stream_example

log = logging.getLogger("rb_dspy")

WINDOW = (2, 10)
"""Fewest and most tasks of a window where nobody says how many: lessons need a task to come from and one to go to."""


@dataclass(frozen=True)
class Plan:
    """What a compile works on."""

    work: BankProgram
    streams: Streams
    stage: Stage
    bank: MemoryBank | None
    embedder: Embedder | str | None
    budget: int
    seed: int
    orders: int
    threads: int
    window: int | None
    given: Harvest | None
    """Examples of the compile stream that there are already."""

    def check(self) -> None:
        """Raise ``InputError`` where it can be told by now that nothing could be scored."""
        first = () if self.given is not None else (self.streams.compile,)
        check_truth((*first, self.streams.dev, self.streams.held_out), self.work.environments)

    def module(self, program: BankProgram) -> dspy.Module:
        """What is compiled of ``program``."""
        return stage_module(program, self.stage, bank=self.bank, embedder=self.embedder)

    def harvest(self, name: str, stream: TaskStream, cast: Cast, teller: Teller) -> Harvest:
        """Examples from a run of the program as it was."""
        most = self.work.config.k if isinstance(self.work, MaTTS) else 1
        left = len(stream)

        def on_task(rollouts: int) -> None:
            nonlocal left
            left -= 1
            teller.harvest(rollouts, to_come=left * most)

        teller.phase(f"harvesting the {name} stream", to_harvest=left * most)
        with cast.playing():
            found = harvested(
                self.work,
                [stream],
                self.bank,
                embedder=self.embedder,
                on_report=_check_alive,
                on_task=on_task,
            )
        cast.check()
        return found

    def hashes(self) -> Hashes:
        """What it is compiled for and on."""
        streams = self.streams
        return Hashes(
            signatures=signature_hash(self.work),
            compile=streams.compile.digest,
            dev=streams.dev.digest,
            held_out=streams.held_out.digest,
            bank=_bank_digest(self.bank),
        )

    def tasks(self) -> dict[str, Split]:
        """The fingerprint of every task -> its part."""
        streams = self.streams
        parts: dict[Split, TaskStream] = {  # of one that stands in several, the last counts
            "held_out": streams.held_out,
            "dev": streams.dev,
            "compile": streams.compile,
        }
        return {fingerprint(task): part for part, stream in parts.items() for task in stream}

    def identity(self) -> dict[str, Any]:
        """What makes it another compile."""
        own = self.hashes().model_dump()
        data = {f"{name} tasks": own[name] for name in ("compile", "dev", "held_out")}
        settings = {name: getattr(self, name) for name in ("stage", "budget", "seed", "orders", "window")}
        program = {
            "signatures": own["signatures"],
            "prompts": digest(prompts_of(self.work)),
            "settings": digest(_settings(self.work)),
            **{what: each.name for what, each in self.parts().items()},
        }
        data |= {"bank": own["bank"], "embedder": named_embedder(self.bank, self.embedder)}
        return {**settings, **program, **data, "harvest": digest(_rows(self.given))}

    def parts(self) -> dict[str, OwnPart]:
        """What the program has of the caller's own besides prompts: what runs in it, judges and chooses."""
        work = self.work
        found = {"environments": part(work.environments)}
        if type(work.judge) is not Judge:
            found["judge"] = part(work.judge)
        if work.retrieve.reranker is not None:
            found["reranker"] = part(work.retrieve.reranker)
        return found


@dataclass(frozen=True)
class Examples:
    """What a compile has to work with."""

    train: list[Any]
    """To compile on."""
    dev: list[Any]
    """To choose by: verdicts in equal parts, of successes and of failures (``rb_dspy.compile.balance``)."""
    all_dev: list[Any]
    held_out: list[Any]
    """To score; empty for ``all``, which is scored on whole streams."""


def examples_of(plan: Plan, cast: Cast, teller: Teller) -> Examples:
    """The examples of all three streams, so that one without any is refused before the budget is spent."""
    compile_, dev = plan.streams.compile, plan.streams.dev
    held_out: list[Any] = []
    if plan.stage == "all":
        size = plan.window or _window(plan.streams)
        train, all_dev = (_windows(plan, stream, size) for stream in (compile_, dev))
    else:
        _check_given(plan)
        train = found_in(plan, plan.given or plan.harvest("compile", compile_, cast, teller), compile_)
        all_dev = found_in(plan, plan.harvest("dev", dev, cast, teller), dev)
        held_out = found_in(plan, plan.harvest("held-out", plan.streams.held_out, cast, teller), plan.streams.held_out)
    most = max(4, plan.budget // 8)  # so that a budget pays for rating several candidates
    return Examples(train, chosen(all_dev, most, f"{plan.seed}/dev"), all_dev, held_out)


def found_in(plan: Plan, harvest: Harvest, stream: TaskStream) -> list[Any]:
    """The examples of a harvest from ``stream``. Raises ``InputError`` where there is none."""
    examples = harvest.examples(plan.stage)
    if not examples:
        if set(harvest.left_out[plan.stage]) == {UNKNOWN}:
            raise no_truth(stream)
        raise InputError(
            f"{stream.name}: its runs gave no example for stage {plan.stage!r}"
            f" ({'; '.join(harvest.summary().splitlines())}); give more tasks, or compile stage 'all'"
        )
    return examples


def _windows(plan: Plan, stream: TaskStream, size: int) -> list[Any]:
    """An example for each window of ``stream`` that can be scored, as far as it can be told by now."""
    every = stream.windows(size)
    found = [each for each in every if may_be_scored(each, plan.work.environments)]
    if len(found) < len(every):
        log.warning(
            "%s: %d of %d windows have no task with ground truth, and are left out",
            stream.name,
            len(every) - len(found),
            len(every),
        )
    return [stream_example(each) for each in found]


def _check_given(plan: Plan) -> None:
    """Prompts may be written from the tasks of the compile stream only."""
    known = {(task.id, task.instruction) for task in plan.streams.compile}
    for example in plan.given.examples(plan.stage) if plan.given else ():
        task = example.task
        if (task.id, task.instruction) not in known:
            raise InputError(
                f"harvest: task {task.id} is not in the compile stream {plan.streams.compile.name}, and prompts may"
                " be written from that one only; give a harvest of it, or none"
            )


def _check_alive(report: RunReport) -> None:
    error = first_error(report)
    if error:
        raise InfrastructureError(f"the program breaks on every task that was tried, nothing was spent; first: {error}")


def _window(streams: Streams) -> int:
    """A size that gives enough windows to compile on and to choose by."""
    least, most = WINDOW
    return max(least, min(most, len(streams.compile) // 6, len(streams.dev) // 4))


def _bank_digest(bank: MemoryBank | None) -> str:
    if bank is None:
        return ""
    with bank.fork() as fork:  # a snapshot of the fork leaves nothing in the bank
        return fork.snapshot("compile").digest


def _settings(program: dspy.Module) -> list[Any]:
    """How the program is set up: the kinds of its modules and their configurations."""
    found = []
    for name, module in program.named_sub_modules():
        config = getattr(module, "config", None)
        told = config.model_dump(mode="json") if isinstance(config, pydantic.BaseModel) else ""
        found.append([name, type(module).__name__, told])
    return found


def _rows(harvest: Harvest | None) -> Any:
    """A harvest as JSON values."""
    if harvest is None:
        return None
    return {stage: [to_plain(stage, example) for example in found] for stage, found in harvest.taught.items()}
