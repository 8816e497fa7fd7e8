"""Generated questions: sound, the same everywhere, and scored without trusting the answer."""

import hashlib
import itertools
import os
import subprocess
import sys

import pytest

from rb_dspy.environments import make_environment
from rb_dspy.environments.reasoning_gym import SMALL_MODEL_TEMPLATES, TEMPLATES, ReasoningGym
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task
from tests.environments.baselines import run_baseline

FAMILY = ReasoningGym()

REASONS = {
    "it gives no answer of its own, so its scoring cannot be checked": """
        boxnet graph_color propositional_logic rubiks_cube rush_hour
    """,
    "its questions depend on Python's string hash: the same seed asks something else in another process": """
        isomorphic_strings list_functions polynomial_multiplication ransom_note
    """,
    "its verifier evaluates the answer as Python code, and needs letters and calls in it": """
        intermediate_integration simple_integration
    """,
    "its verifier accepts wrong answers, such as nan, or every text but one": """
        coin_flip complex_arithmetic game_of_life_halting puzzle24
    """,
    "its verifier raises on most wrong answers": "prime_factorization",
    "its questions have over 5,000 characters, or are recorded, not generated": "arc_agi codeio rectangle_count",
    "it prints to standard output": "bf tower_of_hanoi",
    "a mixture of other families; it has no questions of its own": "composite",
}
"""Why families of the package are no templates."""


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    """The first task of each template."""
    return {task.template: task for task in itertools.islice(FAMILY.tasks(seed=0), len(TEMPLATES))}


def first(template: str, n: int = 1, seed: int = 0) -> list[Task]:
    return list(itertools.islice(FAMILY.tasks(seed=seed, templates=[template]), n))


def score(task: Task, answer: str) -> Outcome:
    environment = make_environment(task, "0")
    environment.reset(task)
    environment.step(answer)
    return environment.outcome()


def test_every_family_of_the_package_is_a_template_or_left_out_for_a_reason():
    from reasoning_gym.factory import DATASETS

    left_out = " ".join(REASONS.values()).split()
    assert sorted([*TEMPLATES, *left_out]) == sorted(DATASETS)
    assert set(SMALL_MODEL_TEMPLATES) < set(TEMPLATES)


def test_in_every_template_the_own_answer_wins_and_no_other_is_run_as_code(tasks, tmp_path, capsys):
    target = tmp_path / "written"
    attack = f"[open({str(target)!r}, 'w').write('x')]"
    assert list(tasks) == list(TEMPLATES)
    for template, task in tasks.items():
        assert set(task.env_args) == {"family", "seed", "index", "size"}, "the answer is not among them"
        environment = make_environment(task, "0")
        environment.reset(task)
        for answer, right in ((FAMILY.oracle(task)[0], True), (attack, False)):
            environment.step(answer)
            assert environment.outcome().success is right, (template, answer)
            environment.reopen()
        assert not target.exists(), template
    assert capsys.readouterr().out == ""


def test_no_question_repeats_where_the_family_has_few():
    tasks = first("string_splitting", 100)  # about four of ten draws are repeats
    assert len({task.instruction for task in tasks}) == 100


def test_a_question_that_the_package_cannot_answer_is_passed_over():
    # Entry 4 of this stream asks for 0 in another base, which the package answers with an empty text.
    assert [task.id.rpartition("-")[2] for task in first("base_conversion", 5, seed=180)] == ["0", "1", "2", "3", "5"]


def test_neighboring_seeds_share_no_questions():
    # The package adds seed and index: its own seeds 0 and 1 share all questions but one.
    questions = [{task.instruction for task in first("chain_sum", 100, seed=seed)} for seed in (0, 1)]
    assert not questions[0] & questions[1]


def test_the_same_seed_gives_the_same_tasks_in_another_process():
    program = (
        "import hashlib, itertools;"
        "from rb_dspy.environments.reasoning_gym import SMALL_MODEL_TEMPLATES, ReasoningGym;"
        "tasks = ReasoningGym().tasks(seed=0, templates=SMALL_MODEL_TEMPLATES);"
        "print(hashlib.sha256(repr(list(itertools.islice(tasks, 11))).encode()).hexdigest())"
    )
    environ = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    here = list(itertools.islice(FAMILY.tasks(seed=0, templates=SMALL_MODEL_TEMPLATES), 11))
    assert done.stdout.strip() == hashlib.sha256(repr(here).encode()).hexdigest()


@pytest.mark.parametrize("template", ["chain_sum", "spell_backward", "caesar_cipher"])
def test_quotes_around_a_right_answer_are_forgiven_and_words_are_not(template):
    task = first(template)[0]
    right = FAMILY.oracle(task)[0]
    for quoted in (f"  {right}\n", f'"{right}"', f"`{right}`", f"```\n{right}\n```"):
        assert score(task, quoted).success
    assert not score(task, f"The answer is {right}").success


def test_a_right_answer_that_is_quoted_itself_wins():
    task = next(t for t in FAMILY.tasks(seed=0, templates=["emoji_mystery"]) if '"' in FAMILY.oracle(t)[0])
    assert run_baseline(FAMILY, task, "oracle").success


def test_an_answer_that_a_verifier_cannot_read_is_wrong_and_not_a_fault(tasks):
    for template in ("game_of_life", "sudoku", "dice", "number_sequence", "countdown"):
        for odd in ("[[]]", "\ud800", "1/0", "9" * 9_999, '"' * 9_999, "9**9**9**9"):
            outcome = score(tasks[template], odd)
            assert (outcome.success, 0.0 <= outcome.reward < 1.0) == (False, True), (template, odd[:9])
    assert "KeyError" in score(tasks["game_of_life"], "{}").info["error"]


def test_a_task_that_describes_no_entry_of_a_template_is_refused(tasks):
    args = tasks["gcd"].env_args
    for wrong in ({**args, "seed": "x"}, {**args, "family": "codeio"}, {**args, "index": -1}):
        with pytest.raises(InputError, match="'x'"):
            make_environment(Task(id="x", instruction="?", env="reasoning-gym", env_args=wrong), "0")


def test_a_task_whose_question_comes_out_differently_is_refused(tasks):
    task = tasks["chain_sum"].model_copy(update={"instruction": "State something else."})
    with pytest.raises(InputError, match=task.id):
        make_environment(task, "0").reset(task)
