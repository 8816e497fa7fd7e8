"""Questions from the user's own file, and which answers count as the same."""

from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from rb_dspy.environments.answers import AcceptedAnswers
from rb_dspy.environments.question import Question
from rb_dspy.environments.single_turn import MAX_ANSWER
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task


def question(**env_args) -> Task:
    return Task(id="q", instruction="What is it?", env_args=env_args)


def answered(action: str, **env_args) -> Outcome | None:
    environment = Question().make(question(**env_args))
    environment.reset(question(**env_args))
    assert environment.step(action)[1]
    return environment.outcome()


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("  paris.\n", "Paris"),
        ("PARIS", "paris."),
        ('"New   York"', "new york"),
        ("“New York”.", "New York"),
        ("```\n`Paris`\n```", "Paris"),
        ("STRASSE", "straße"),
        ("e\u0301tude", "étude"),
        ("42.0", "42"),
        ("42.", "42"),
        ("1,000", "1000"),
        ("'1.0e3'", "1,000.0"),
        ("1e-07", "0.0000001"),
        ("1E+3", "1000"),
        ("٣", "3"),
        ("12e3", "12E3"),
        ("\u22123", "-3"),
        (".5", "0.5"),
        ("nan", "NaN"),
        ("'", "'"),
        (".", "."),
        ("...", "..."),
        ('""', '""'),
    ],
)
def test_answers_that_count_as_the_same(answer, accepted):
    assert answer in AcceptedAnswers(["other", accepted])
    assert accepted in AcceptedAnswers([answer])


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("", "Paris"),
        ("Paris, France", "Paris"),
        ("The answer is Paris", "Paris"),
        ("3", "-3"),
        ("50", "50%"),
        ("2,3", "23"),
        ("0,500", "500"),
        ("007", "7"),
        ("01234", "1234"),
        ("00", "0"),
        ("-07", "-7"),
        ("1_2", "12"),
        ("12E3", "12000"),
        ("1e3", "1000"),
        ("10²", "102"),
        ("5", "5!"),
        ("etc", "/etc"),
        ("txt", "*.txt"),
        ("init", "__init__"),
        ("5", ".5"),
        ("inf", "1e9"),
        ("New York", "NewYork"),
    ],
)
def test_answers_that_differ(answer, accepted):
    assert answer not in AcceptedAnswers([accepted])
    assert accepted not in AcceptedAnswers([answer])


@given(st.from_regex(r"0\d+|\d+[eE]\d+|\d+_\d+", fullmatch=True), st.from_regex(r"[\d_eE]{1,6}", fullmatch=True))
def test_every_character_of_a_code_counts(code, other):
    assert (other in AcceptedAnswers([code])) is (other.casefold() == code.casefold())


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_number_is_its_value_however_python_writes_it(number):
    assert f"{Decimal(repr(number)):f}" in AcceptedAnswers([str(number)])


def test_any_of_several_answers_is_right():
    assert answered("NYC", answers=["New York", "NYC"]).success
    assert answered("Boston", answer="Boston", answers=["NYC"]).success
    assert answered("42", answer=42).reward == 1.0
    assert answered("LA", answers=["New York", "NYC"]).reward == 0.0


@pytest.mark.parametrize("env_args", [{}, {"answers": []}, {"source": "a", "difficulty": 3}])
def test_without_ground_truth_the_outcome_is_unknown(env_args):
    assert answered("Paris", **env_args) is None
    with pytest.raises(InputError):
        Question().oracle(question(**env_args))


@pytest.mark.parametrize(
    "env_args",
    [
        {"answer": ""},
        {"answer": True},
        {"answer": {"a": 1}},
        {"answer": ["Paris"]},
        {"answers": "x"},
        {"answers": [None]},
        {"anwser": "Paris"},
        {"Answer": "Paris"},
    ],
)
def test_a_task_that_cannot_be_scored_is_refused_before_it_is_worked_on(env_args):
    with pytest.raises(InputError, match="'q'"):
        Question().make(question(**env_args))


def test_questions_come_from_a_file():
    with pytest.raises(InputError):
        Question().tasks(seed=0)
    assert Question().templates() == ()


def test_only_the_first_answer_counts_unless_the_question_is_reopened():
    task = question(answer="a")
    environment = Question().make(task)
    environment.reset(task)
    assert environment.reopen() is None
    environment.step("b")
    environment.step("a")
    assert environment.answer() == "b"

    assert environment.reopen() is not None
    assert (environment.answer(), environment.outcome().success) == ("b", False)
    environment.step("a")
    assert (environment.answer(), environment.outcome().success) == ("a", True)


def test_no_answer_and_a_runaway_answer_are_wrong_and_say_why():
    task = question(answer="a")
    environment = Question().make(task)
    environment.reset(task)
    assert "error" in environment.outcome().info
    environment.step("a " * MAX_ANSWER)
    assert (environment.outcome().success, "error" in environment.outcome().info) == (False, True)


@pytest.mark.parametrize(
    ("reveal", "right", "wrong"),
    [("verdict", "Your answer is right.", "Your answer is wrong."), ("answer", "Your answer is right.", "Paris")],
)
def test_a_question_can_tell_what_was_right(reveal, right, wrong):
    task = question(answers=["Paris", "paris, france"], reveal=reveal)
    for action, expected in (("PARIS", right), ("Rome", wrong)):
        environment = Question().make(task)
        environment.reset(task)
        observation, ended = environment.step(action)
        assert expected in observation
        assert ("Paris" in observation) is (reveal == "answer" and action == "Rome")
        assert ended
        assert environment.reopen() is None  # the answer is known now


def test_what_a_question_reveals_is_checked_and_is_nothing_without_an_answer():
    with pytest.raises(InputError, match=r"'q'.*verdict"):
        Question().make(question(answer="a", reveal="all"))
    task = question(reveal="answer")
    environment = Question().make(task)
    environment.reset(task)
    assert environment.step("a") == ("", True)
