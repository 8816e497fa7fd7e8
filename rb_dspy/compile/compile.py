"""From a program and streams of tasks to a program with better prompts, and how much better."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy

from rb_dspy.backbones import active, metered
from rb_dspy.backbones.roles import no_backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.compile.broken import all_broke
from rb_dspy.compile.budget import Record
from rb_dspy.compile.folder import Folder, opened
from rb_dspy.compile.harvest import Harvest
from rb_dspy.compile.identity import models, versions, who
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.optimizers import Job, check_budget, optimize, optimizer_named
from rb_dspy.compile.plan import Plan, examples_of
from rb_dspy.compile.progress import OnProgress, Teller, silent
from rb_dspy.compile.result import Compiled, Found
from rb_dspy.compile.scoring import kept, scores_of
from rb_dspy.compile.stages import STAGES, Stage
from rb_dspy.compile.state import Prompts, digest, prompts_of, set_prompts, state_of, thawed, with_prompts
from rb_dspy.compile.student import student_of
from rb_dspy.errors import InfrastructureError, InputError, RBError, UnparseableOutput
from rb_dspy.matts import BankProgram
from rb_dspy.program import check_bank
from rb_dspy.protocols import Embedder
from rb_dspy.stream import Streams

log = logging.getLogger("rb_dspy")

MEASURES: dict[Stage, str] = {
    "judge": "verdicts that agree with the environment; where there are both, successes and failures count the same, so"
    " 0.5 is no better than always saying success",
    "select": "reward of the choice, from the worst rollout to the best, where they differ",
    "agent": "tasks solved with given lessons",
    "all": "tasks solved",
}

_PREFIX = "program."
_FIRST = 3
"""Examples that are tried to see that a program works: single ones may break."""


def compile_program(
    program: BankProgram,
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
    orders: int = 8,
    window: int | None = None,
    smoke: bool = True,
) -> Compiled:
    """Compile the prompts of ``program``, or of one step of it, and measure what that changed.

    ``stage``: a step (``judge``, ``select``, ``agent``), compiled on examples that are harvested from runs; or ``all``,
    the whole program on windows of ``window`` tasks. ``optimizer``: ``gepa``, ``miprov2``, ``simba``, ``bootstrap`` or
    ``bootstrap_rs``. ``budget``: how often a candidate may be run on an example and rated; it is never exceeded. On top
    of it come a call of ``reflection`` and up to three runs to see that both work at all (``smoke``; what breaks is
    refused before anything is spent), the runs that a step is harvested from, and the scoring before and after, of the
    dev and held-out streams; for ``all`` in ``orders`` orders, and with fewer than three nothing is called better, and
    a gain of 20 points needs eight, and 30 held-out tasks (``rb_dspy.compile.scores``). Verdicts on successes count as
    much as those on failures, in the search as in the scores (``rb_dspy.compile.balance``).

    Every run starts from a fork of ``bank``, else from an empty bank with ``embedder``. ``harvest``: examples of the
    compile stream, and of no other, that there are already. ``reflection``: who proposes prompts, an LM, a
    ``BackboneConfig`` or a model's name; None: the agent's. ``folder``: a compile that was stopped goes on there when
    it is started again with the same arguments, without asking a language model again for what it has answered. A
    judge, a reranker or environments of the caller's own are known again as ``rb_dspy.compile.parts`` says.
    ``on_progress`` is called by one thread at a time, and the others wait for it: it must not wait for the caller.

    The language models are those of ``program``, of ``Backbones.use()``, or of ``dspy.configure``; ``program`` itself
    is not changed. Deterministic for ``seed`` as far as they are. Raises ``InputError`` for arguments that cannot work,
    for streams without ground truth, and for a folder of another compile, ``BackboneError``,
    ``InfrastructureError`` where all that is run breaks, ``RBError`` where the optimizer's own code breaks and where
    ``folder`` cannot be read or written, and what ``on_progress`` raises; ``Unscored`` in place of any of them, with
    the best program so far in it, once there is one that is better than ``program``, and where scoring breaks. Single
    tasks without ground truth do not count, in the search and in the scores: whether a program solves them, nobody
    knows.
    """
    optimizer_named(optimizer)
    _check(stage, budget=budget, threads=threads, orders=orders, window=window)
    if not isinstance(program, BankProgram):
        raise InputError(f"got {type(program).__name__} for a program; expected a ReasoningBank, or MaTTS around one")
    if not isinstance(streams, Streams):
        raise InputError(
            f"got {type(streams).__name__} for streams; expected Streams: split_streams(stream) gives them"
        )
    if bank is not None:
        check_bank(bank)
    work = program.deepcopy()
    backbones = work.backbones or active()
    work.backbones = None  # those of the compile are bound around every call
    thawed(work)
    plan = Plan(work, streams, stage, bank, embedder, budget, seed, orders, threads, window, harvest)
    plan.check()
    players = who(backbones, reflection)
    identity = {
        "optimizer": optimizer,
        "models": digest(models(players)),
        "sampling": digest(players),
        **plan.identity(),
        "versions": digest(versions()),
    }
    names = dict.fromkeys(models(players).values())
    untold = {what: each.untold for what, each in plan.parts().items() if each.untold}
    with opened(folder, identity, names, untold) as place, no_backbones(), dspy.context(disable_history=True):
        if place.result is not None and place.result.exists():
            compiled = Compiled.load(place.result)
            compiled.apply(work)  # refused where a newer dspy made it
            compiled.program, compiled.found_done = work, True
            return compiled
        answers = Answers(place.answers)
        cast = Cast(backbones, answers, reflection)
        with metered() as ledger:
            teller = Teller(on_progress, budget, ledger, answers)
            probe = smoke and reflection is not None  # the agent's own is seen to work with the program
            made = _compiled(plan, optimizer, cast, teller, place, smoke=smoke, probe=probe)
            made.usage = ledger.usage()
        made.seconds = answers.seconds
        if place.result is not None:
            with kept(lambda: made.program, place.best):
                made.save(place.result)
        return made


def _compiled(
    plan: Plan, optimizer: str, cast: Cast, teller: Teller, place: Folder, *, smoke: bool, probe: bool
) -> Compiled:
    module = plan.module(plan.work)
    state = state_of(plan.work)
    if probe and optimizer_named(optimizer).reflects:
        teller.phase("seeing that who proposes prompts answers")
        cast.probe()
    check_budget(optimizer, plan.budget, 1, 1)
    examples = examples_of(plan, cast, teller)
    train, dev = examples.train, examples.dev
    check_budget(optimizer, plan.budget, len(train), len(dev))
    if smoke:
        teller.phase("seeing that the program works")
        _smoke(module, train[:_FIRST], cast)
    tasks = max((len(each.stream) for each in train), default=0) if plan.stage == "all" else 0
    windows = f" (windows of {tasks} tasks each)" if tasks > 1 else ""
    teller.phase(f"{optimizer} on {len(train)} examples{windows}, {len(dev)} of dev")
    record = Record(
        metric_for(plan.stage, plan.work),
        dev,
        cast=cast,
        teller=teller,
        on_best=lambda prompts: place.keep_best(with_prompts(state, _own_names(prompts))),
        prefix=_PREFIX,
    )
    before = prompts_of(plan.work)

    def found() -> Prompts:
        best = record.best()
        return {**before, **_own_names(best[1])} if best else before

    with kept(lambda: _with(plan.work, found()) if found() != before else None, place.best):
        optimize(optimizer, Job(student_of(module, record), record, train, dev, plan.seed, plan.threads))
    after = found()
    program = _with(plan.work, after)
    with kept(lambda: program, place.best):
        cast.check()
        scores = scores_of(plan, program, examples, cast, teller, changed=after != before)
    if cast.proposals_failed:
        log.warning("who proposes prompts gave no answer, or nothing new, %d times", cast.proposals_failed)
    return Compiled(
        program=program,
        state=state_of(program),
        optimizer=optimizer,
        stage=plan.stage,
        budget=plan.budget,
        metric_calls=record.calls,
        seed=plan.seed,
        scores=scores,
        measure=MEASURES[plan.stage],
        prompts_before=before,
        prompts_after=after,
        usage={},
        seconds=0.0,
        candidates=[Found(score=score, prompts=_own_names(prompts)) for score, prompts in record.candidates()],
        broken=record.broken,
        proposals_failed=cast.proposals_failed,
        proposals_unreadable=len(cast.unreadable),
        unreadable_proposal=next(filter(None, cast.unreadable), ""),
        examples={"train": len(train), "dev": len(dev)},
        orders=plan.orders if plan.stage == "all" else 1,
        hashes=plan.hashes(),
        tasks=plan.tasks(),
        versions=versions(),
    )


def _smoke(module: dspy.Module, examples: Sequence[Any], cast: Cast) -> None:
    """Run examples until one works; where none does, raise what breaks them."""
    broke: RBError | None = None
    for example in examples:
        try:
            with cast.playing():
                error = all_broke(module(**example.inputs()))
        except (InfrastructureError, UnparseableOutput) as exc:
            broke = broke or exc
        else:
            if not error:
                return
            broke = broke or InfrastructureError(
                f"the program breaks on every task that was tried, nothing was spent; first: {error}"
            )
    if broke is not None:
        raise broke


def _with(program: BankProgram, prompts: Prompts) -> BankProgram:
    """A copy of ``program`` with ``prompts``."""
    copied: BankProgram = program.deepcopy()
    set_prompts(copied, prompts)
    return copied


def _own_names(prompts: Prompts) -> Prompts:
    """Under the names that predictors have in the program itself."""
    return {name.removeprefix(_PREFIX): each for name, each in prompts.items()}


def _check(stage: str, *, budget: int, threads: int, orders: int, window: int | None) -> None:
    if stage not in STAGES:
        raise InputError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
    for name, value in (("budget", budget), ("threads", threads), ("orders", orders), ("window", window)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InputError(f"{name} is {value!r}; expected at least 1")
