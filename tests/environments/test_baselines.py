"""How a policy is played, and what is reported of it."""

import pytest

from rb_dspy.environments import compare, run_baseline
from rb_dspy.environments.directory import Directory
from rb_dspy.environments.question import Question
from rb_dspy.errors import InputError
from rb_dspy.schema import Task

TASK = next(Directory().tasks(seed=0))


def test_compare_gives_a_row_for_each_policy():
    rows = {row.policy: row for row in compare(Directory(), seed=1, tasks=60)}

    assert list(rows) == ["random", "empty", "oracle"]
    assert all(row.tasks == 60 and row.steps == 1 and row.seconds >= 0 for row in rows.values())
    assert (rows["oracle"].reward, rows["oracle"].success) == (1.0, 1.0)
    assert (rows["empty"].reward, rows["empty"].success) == (0.0, 0.0)
    assert 0.0 < rows["random"].reward < 0.5


def test_random_play_depends_on_seed_and_task():
    rates = [[compare(Directory(), seed=seed, tasks=36)[0].success for seed in range(4)] for _ in range(2)]
    assert rates[0] == rates[1]
    outcomes = [run_baseline(Directory(), TASK, "random", seed=seed).success for seed in range(40)]
    assert set(outcomes) == {True, False}


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
    for family, tasks in ((Question(), 20), (Directory(), 0)):
        with pytest.raises(InputError):
            compare(family, tasks=tasks)
