"""Generated questions: sound, the same everywhere, and scored without trusting the answer."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rb_dspy.environments import make_environment, run_baseline
from rb_dspy.environments.reasoning_gym import SMALL_MODEL_TEMPLATES, ReasoningGym
from rb_dspy.environments.reasoning_gym_screen import EXCLUDED, TEMPLATES
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task

FAMILY = ReasoningGym()


def first(template: str, n: int = 1, seed: int = 0) -> list[Task]:
    return list(itertools.islice(FAMILY.tasks(seed=seed, templates=[template]), n))


_TASKS = {template: first(template)[0] for template in TEMPLATES}


def score(task: Task, answer: str) -> Outcome:
    environment = make_environment(task, "0")
    environment.reset(task)
    environment.step(answer)
    return environment.outcome()


def question(family: str, contains: str) -> Task:
    """The first of the family's tasks whose own answer contains some text."""
    return next(t for t in FAMILY.tasks(seed=0, templates=[family]) if contains in FAMILY.oracle(t)[0])


def test_every_family_of_the_package_is_either_a_template_or_left_out_for_a_reason():
    from reasoning_gym.factory import DATASETS

    assert set(TEMPLATES) | set(EXCLUDED) == set(DATASETS)
    assert not set(TEMPLATES) & set(EXCLUDED)
    assert all(EXCLUDED.values())
    assert list(FAMILY.templates()) == sorted(TEMPLATES)
    assert set(SMALL_MODEL_TEMPLATES) < set(TEMPLATES)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_own_answer_wins_and_an_empty_one_does_not(template, capsys):
    for task in (_TASKS[template], first(template, seed=7)[0]):
        assert (task.env, task.template) == ("reasoning-gym", template)
        assert task.domain
        assert run_baseline(FAMILY, task, "oracle").reward >= 0.99
        assert run_baseline(FAMILY, task, "oracle").success
        assert not run_baseline(FAMILY, task, "empty").success
    assert capsys.readouterr().out == ""


def test_random_and_empty_answers_score_below_the_own_answer():
    tasks = list(_TASKS.values())
    rewards = {
        policy: sum(run_baseline(FAMILY, task, policy).reward for task in tasks) / len(tasks)
        for policy in ("random", "empty", "oracle")
    }
    assert rewards["oracle"] == pytest.approx(1.0, abs=0.01)
    assert rewards["random"] < 0.3
    assert rewards["empty"] < 0.1


def test_templates_take_turns_in_the_order_given_and_never_end():
    tasks = list(itertools.islice(FAMILY.tasks(seed=5, templates=["gcd", "chain_sum"]), 1101))

    assert [t.template for t in tasks[:4]] == ["gcd", "chain_sum", "gcd", "chain_sum"]
    assert len({t.id for t in tasks}) == len({t.instruction for t in tasks}) == 1101
    assert all(t.id.startswith(f"reasoning-gym/{t.template}/5-") for t in tasks)


def test_no_question_repeats_where_the_family_has_few():
    tasks = first("string_splitting", 200)  # about four of ten of its draws are repeats

    assert len({t.instruction for t in tasks}) == 200


def test_a_question_that_the_package_itself_cannot_answer_is_passed_over():
    # Entry 4 of this stream asks for 0 in another base, which the package answers with an empty text.
    tasks = first("base_conversion", 10, seed=180)

    assert [task.id.rpartition("-")[2] for task in tasks] == ["0", "1", "2", "3", "5", "6", "7", "8", "9", "10"]


def test_neighbouring_seeds_share_no_questions():
    # The package adds seed and index, so its own seeds 0 and 1 share all questions but one.
    questions = [{t.instruction for t in first("chain_sum", 100, seed=seed)} for seed in (0, 1)]

    assert not questions[0] & questions[1]


