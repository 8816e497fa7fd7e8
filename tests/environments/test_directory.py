"""Who owns what: a world that only memory can know."""

import itertools
from collections import Counter

import pytest

from rb_dspy.environments.directory import SERVICES, TEAMS, Directory, flipped
from rb_dspy.schema import Task
from tests.environments.baselines import run_baseline

FAMILY = Directory()
TASKS = tuple(FAMILY.tasks(seed=20))


def world(tasks) -> dict[str, str]:
    return {task.env_args["service"]: task.env_args["owner"] for task in tasks}


def answered(task: Task, action: str):
    environment = FAMILY.make(task)
    environment.reset(task)
    return environment.step(action), environment.outcome()


@pytest.mark.parametrize("n", [8, 16, 24, 96])
def test_every_round_of_tasks_need_each_fact_once(n):
    assert set(Counter(task.env_args["service"] for task in TASKS[:n]).values()) == {n // SERVICES}
    assert len(world(TASKS[:n])) == SERVICES


def test_the_stream_ends_when_every_phrasing_was_used_for_every_service():
    assert len(TASKS) == len({task.instruction for task in TASKS}) == SERVICES * len(FAMILY.templates())
    assert len(list(FAMILY.tasks(seed=20, templates=FAMILY.templates()[:5]))) == 5 * SERVICES


def test_a_seed_draws_a_world_of_its_own_and_task_ids_carry_it():
    worlds = [world(itertools.islice(FAMILY.tasks(seed=seed), SERVICES)) for seed in range(20)]
    assert len({tuple(sorted(each.items())) for each in worlds}) == 20
    shared = [(a[s], b[s]) for a, b in itertools.combinations(worlds, 2) for s in a.keys() & b.keys()]
    assert sum(one == other for one, other in shared) < len(shared) / 4, "no service has the same owner everywhere"
    assert all(task.id.startswith("directory/20/") for task in TASKS)


def test_each_team_owns_as_many_services():
    assert set(Counter(world(TASKS).values()).values()) == {SERVICES // TEAMS}
    assert {tuple(task.env_args["teams"]) for task in TASKS} == {tuple(sorted(set(world(TASKS).values())))}


def test_the_instruction_names_the_service_and_no_team():
    for task in TASKS:
        assert task.env_args["service"] in task.instruction
        assert not any(team in task.instruction for team in task.env_args["teams"])


@pytest.mark.parametrize("right", [True, False])
def test_the_last_observation_states_the_owner(right):
    task = TASKS[0]
    owner = task.env_args["owner"]
    other = next(team for team in task.env_args["teams"] if team != owner)
    (observation, done), outcome = answered(task, owner if right else other)

    assert done
    assert outcome.success is right
    assert task.env_args["service"] in observation
    assert owner in observation
    assert other not in observation
    assert observation.split(". ")[0] in ("Right", "Wrong"), "a sentence of its own: 'Wrong: ...' reads as a denial"


@pytest.mark.parametrize(
    ("lesson", "keeps"),
    [
        ("The service {service} is owned by team {owner}.", True),
        ("Page {owner} for {service}", True),
        ("The service {service} is owned by team {owner}, which is incorrect. The correct owner is team X.", False),
        ("{service} is not owned by team {owner}", False),
        ("The service {service} is owned by team {owner}. Its owner is team {other}.", False),
        ("{service}s belong to {owner}ia", False),
        ("The owner is team {owner}.", False),
    ],
)
def test_a_lesson_keeps_the_fact_if_it_states_it_and_neither_denies_it_nor_names_another_team(lesson, keeps):
    args = TASKS[0].env_args
    other = next(team for team in args["teams"] if team != args["owner"])
    text = lesson.format(service=args["service"], owner=args["owner"], other=other)
    assert FAMILY.keeps_fact(TASKS[0], text) is keeps


def test_there_is_one_action_and_no_second_attempt():
    task = TASKS[0]
    environment = FAMILY.make(task)
    environment.reset(task)
    assert environment.valid_actions() == tuple(task.env_args["teams"])
    environment.step("nobody")
    assert environment.step(task.env_args["owner"])[1]
    assert (environment.answer(), environment.outcome().success) == ("nobody", False)
    assert environment.reopen() is None, "the owner was told"


def test_random_play_solves_as_many_as_there_are_teams():
    solved = [run_baseline(FAMILY, task, "random", seed=seed).success for task in TASKS for seed in range(8)]
    assert sum(solved) / len(solved) == pytest.approx(1 / TEAMS, abs=0.04)


def test_oracle_lessons_hold_one_fact_for_each_service_and_solve_every_task():
    lessons = FAMILY.lessons(TASKS)
    assert len(lessons) == SERVICES
    for task in TASKS:
        (fact,) = (lesson for lesson in lessons if task.env_args["service"] in lesson.title)
        assert task.env_args["service"] in fact.content
        (named,) = (team for team in task.env_args["teams"] if team in fact.content)
        assert answered(task, named)[1].success
    assert len(FAMILY.lessons(TASKS[:4])) == 4


def test_after_the_flip_every_service_has_another_owner():
    tasks = list(itertools.islice(flipped().tasks(seed=4), 32))
    owners = [{task.env_args["service"]: task.env_args["owner"] for task in part} for part in (tasks[:16], tasks[16:])]
    assert owners[0].keys() == owners[1].keys()
    assert not any(owners[0][service] == owners[1][service] for service in owners[0])
    assert all(task.env_args["owner"] == owners[0][task.env_args["service"]] for task in tasks[:16])
