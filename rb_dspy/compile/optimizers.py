"""dspy's optimizers by name, each with what it needs so that it works on streams and keeps to a budget.

What comes out is in the ``Record``: candidates and how they were rated. What an optimizer itself returns is not used,
so neither ``_compiled`` nor anything else that it leaves on a program can reach ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from rb_dspy.compile.autologged import runs_ended
from rb_dspy.compile.balance import dealt, evened
from rb_dspy.compile.broken import MOST_SAID
from rb_dspy.compile.budget import Record
from rb_dspy.compile.measure import in_threads
from rb_dspy.compile.quiet import quiet
from rb_dspy.compile.student import Student
from rb_dspy.errors import InfrastructureError, InputError, RBError, describe_error

MAX_DEMOS = 2
"""Demonstrations a predictor; of an agent each holds a whole episode."""
BOOTSTRAP_FROM = 8
"""Examples that are tried for demonstrations."""
MINIBATCH = 3
"""Examples that gepa reflects on at once."""
_ERRORS = 10**9
"""How many examples may break: all. ``Record`` knows better when to give up."""


@dataclass(frozen=True)
class Job:
    """What an optimizer works on. ``dev`` is what candidates are chosen by."""

    student: Student
    record: Record
    train: Sequence[Any]
    dev: Sequence[Any]
    seed: int
    threads: int = 1

    def rate(self, student: Any) -> None:
        """Rate a student on dev."""
        in_threads(lambda each: self.record.metric(each, student(**each.inputs())), self.dev, self.threads)

    def shuffled(self, n: int) -> list[Any]:
        """``n`` examples of train, or all there are; verdicts on successes and on failures in turn."""
        return dealt(self.train, n, self._drawn)

    def balanced(self, n: int | None = None) -> list[Any]:
        """``shuffled``, or all of train, for who takes means of it: of verdicts the rarer label's come again."""
        return evened(self.train, self._drawn) if n is None else dealt(self.train, n, self._drawn, again=True)

    @property
    def _drawn(self) -> str:
        return f"{self.seed}/train"


@dataclass(frozen=True)
class Optimizer:
    """``run`` works until it is done or the budget is spent; ``needs`` is the least budget, of train and dev examples,
    with which it can find anything."""

    run: Callable[[Job], None]
    needs: Callable[[int, int], int]
    reflects: bool = True
    """Whether it asks a language model for prompts."""


def optimize(name: str, job: Job) -> None:
    """Run the optimizer ``name``; what it found is in ``job.record``.

    Raises ``InputError`` like ``check_budget``, what broke it, and ``RBError`` where the optimizer's own code broke.
    """
    check_budget(name, job.record.budget, len(job.train), len(job.dev))
    optimizer = optimizer_named(name)
    settings = {"disable_history": True, "max_errors": _ERRORS, "num_threads": job.threads}
    with quiet(), dspy.context(**settings), runs_ended(), job.record.stopping():
        try:
            optimizer.run(job)
        except dspy.LMError as exc:  # miprov2 lets it through; the programs' own are counted, and never get here
            model = job.record.cast.reflection.model
            raise InfrastructureError(
                f"who proposes prompts ({model}) broke: {describe_error(exc, MOST_SAID)}"
            ) from exc
        except RBError:
            raise
        except Exception as exc:  # what was found before must not be lost with it
            raise RBError(f"{name} itself broke: {describe_error(exc, MOST_SAID)}; another optimizer may do") from exc


def check_budget(name: str, budget: int, train: int, dev: int) -> None:
    """Raises ``InputError`` for an unknown optimizer, and for a budget with which it cannot find anything."""
    needs = optimizer_named(name).needs(train, dev)
    if budget < needs:
        raise InputError(
            f"a budget of {budget} metric calls is too small for {name}, which needs {needs} with"
            f" {train} examples to compile on and {dev} of dev; give more, or fewer examples"
        )


