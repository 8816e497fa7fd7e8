"""DSPy's optimizers by name, with settings that fit a budget; or one that the user configured."""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import dspy

from rb_dspy.compile.search import Budgeted, Search
from rb_dspy.errors import InputError, RBError, describe_error

MAX_DEMOS = 2
"""Demonstrations of one predictor; a demonstration of an agent is a whole episode."""
BOOTSTRAP_FROM = 8
"""Examples that are tried for demonstrations."""
MINIBATCH = 3
"""Examples that GEPA reflects on at once."""
MAX_SETS = 6
"""Maximum number of instructions and of demonstration sets in MIPROv2; that of its own setting "light"."""
MAX_DRAWS = 16
"""Maximum number of demonstration sets that the random search compares; its own default."""

_NEVER = 10**9
"""Errors after which DSPy gives up: never, because ``Search`` decides that."""


@dataclass(frozen=True)
class Job:
    """The inputs of an optimizer."""

    student: Budgeted
    search: Search
    train: Sequence[Any]
    dev: Sequence[Any]
    seed: int
    jobs: int


def optimize(optimizer: str | Any, job: Job) -> Any:
    """Run the optimizer and return the student with the prompts that it chose.

    Optimizers print; their output goes to ``stderr``, because ``stdout`` belongs to the caller.

    Raises:
        RBError: The error that ended the search (``Search.check``), or the optimizer itself failed.
    """
    try:
        with redirect_stdout(sys.stderr), dspy.context(max_errors=_NEVER):
            result = _RUN[optimizer](job) if isinstance(optimizer, str) else _own(optimizer, job)
    except Exception as exc:
        job.search.check()  # raises the more likely cause
        if isinstance(exc, RBError):
            raise
        raise RBError(f"{optimizer_name(optimizer)} failed: {describe_error(exc, 300)}; try another optimizer") from exc
    job.search.check()
    if not isinstance(result, Budgeted):
        name = optimizer_name(optimizer)
        raise InputError(f"{name} returned a {type(result).__name__}; expected the student with other prompts")
    return result


def optimizer_name(optimizer: Any) -> str:
    """The optimizer's name, or the name of its class."""
    return optimizer if isinstance(optimizer, str) else type(optimizer).__name__


def _own(optimizer: Any, job: Job) -> Any:
    takes_dev = "valset" in inspect.signature(optimizer.compile).parameters
    sets = {"trainset": list(job.train), **({"valset": list(job.dev)} if takes_dev else {})}
    return optimizer.compile(job.student, **sets)


def _gepa(job: Job) -> Any:
    optimizer = dspy.GEPA(
        metric=job.search.metric,
        max_metric_calls=job.search.budget,
        reflection_lm=job.search.models.reflection,
        reflection_minibatch_size=min(MINIBATCH, len(job.train)),
        component_selector=_CalledInTurn(job.student),
        num_threads=job.jobs,
        seed=job.seed,
        warn_on_score_mismatch=False,
        gepa_kwargs={"stop_callbacks": lambda state: job.search.over},
    )
    return optimizer.compile(job.student, trainset=list(job.train), valset=list(job.dev))


class _CalledInTurn:
    """Selects the predictor that GEPA improves next: in turn, skipping those that the minibatch did not call.

    A mode of ``MaTTS`` calls half of the predictors; for the others there is nothing to reflect on.
    """

    def __init__(self, student: Budgeted) -> None:
        self._signatures = {name: predictor.signature for name, predictor in student.named_predictors()}

    def __call__(
        self, state: Any, trajectories: Sequence[Any], subsample_scores: Any, candidate_idx: int, candidate: Any
    ) -> list[str]:
        called = [step[0].signature for each in trajectories for step in each["trace"]]
        names = list(state.list_of_named_predictors)
        turns = state.named_predictor_id_to_update_next_for_program_candidate
        for turn in range(len(names)):
            place = (turns[candidate_idx] + turn) % len(names)
            signature = self._signatures[names[place]].with_instructions(candidate[names[place]])
            if any(each.equals(signature) for each in called):
                turns[candidate_idx] = (place + 1) % len(names)
                return [names[place]]
        return [names[turns[candidate_idx]]]


