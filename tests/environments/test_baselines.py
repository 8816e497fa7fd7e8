"""How a policy is played."""

import pytest

from rb_dspy.environments.directory import Directory
from rb_dspy.environments.question import Question
from rb_dspy.errors import InputError
from rb_dspy.schema import Task
from tests.environments.baselines import run_baseline

TASK = next(Directory().tasks(seed=0))


def test_random_play_depends_on_seed_and_task():
    outcomes = [[run_baseline(Directory(), TASK, "random", seed=seed).success for seed in range(40)] for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0]) == {True, False}


def test_max_steps_ends_an_episode():
    assert not run_baseline(Directory(), TASK, "oracle", max_steps=0).success


def test_the_environment_is_closed_also_when_it_breaks():
    closed = []

    class Broken(Directory):
        def make(self, task):
            environment = super().make(task)
            environment.close = lambda: closed.append(task.id)
            return environment

        def oracle(self, task):
            raise OSError("no solution")

    with pytest.raises(OSError, match="no solution"):
        run_baseline(Broken(), TASK, "oracle")
    run_baseline(Broken(), TASK, "empty")
    assert closed == [TASK.id] * 2


def test_what_cannot_be_played_is_refused():
    with pytest.raises(InputError, match="clever"):
        run_baseline(Directory(), TASK, "clever")
    with pytest.raises(InputError, match="'q'"):
        run_baseline(Question(), Task(id="q", instruction="Why?"), "empty")