def optimizer_named(name: str) -> Optimizer:
    """Raises ``InputError`` for an unknown name."""
    if name not in OPTIMIZERS:
        raise InputError(f"unknown optimizer {name!r}; known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def _gepa(job: Job) -> None:
    from rb_dspy.compile.proposer import Proposer  # brings gepa

    cast = job.record.cast
    dspy.GEPA(
        metric=job.record.metric,
        max_metric_calls=job.record.left,
        reflection_lm=cast.reflection,
        reflection_minibatch_size=min(MINIBATCH, len(job.train)),
        instruction_proposer=Proposer(cast.reflection, cast.nothing_new, cast.not_read),
        component_selector=_Called(job.student),
        num_threads=job.threads,
        seed=job.seed,
        warn_on_score_mismatch=False,
    ).compile(job.student, trainset=job.balanced(), valset=list(job.dev))


class _Called:
    """Which predictor gepa works on next: in turn, but only of those that were called. A mode of MaTTS calls few."""

    def __init__(self, student: Student) -> None:
        self._signatures = {name: predictor.signature for name, predictor in student.named_predictors()}

    def __call__(
        self, state: Any, trajectories: Sequence[Any], subsample_scores: Any, candidate_idx: int, candidate: Any
    ) -> list[str]:
        called = [step[0].signature for each in trajectories for step in each["trace"]]
        names = list(state.list_of_named_predictors)
        turn = state.named_predictor_id_to_update_next_for_program_candidate
        order = [(turn[candidate_idx] + step) % len(names) for step in range(len(names))]
        for place in order:
            wanted = self._signatures[names[place]].with_instructions(candidate[names[place]])
            if any(signature.equals(wanted) for signature in called):
                turn[candidate_idx] = (place + 1) % len(names)
                return [names[place]]
        return [names[order[0]]]


def _miprov2(job: Job) -> None:
    import optuna

    threshold = _rated_as_it_is(job)
    train = job.shuffled(BOOTSTRAP_FROM)
    sets = _mipro_sets(job.record.budget, len(train), len(job.dev))
    trials = max(1, (job.record.left - len(job.dev) - (sets - 1) * len(train)) // len(job.dev))
    with warnings.catch_warnings():  # dspy asks for the sampler that optuna calls experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        dspy.MIPROv2(
            metric=job.record.metric,
            prompt_model=job.record.cast.reflection,
            task_model=job.record.cast.agent,
            auto=None,
            num_candidates=sets,
            max_bootstrapped_demos=MAX_DEMOS,
            max_labeled_demos=0,
            metric_threshold=threshold,
            num_threads=job.threads,
            max_errors=_ERRORS,
            seed=job.seed,
            track_stats=False,
        ).compile(
            job.student,
            trainset=train,
            valset=list(job.dev),
            num_trials=trials,
            minibatch=False,
            data_aware_proposer=False,  # it would show whole examples, with their ground truth, to the proposer
        )


_FEWEST_SETS = 3
"""Instructions, and sets of demonstrations, that miprov2 tries at least: dspy's first three sets are none at all, the
good runs of train in another order, and those in its own."""
_MOST_SETS = 6
"""At most: so many sets dspy's own lightest search has (``light``)."""


def _mipro_sets(budget: int, train: int, dev: int) -> int:
    """How many instructions, and sets of demonstrations, are tried: as many as leave half of the budget for trials.

    The first set is none; each other one takes at most a call for each example of train.
    """
    return max(_FEWEST_SETS, min(_MOST_SETS, 1 + (budget - 2 * dev) // 2 // max(1, train)))


def _simba(job: Job) -> None:
    _rated_as_it_is(job)
    plan = _simba_plan(job.record.left - len(job.dev), len(job.train))
    found = dspy.SIMBA(
        metric=job.record.explained,
        bsize=plan.batch,
        num_candidates=plan.candidates,
        max_steps=plan.steps,
        max_demos=MAX_DEMOS,
        prompt_model=job.record.cast.reflection,
        num_threads=job.threads,
    ).compile(job.student, trainset=job.balanced(plan.train), seed=job.seed)
    for each in found.candidate_programs:  # best on train first; the budget ends it
        job.rate(each["program"])


@dataclass(frozen=True)
class _Simba:
    train: int
    batch: int
    candidates: int
    steps: int

    @property
    def cost(self) -> int:
        """Samples, candidates on the batch, and in the end winners and the program as it is on all of train."""
        winners = min(self.steps, self.candidates) + 1
        return self.steps * self.batch * (2 * self.candidates + 1) + winners * self.train


_LEAST = _Simba(train=2, batch=2, candidates=2, steps=1)
"""One step with two samples of an example, since those are what simba contrasts; that it has two examples was chosen
by hand."""
_MOST = _Simba(train=16, batch=8, candidates=6, steps=8)
"""Candidates and steps are dspy's defaults. A batch of 8, where dspy has 32, and 16 examples in all were chosen by
hand, not measured."""
_WISH = (4, 6, 2)
"""Candidates, examples and steps that are paid for before there are more of any. Chosen by hand, not measured."""


def _simba_plan(budget: int, train: int) -> _Simba:
    """What the budget pays for, else the smallest: first enough samples of enough examples to contrast, then steps."""
    fewest = min(_LEAST.train, train)
    affordable = [
        plan
        for steps in range(_LEAST.steps, _MOST.steps + 1)
        for candidates in range(_LEAST.candidates, _MOST.candidates + 1)
        for examples in range(fewest, min(_MOST.train, train) + 1)
        if (plan := _Simba(examples, _batch(examples), candidates, steps)).cost <= budget
    ]
    return max(
        affordable,
        key=lambda plan: (
            *map(min, (plan.candidates, plan.train, plan.steps), _WISH),
            plan.steps,
            plan.train,
            plan.candidates,
        ),
        default=_Simba(fewest, _batch(fewest), _LEAST.candidates, _LEAST.steps),
    )


def _batch(examples: int) -> int:
    """Half of the examples, of which two steps then see all; or all of few."""
    return min(_MOST.batch, max(_LEAST.batch, examples // 2), examples)


def _bootstrap(job: Job) -> None:
    threshold = _rated_as_it_is(job)
    found = dspy.BootstrapFewShot(
        metric=job.record.metric,
        metric_threshold=threshold,
        max_bootstrapped_demos=MAX_DEMOS,
        max_labeled_demos=0,
        max_errors=_ERRORS,
    ).compile(job.student, trainset=job.shuffled(BOOTSTRAP_FROM))
    job.rate(found)


_MOST_DRAWS = 16
"""Draws of good runs that bootstrap_rs compares at most: dspy's own default."""


def _bootstrap_rs(job: Job) -> None:
    threshold = _rated_as_it_is(job)
    train = job.shuffled(BOOTSTRAP_FROM)
    sets = min(_MOST_DRAWS, max(1, job.record.left // (len(train) + len(job.dev))))
    dspy.BootstrapFewShotWithRandomSearch(
        metric=job.record.metric,
        metric_threshold=threshold,
        max_bootstrapped_demos=MAX_DEMOS,
        max_labeled_demos=0,
        num_candidate_programs=sets,
        num_threads=job.threads,
        max_errors=_ERRORS,
        stop_at_score=100,
    ).compile(
        job.student,
        trainset=train,
        valset=list(job.dev),
        restrict=range(-1, sets),  # the two before are the program as it is
    )


def _rated_as_it_is(job: Job) -> float:
    """Rate the program as it is; a run that is no worse than its mean is good enough for a demonstration."""
    job.rate(job.student)
    best = job.record.best()
    return max(1e-9, best[0] if best else 0.0)


def _bootstrapped(train: int) -> int:
    return min(BOOTSTRAP_FROM, train)


OPTIMIZERS: dict[str, Optimizer] = {
    "gepa": Optimizer(_gepa, lambda train, dev: 2 * dev + 2 * min(MINIBATCH, train)),
    "miprov2": Optimizer(_miprov2, lambda train, dev: 3 * dev + 2 * _bootstrapped(train)),
    "simba": Optimizer(_simba, lambda train, dev: 2 * dev + _simba_plan(0, train).cost),
    "bootstrap": Optimizer(_bootstrap, lambda train, dev: 2 * dev + _bootstrapped(train), reflects=False),
    "bootstrap_rs": Optimizer(_bootstrap_rs, lambda train, dev: 2 * dev + _bootstrapped(train), reflects=False),
}
"""gepa: reflects on feedback, predictor by predictor. miprov2: proposes instructions and demonstrations, and searches
their combinations. simba: contrasts good and bad runs of one example into rules and demonstrations. bootstrap: good
runs as demonstrations. bootstrap_rs: the same for several draws."""