def _miprov2(job: Job) -> Any:
    from optuna.exceptions import ExperimentalWarning

    train, dev = _drawn(job, BOOTSTRAP_FROM), len(job.dev)
    sets = max(3, min(MAX_SETS, 1 + (job.search.budget - 2 * dev) // 2 // len(train)))  # half of the budget for trials
    optimizer = dspy.MIPROv2(
        metric=job.search.metric,
        prompt_model=job.search.models.reflection,
        task_model=job.search.models.backbones.lm("agent"),
        auto=None,
        num_candidates=sets,
        max_bootstrapped_demos=MAX_DEMOS,
        max_labeled_demos=0,
        num_threads=job.jobs,
        max_errors=_NEVER,
        seed=job.seed,
    )
    trials = max(1, (job.search.budget - dev - (sets - 1) * len(train)) // dev)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # from the sampler that DSPy chooses
        return optimizer.compile(
            job.student,
            trainset=train,
            valset=list(job.dev),
            num_trials=trials,
            minibatch=False,
            data_aware_proposer=False,  # it shows whole examples to the proposer, with their ground truth
        )


def _simba(job: Job) -> Any:
    candidates, steps = 4, 1
    batch = max(2, min(8, len(job.train) // 2)) if len(job.train) > 1 else 1

    def cost(batch: int, candidates: int, steps: int) -> int:
        """Samples and candidates on each batch; at the end the winners and the program on all of train."""
        winners = min(steps, candidates) + 1
        return steps * batch * (2 * candidates + 1) + winners * min(len(job.train), 2 * batch)

    while batch > 2 and cost(batch, candidates, steps) > job.search.budget:
        batch -= 1
    while candidates > 2 and cost(batch, candidates, steps) > job.search.budget:
        candidates -= 1
    while steps < 8 and cost(batch, candidates, steps + 1) <= job.search.budget:
        steps += 1
    optimizer = dspy.SIMBA(
        metric=job.search.explained,
        bsize=batch,
        num_candidates=candidates,
        max_steps=steps,
        max_demos=MAX_DEMOS,
        prompt_model=job.search.models.reflection,
        num_threads=job.jobs,
    )
    return optimizer.compile(job.student, trainset=_drawn(job, 2 * batch), seed=job.seed)


def _bootstrap(job: Job) -> Any:
    return dspy.BootstrapFewShot(
        metric=job.search.metric, max_bootstrapped_demos=MAX_DEMOS, max_labeled_demos=0, max_errors=_NEVER
    ).compile(job.student, trainset=_drawn(job, BOOTSTRAP_FROM))


def _bootstrap_rs(job: Job) -> Any:
    train = _drawn(job, BOOTSTRAP_FROM)
    draws = min(MAX_DRAWS, max(1, (job.search.budget - len(job.dev)) // (len(train) + len(job.dev)) - 1))
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=job.search.metric,
        max_bootstrapped_demos=MAX_DEMOS,
        max_labeled_demos=0,
        num_candidate_programs=draws,
        num_threads=job.jobs,
        max_errors=_NEVER,
        stop_at_score=100,
    )
    seeds = [-3, -1, *range(draws)]  # -2 would score the unchanged program again
    return optimizer.compile(job.student, trainset=train, valset=list(job.dev), restrict=seeds)


def _drawn(job: Job, most: int) -> list[Any]:
    """At most ``most`` examples of train; the seed decides which."""
    return random.Random(f"{job.seed}/train").sample(list(job.train), min(most, len(job.train)))


_RUN: dict[str, Callable[[Job], Any]] = {
    "gepa": _gepa,
    "miprov2": _miprov2,
    "simba": _simba,
    "bootstrap": _bootstrap,
    "bootstrap_rs": _bootstrap_rs,
}

OPTIMIZERS = tuple(_RUN)
"""gepa: reflects on feedback, one predictor at a time. miprov2: searches combinations of proposed instructions and
demonstrations. simba: contrasts good and bad samples of one example. bootstrap: good runs as demonstrations.
bootstrap_rs: the best of several such sets."""
