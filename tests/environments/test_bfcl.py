"""Turns of the function-calling leaderboard."""

import itertools

import pytest
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from rb_dspy.environments.bfcl import Bfcl
from tests.environments.baselines import run_baseline

BFCL = Bfcl()
NUMBERS = itertools.count()
TASKS = tuple(itertools.islice(BFCL.tasks(seed=1), 16))


def play(task, actions):
    environment = BFCL.make(task)
    environment.reset(task)
    seen = [environment.step(action)[0] for action in actions]
    return seen, environment.outcome()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_gold_calls_are_right_and_others_are_what_the_benchmark_says(task):
    gold = BFCL.oracle(task)[:-1]
    assert run_baseline(BFCL, task, "oracle").success
    for calls in (gold, gold[:-1], gold[1:], (*gold, *gold)):
        assert play(task, calls)[1].success is benchmark(task, calls)


def benchmark(task, calls) -> bool:
    """The verdict of the benchmark's own entry point on the turns up to this one."""
    from rb_dspy.environments import bfcl

    entry, turn = bfcl._entries()[task.env_args["entry"]], task.env_args["turn"]
    gold = entry["gold"][: turn + 1]
    made = [*([each] for each in gold[:turn]), [list(calls)] if calls else []]
    return multi_turn_checker(made, gold, entry, "multi_turn_base", f"test{next(NUMBERS)}")["valid"]