def test_the_same_seed_gives_the_same_tasks_in_another_process():
    program = (
        "import hashlib, itertools; from rb_dspy.environments.reasoning_gym import ReasoningGym;"
        "tasks = list(itertools.islice(ReasoningGym().tasks(seed=0), 84));"
        "print(len(tasks), hashlib.sha256(repr(tasks).encode()).hexdigest())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]
    here = list(itertools.islice(FAMILY.tasks(seed=0), 84))

    assert here == list(_TASKS.values())
    assert said[0] == said[1] == ["84", hashlib.sha256(repr(here).encode()).hexdigest()]


def test_the_task_does_not_hold_its_answer():
    for task in _TASKS.values():
        assert set(task.env_args) == {"family", "seed", "index", "size"}


def test_an_episode_is_one_step_and_tells_nothing():
    task = first("chain_sum")[0]
    right = FAMILY.oracle(task)[0]
    seen = []
    for said in (right, f"{right}9"):
        environment = make_environment(task, "0")
        start = environment.reset(task)
        assert environment.valid_actions() is None
        assert environment.answer() is None
        observation, done = environment.step(said)
        assert done
        assert environment.answer() == said
        seen.append((environment.action_rules, start, observation))
        environment.close()
    assert seen[0] == seen[1]
    assert task.instruction not in str(seen)


@pytest.mark.parametrize(
    "wrapping", ["  {}\n", '"{}"', "'{}'", "`{}`", "```\n{}\n```", "<answer>{}</answer>", "<answer>`{}`</answer>"]
)
def test_wrapping_around_a_right_answer_is_forgiven(wrapping):
    for template in ("chain_sum", "spell_backward", "caesar_cipher"):
        task = first(template)[0]
        assert score(task, wrapping.format(FAMILY.oracle(task)[0])).success


def test_nothing_but_wrapping_is_forgiven():
    task = first("chain_sum")[0]

    assert not score(task, f"The answer is {FAMILY.oracle(task)[0]}").success


def test_a_right_answer_that_itself_is_in_quotes_wins():
    assert run_baseline(FAMILY, question("emoji_mystery", '"'), "oracle").success


def test_an_answer_is_never_run_as_code(tmp_path):
    target = tmp_path / "written"
    attack = f"[open({str(target)!r}, 'w').write('x')]"
    for template, task in _TASKS.items():
        score(task, attack)
        assert not target.exists(), template
    for template in ("countdown", "spiral_matrix", "binary_matrix", "n_queens", "string_insertion"):
        assert score(_TASKS[template], attack).info == {"error": "characters that no answer of this family has"}
    assert score(_TASKS["countdown"], "9**9**9**9").reward == 0.0


def test_an_answer_that_the_verifier_cannot_read_is_wrong_and_not_a_fault():
    outcome = score(_TASKS["game_of_life"], "{}")

    assert (outcome.reward, outcome.success) == (0.0, False)
    assert outcome.info == {"error": "the verifier raised KeyError"}


SLOW = {"acre", "figlet_font", "futoshiki", "group_anagrams", "knight_swap", "sokoban", "zebra_puzzles"}
"""Families that take 0.05 to 1 s to make an entry."""

ODD = [
    "",
    "\ud800",
    "nan",
    "1e999999999",
    "1/0",
    "{}",
    "[[]]",
    "9" * 9_999,
    "[" * 9_999,
    '"' * 9_999,
    "a, " * 3_000,
    "x" * 100_000,
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_odd_answer_crashes_hangs_or_wins(template):
    task = _TASKS[template]
    environment = make_environment(task, "0")
    for answer in ODD:
        environment.reset(task)
        environment.step(answer)
        outcome = environment.outcome()
        assert 0.0 <= outcome.reward <= 1.0
        assert not outcome.success
        json.dumps(outcome.model_dump())


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from([t for t in TEMPLATES if t not in SLOW]), st.text(st.characters()))
def test_no_text_breaks_the_scoring(template, answer):
    outcome = score(_TASKS[template], answer)

    assert 0.0 <= outcome.reward <= 1.0


def test_many_threads_score_alike():
    tasks = [task for template, task in _TASKS.items() if template not in SLOW] * 2
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda task: run_baseline(FAMILY, task, "oracle"), tasks))

    assert all(outcome.success for outcome in outcomes)


def test_an_unknown_template_is_refused_at_once():
    with pytest.raises(InputError, match="did you mean 'chain_sum'"):
        FAMILY.tasks(seed=0, templates=["chainsum"])
    with pytest.raises(InputError, match="unknown template 'coin_flip'"):
        FAMILY.tasks(seed=0, templates=["coin_flip"])


def test_a_task_that_describes_no_entry_is_refused():
    for args in (
        {},
        {"family": "chain_sum", "seed": "x", "index": 0, "size": 1},
        {**first("gcd")[0].env_args, "family": "codeio"},
    ):
        with pytest.raises(InputError, match="task 'x'"):
            make_environment(Task(id="x", instruction="?", env="reasoning-gym", env_args=args), "0")


def test_a_task_whose_question_comes_out_differently_is_refused():
    task = first("chain_sum")[0].model_copy(update={"instruction": "State something else."})
    with pytest.raises(InputError, match="makes another question"):
        make_environment(task, "0").reset(task)


def test_a_missing_package_is_one_clear_line():
    program = (
        "import sys; sys.modules['reasoning_gym'] = None  # Python's own way to say that there is no such package\n"
        "from rb_dspy.errors import MissingDependency\n"
        "from rb_dspy.plugins import environment_family\n"
        "family = environment_family('reasoning-gym')\n"
        "print(len(family.templates()))\n"
        "for call in (family.check, lambda: family.tasks(seed=0)):\n"
        "    try: call()\n"
        "    except MissingDependency as exc: print(exc)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert said.stderr == ""
    line = "reasoning-gym is not installed; pip install 'rb-dspy[text]'"
    assert said.stdout.splitlines() == [str(len(TEMPLATES)), line, line]


def test_without_the_sat_solver_only_the_zebra_puzzles_are_missing():
    """pycosat comes as source only; where no compiler could build it, everything else has to work."""
    program = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

class WithoutPycosat:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name == "pycosat" else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, WithoutPycosat]
from rb_dspy.environments.reasoning_gym import ReasoningGym
from rb_dspy.environments.reasoning_gym_screen import TEMPLATES
family = ReasoningGym()
assert set(TEMPLATES) - set(family.templates()) == {"zebra_puzzles"}
task = next(family.tasks(seed=0, templates=["chain_sum"]))
print(family.oracle(task)[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().lstrip("-").isdigit()
    assert "zebra_puzzles" in FAMILY.templates()
