"""From a program and streams of tasks to a program with better prompts, and how much better."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import dspy

from rb_dspy.backbones import Backbones, metered
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.compile.budget import Record, all_broke, student_of
from rb_dspy.compile.folder import Folder, opened
from rb_dspy.compile.harvest import Harvest
from rb_dspy.compile.measure import rate_examples, rate_stream
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.optimizers import Job, optimize, optimizer_named
from rb_dspy.compile.plan import Plan, examples_of, found_in
from rb_dspy.compile.progress import OnProgress, Teller, silent
from rb_dspy.compile.result import Compiled, Found, Scores
from rb_dspy.compile.scores import Comparison, Ratings, compare
from rb_dspy.compile.stages import STAGES, Program, Stage
from rb_dspy.compile.state import Prompts, digest, prompts_of, set_prompts, state_of, thawed, with_prompts
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.protocols import Embedder
from rb_dspy.stream.orders import Streams
from rb_dspy.stream.tasks import TaskStream

MEASURES: dict[Stage, str] = {
    "judge": "verdicts that agree with the environment, of rollouts that went well and badly in equal number",
    "distill": "downstream credit of the lessons; 0.5 is no effect",
    "contrast": "downstream credit of the lessons; 0.5 is no effect",
    "select": "reward of the choice, from the worst rollout to the best, where they differ",
    "agent": "tasks solved with given lessons",
    "all": "tasks solved",
}

_PREFIX = "program."


def compile_program(
    program: Program,
    streams: Streams,
    *,
    optimizer: str = "gepa",
    stage: Stage = "all",
    budget: int = 100,
    bank: MemoryBank | None = None,
    embedder: Embedder | str | None = None,
    harvest: Harvest | None = None,
    seed: int = 0,
    reflection: Any = None,
    folder: str | Path | None = None,
    on_progress: OnProgress = silent,
    threads: int = 1,
    orders: int = 1,
    window: int | None = None,
    smoke: bool = True,
) -> Compiled:
    """Compile the prompts of ``program``, or of one step of it, and measure what that changed.

    ``stage``: a step (``judge``, ``distill``, ``contrast``, ``select``, ``agent``), compiled on examples that are
    harvested from runs; or ``all``, the whole program on windows of ``window`` tasks. ``optimizer``: ``gepa``,
    ``miprov2``, ``simba``, ``bootstrap`` or ``bootstrap_rs``. ``budget``: how often a candidate may be run on an
    example and rated; it is never exceeded. On top of it come one run to see that the program works at all (``smoke``;
    a program that breaks is refused before anything is spent), the runs that a step is harvested from, and the scoring
    before and after, of the dev and held-out streams in ``orders`` orders.

    Every run starts from a fork of ``bank``, else from an empty bank with ``embedder``. ``harvest``: examples of the
    compile stream that there are already. ``reflection``: who proposes prompts, an LM, a ``BackboneConfig`` or a
    model's name; None: the agent's. ``folder``: a compile that was stopped goes on there when it is started again with
    the same arguments, without asking a language model again for what it has answered.

    The language models are those of ``program``, of ``Backbones.use()``, or of ``dspy.configure``; ``program`` itself
    is not changed. Deterministic for ``seed`` as far as they are. Raises ``InputError`` for arguments that cannot work
    and for a folder of another compile, ``BackboneError``, and ``InfrastructureError`` where all that is run breaks.
    """
    optimizer_named(optimizer)
    _check(stage, budget=budget, threads=threads, orders=orders, window=window)
    work = program.deepcopy()
    backbones = work.backbones or dspy.settings.get("rb_dspy_backbones", None) or Backbones()
    work.backbones = None  # those of the compile are bound around every call
    thawed(work)
    plan = Plan(work, streams, stage, bank, embedder, budget, seed, orders, threads, window, harvest)
    identity = {
        "optimizer": optimizer,
        "models": digest([[role, lm.model] for role, lm in backbones.roles().items()]),
        "reflection": digest(getattr(reflection, "model", reflection)),
        **plan.identity(),
    }
    settings = {"disable_history": True, "rb_dspy_backbones": None}
    with opened(folder, identity) as place, dspy.context(**settings):
        if place.result is not None and place.result.exists():
            compiled = Compiled.load(place.result)
            compiled.program = _with(work, compiled.prompts_after)
            return compiled
        answers = Answers(place.answers)
        cast = Cast(backbones, answers, reflection)
        with metered() as ledger:
            teller = Teller(on_progress, budget, ledger, answers)
            made = _compiled(plan, optimizer, cast, teller, place, smoke=smoke)
            made.usage = ledger.usage()
        made.seconds = answers.seconds
        if place.result is not None:
            made.save(place.result)
        return made


def _compiled(
    plan: Plan,
    optimizer: str,
    cast: Cast,
    teller: Teller,
    place: Folder,
    *,
    smoke: bool,
) -> Compiled:
    module = plan.module(plan.work)
    state = state_of(plan.work)
    train, dev, all_dev = examples_of(plan, cast, teller)
    if smoke:
        teller.phase("seeing that the program works")
        _smoke(module, train[0], cast)
    teller.phase(f"{optimizer} on {len(train)} examples, {len(dev)} of dev")
    record = Record(
        metric_for(plan.stage, plan.work),
        dev,
        cast=cast,
        teller=teller,
        on_best=lambda prompts: place.keep_best(with_prompts(state, _own_names(prompts))),
        prefix=_PREFIX,
    )
    optimize(optimizer, Job(student_of(module, record), record, train, dev, plan.seed, plan.threads))
    best = record.best()
    before = prompts_of(plan.work)
    after = {**before, **_own_names(best[1])} if best else before
    program = _with(plan.work, after)
    return Compiled(
        program=program,
        state=state_of(program),
        optimizer=optimizer,
        stage=plan.stage,
        budget=plan.budget,
        metric_calls=record.calls,
        seed=plan.seed,
        scores=_scores(plan, program, all_dev, cast, teller, changed=after != before),
        measure=MEASURES[plan.stage],
        prompts_before=before,
        prompts_after=after,
        usage={},
        seconds=0.0,
        candidates=[Found(score=score, prompts=_own_names(prompts)) for score, prompts in record.candidates()],
        broken=record.broken,
        examples={"train": len(train), "dev": len(dev)},
        orders=plan.orders,
        hashes=plan.hashes(),
        versions={
            "python": platform.python_version(),
            **{name: installed(name) for name in ("rb-dspy", "dspy", "gepa", "optuna")},
        },
    )


def _smoke(module: dspy.Module, example: Any, cast: Cast) -> None:
    """Run one example, and raise what breaks it."""
    with cast.playing():
        prediction = module(**example.inputs())
    error = all_broke(prediction)
    if error:
        raise InfrastructureError(f"the program breaks on every task that was tried, nothing was spent; first: {error}")


def _scores(
    plan: Plan, program: Program, all_dev: Sequence[Any], cast: Cast, teller: Teller, *, changed: bool
) -> Scores:
    def scored(name: str, stream: TaskStream, examples: Sequence[Any] | None) -> Comparison:
        if plan.stage != "all" and examples is None:
            teller.phase(f"harvesting the {name} stream")
            examples = found_in(plan, plan.harvest(stream, cast), stream)
        teller.phase(f"scoring {name} before")
        before = rated(plan.work, stream, examples)
        teller.phase(f"scoring {name} after")
        return compare(before, rated(program, stream, examples) if changed else before)

    def rated(of: Program, stream: TaskStream, examples: Sequence[Any] | None) -> Ratings:
        module = plan.module(of)
        if plan.stage == "all":
            return rate_stream(module, stream, cast, orders=plan.orders, seed=plan.seed, threads=plan.threads)
        return rate_examples(module, examples or (), metric_for(plan.stage, plan.work), cast, threads=plan.threads)

    streams = plan.streams
    return Scores(
        dev=scored("dev", streams.dev, None if plan.stage == "all" else all_dev),
        held_out=scored("held-out", streams.held_out, None),
    )


def _with(program: Program, prompts: Prompts) -> Program:
    """A copy of ``program`` with ``prompts``."""
    copied: Program = program.deepcopy()
    set_prompts(copied, prompts)
    return copied


def _own_names(prompts: Prompts) -> Prompts:
    """Under the names that predictors have in the program itself."""
    return {name.removeprefix(_PREFIX): each for name, each in prompts.items()}


def _check(stage: str, *, budget: int, threads: int, orders: int, window: int | None) -> None:
    if stage not in STAGES:
        raise InputError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
    for name, value in (("budget", budget), ("threads", threads), ("orders", orders), ("window", window)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; expected at least 1")
