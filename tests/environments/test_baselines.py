"""The three players, on a world whose rules are known, and on every family that is installed."""

import itertools
import random

import pytest

from rb_dspy.environments import BaselineRow, compare, make_environment, run_baseline
from rb_dspy.environments.question import Question
from rb_dspy.errors import InputError
from rb_dspy.plugins import environment_family, environment_names
from rb_dspy.schema import Outcome, Task


class Dial:
    """Turn a dial to the task's number, one step up at a time; "up" is right, "down" is not."""

    action_rules = "up or down"

    def __init__(self) -> None:
        self.at = self.target = 0
        self.closed = False

    def reset(self, task: Task) -> str:
        self.at, self.target = 0, int(task.env_args["target"])
        return "a dial"

    def step(self, action: str) -> tuple[str, bool]:
        self.at += {"up": 1, "down": -1}.get(action, 0)
        if action == "break":
            raise OSError("the dial came off")
        return f"at {self.at}", self.at == self.target

    def valid_actions(self) -> list[str]:
        return ["up", "down"]

    def answer(self) -> None:
        return None

    def outcome(self) -> Outcome:
        return Outcome(
            reward=max(self.at, 0) / self.target, success=self.at == self.target, info={"closed": self.closed}
        )

    def close(self) -> None:
        self.closed = True


class Dials:
    """The family of dials; keeps what it made."""

    name = "dials"

    def __init__(self, target: int = 5) -> None:
        self.target = target
        self.made: list[Dial] = []

    def check(self) -> None: ...

    def templates(self) -> list[str]:
        return ["dial"]

    def tasks(self, *, seed: int, templates=None):
        return (
            Task(id=f"{seed}-{n}", instruction="Turn.", env_args={"target": self.target}) for n in itertools.count()
        )

    def make(self, task: Task) -> Dial:
        self.made.append(Dial())
        return self.made[-1]

    def oracle(self, task: Task) -> list[str]:
        return ["up"] * self.target

    def random_action(self, environment: Dial, task: Task, rng: random.Random) -> str:
        return rng.choice(environment.valid_actions())


TASK = next(Dials().tasks(seed=0))


def test_the_oracle_solves_the_empty_player_does_nothing_and_the_random_one_wanders():
    assert run_baseline(Dials(), TASK, "oracle", max_steps=5).success
    assert run_baseline(Dials(), TASK, "empty", max_steps=20).reward == 0.0
    rewards = {run_baseline(Dials(), TASK, "random", seed=s, max_steps=20).reward for s in range(20)}
    assert len(rewards) > 2


def test_a_baseline_stops_at_the_step_cap():
    assert run_baseline(Dials(), TASK, "oracle", max_steps=3).reward == pytest.approx(0.6)
    assert run_baseline(Dials(), TASK, "oracle", max_steps=0).reward == 0.0


def test_random_play_depends_on_seed_and_task_only():
    play = [run_baseline(Dials(50), TASK, "random", seed=4, max_steps=30) for _ in range(2)]
    assert play[0] == play[1]


def test_the_environment_is_closed_after_its_outcome_was_read_and_also_when_it_breaks():
    family = Dials()
    assert run_baseline(family, TASK, "oracle").info == {"closed": False}

    class Breaking(Dials):
        def oracle(self, task: Task) -> list[str]:
            return ["break"]

    broken = Breaking()
    with pytest.raises(OSError, match="came off"):
        run_baseline(broken, TASK, "oracle")
    assert all(dial.closed for dial in family.made + broken.made)


def test_an_unknown_policy_is_refused():
    with pytest.raises(InputError, match="expected one of random, empty, oracle"):
        run_baseline(Dials(), TASK, "clever")


def test_a_task_without_ground_truth_is_refused():
    with pytest.raises(InputError, match="no ground truth"):
        run_baseline(Question(), Task(id="q", instruction="Why?"), "empty")


def test_compare_gives_a_row_for_each_policy_over_the_same_tasks():
    rows = compare(Dials(), seed=1, tasks=6, max_steps=8)

    assert [row.policy for row in rows] == ["random", "empty", "oracle"]
    assert all(isinstance(row, BaselineRow) and row.tasks == 6 for row in rows)
    by = {row.policy: row for row in rows}
    assert (by["oracle"].reward, by["oracle"].success, by["oracle"].steps) == (1.0, 1.0, 5.0)
    assert (by["empty"].reward, by["empty"].success, by["empty"].steps) == (0.0, 0.0, 8.0)
    assert 0.0 < by["random"].reward < 1.0
    assert all(row.seconds >= 0 for row in rows)


def test_compare_needs_tasks():
    with pytest.raises(InputError, match="come from a file"):
        compare(Question())
    with pytest.raises(InputError, match="tasks >= 1"):
        compare(Dials(), tasks=0)


INSTALLED = [name for name in environment_names() if name != "question"]


@pytest.mark.parametrize("name", INSTALLED)
def test_every_installed_family_scores_soundly(name):
    family = environment_family(name)
    family.check()
    by = {row.policy: row for row in compare(family, seed=2, tasks=12)}

    assert (by["oracle"].reward, by["oracle"].success) == (pytest.approx(1.0, abs=0.01), 1.0)
    assert by["random"].reward < by["oracle"].reward
    assert by["empty"].reward < by["oracle"].reward
    assert by["random"].success < 0.5
    assert by["empty"].success == 0.0


@pytest.mark.parametrize("name", INSTALLED)
def test_every_installed_family_shows_the_same_again(name):
    family = environment_family(name)
    family.check()
    for task in itertools.islice(family.tasks(seed=3), 5):
        seen = []
        for _ in range(2):
            environment = make_environment(task, "0")
            seen.append([environment.reset(task), environment.valid_actions(), environment.step("nonsense")])
            environment.close()
        assert seen[0] == seen[1]
