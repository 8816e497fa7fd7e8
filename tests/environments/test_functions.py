"""Functions as tools."""

import re
from typing import Any

import pytest

from rb_dspy.environments.functions import Functions, parse_call
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task

TASK = Task(id="t", instruction="?")


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    The rest is for people.
    """
    return a + b


def fail(x: object) -> None:
    raise KeyError("no such order")


def tools(score: Any = lambda answer, calls: answer == "5", **options: Any) -> Functions:
    environment = Functions([add, fail], score, **options)
    environment.reset(TASK)
    return environment


def test_results_and_errors_are_what_the_agent_sees():
    environment = tools()
    assert environment.step("add(1)") == ("3", False)
    assert environment.step(' add(a=1, b="x") ')[0].startswith("Error: TypeError")
    assert "no such order" in environment.step("fail(3)")[0]
    assert "missing" in environment.step("add()")[0]
    assert "add, fail" in environment.step("sub(1)")[0]


def test_a_result_that_is_no_json_is_shown_as_text():
    def prices() -> dict[tuple[int, int], float]:
        return {(1, 2): 0.5}

    assert Functions([prices], lambda answer, calls: True).step("prices()")[0] == "{(1, 2): 0.5}"


def test_the_pattern_of_actions_is_a_call_of_a_function_or_an_answer():
    matches = re.compile(tools().action_pattern).match
    assert all(map(matches, ["add(1)", "fail(x='a')", "ANSWER: 5"]))
    assert not any(map(matches, ["add", "sub(1)", "add(1", "5"]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "add",
        "add(1",
        "add(1).x",
        "__import__('os').system('true')",
        "add(open('x'))",
        "add(*[1])",
        "add(**{'a': 1})",
        "1",
    ],
)
def test_nothing_is_evaluated(text):
    with pytest.raises(InputError):
        parse_call(text)


def test_a_call_has_literal_arguments():
    assert parse_call("f(1, [2, -3.5], key={'a': None})") == ("f", [1, [2, -3.5]], {"key": {"a": None}})


def test_the_score_gets_the_answer_and_the_calls_that_worked():
    seen = []
    environment = tools(lambda *given: seen.append(given))
    for action in ("add(1)", "fail(1)", "add(2)"):
        environment.step(action)
    assert environment.step("ANSWER: 5") == ("Your answer was taken.", True)
    assert (environment.answer(), environment.outcome()) == ("5", None)
    assert seen == [("5", ("add(1)", "add(2)"))]


@pytest.mark.parametrize(
    ("score", "outcome"),
    [(True, (1.0, True)), (0.4, (0.4, False)), (Outcome(reward=0.5, success=True), (0.5, True))],
)
def test_a_score_is_a_bool_a_reward_or_an_outcome(score, outcome):
    result = tools(lambda answer, calls: score).outcome()
    assert (result.reward, result.success) == outcome


def test_an_episode_ends_after_so_many_actions_and_can_start_again():
    restarted = []
    environment = tools(max_calls=2, restart=lambda: restarted.append(1))
    assert [environment.step("add(1)")[1] for _ in range(2)] == [False, True]
    assert environment.step("ANSWER: 5")[1]
    assert environment.answer() is None
    environment.reset(TASK)
    environment.step("ANSWER: 5")
    assert environment.outcome().success
    assert len(restarted) == 2


def test_the_agent_reads_names_parameters_and_if_wanted_the_first_line():
    assert "- add(a: int, b: int = 2): Add two numbers." in tools().action_rules
    assert "Add two" not in tools(describe=False).action_rules
    assert "for people" not in tools().action_rules
