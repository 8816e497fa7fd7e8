"""Functions as tools."""

import asyncio
import math
import re
from collections import namedtuple
from datetime import date
from functools import partial
from typing import Any

import dspy
import pandas as pd
import pytest

from rb_dspy import Backbones
from rb_dspy.environments.functions import MAX_CALL, Functions, parse_call
from rb_dspy.errors import InputError
from rb_dspy.schema import Outcome, Task
from rb_dspy.steps import Act, Memory
from rb_dspy.testing import Corridor, corridor, locksmith, scripted_lm

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


class Counter:
    """Counts."""

    def __call__(self, by: int = 1) -> str:
        return f"counted {by}"

    def method(self, x: int) -> int:
        """A method."""
        return x


async def later(x: int) -> int:
    """Takes its time."""
    await asyncio.sleep(0)
    return x


def named(function: Any, name: str) -> Any:
    function.__name__ = name
    return function


CALLABLES = {
    "partial": (partial(add, 1), "- add(b: int = 2): Add two numbers.", "add(b=4)", "5"),
    "partial of async": (partial(later, 3), "- later(): Takes its time.", "later()", "3"),
    "builtin": (max, "- max(...): max(iterable", "max(3, 4)", "4"),
    "builtin with a signature": (math.floor, "- floor(x, /): ", "floor(1.5)", "1"),
    "bound method": (Counter().method, "- method(x: int): A method.", "method(2)", "2"),
    "object": (Counter(), "- Counter(by: int = 1): Counts.", "Counter()", "counted 1"),
    "class": (dict, "- dict(", "dict(a=1)", '{"a": 1}'),
    "async": (later, "- later(x: int): Takes its time.", "later(7)", "7"),
    "lambda with a name": (named(lambda x: x, "same"), "- same(x)", "same([1])", "[1]"),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_whatever_can_be_called_is_a_tool(kind):
    function, line, action, result = CALLABLES[kind]

    async def in_a_notebook():
        return Functions([function], lambda answer, calls: True).step(action)

    environment = Functions([function], lambda answer, calls: calls == (action,))
    assert line in environment.action_rules
    assert environment.step(action) == asyncio.run(in_a_notebook()) == (result, False)
    assert environment.outcome().success


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ([], "no function"),
        ([lambda x: x], "'<lambda>'.*def"),
        ([lambda x: x, lambda y: y], "'<lambda>'.*def"),
        ([partial(add, 1), partial(add, 2)], "'add'.*__name__"),
        ([named(lambda: 1, "class")], "'class'"),
        ([named(lambda: 1, "a b")], "'a b'"),
        ([3], "'int'"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(functions, said):
    with pytest.raises(InputError, match=said):
        Functions(functions, lambda answer, calls: True)


def leave():
    raise SystemExit("the tool ends the program")


async def late_failure():
    raise OSError("no\nconnection")


def leak():
    raise ValueError("401: the key sk-abcdefgh12345678 is not valid " + "x" * 10_000)


@pytest.mark.parametrize(
    ("function", "said"), [(leave, "ends the program"), (late_failure, "OSError: no connection"), (leak, "redacted")]
)
def test_whatever_a_function_raises_is_one_line_without_keys(function, said):
    observation, done = Functions([function], lambda answer, calls: True).step(f"{function.__name__}()")
    assert observation.startswith("Error: ")
    assert said in observation
    assert "\n" not in observation
    assert "abcdefgh" not in observation
    assert len(observation) < 600
    assert not done


Row = namedtuple("Row", "order state")


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


RESULTS = {
    "text": ("a\nb", "a\nb"),
    "nothing": (None, "null"),
    "JSON": ({"a": [1, None]}, '{"a": [1, null]}'),
    "keys that JSON has not": ({(1, 2): 0.5}, '{"(1, 2)": 0.5}'),
    "row": (Row(7, "late"), '{"order": 7, "state": "late"}'),
    "rows": ([Row(7, "late")], '[{"order": 7, "state": "late"}]'),
    "data frame": (pd.DataFrame({"type": ["late"] * 5000, "order": range(5000)}), "late   4999"),
    "bytes": (b"\x00" * 9, "[binary, 9 bytes]"),
    "image": (dspy.Image("data:image/png;base64," + "A" * 9000), "[image]"),
    "itself": (itself(), "nested too deeply"),
    "date": (date(2026, 11, 24), "2026-11-24"),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_whatever_a_tool_or_an_environment_returns_is_shown_as_readable_text(kind):
    result, shown = RESULTS[kind]

    def look():
        return result

    class Room(Corridor):
        def step(self, action):
            return result, True

    observation = Functions([look], lambda answer, calls: True).step("look()")[0]
    assert shown in observation
    assert len(observation) < 5000
    if result is not None:
        with Backbones(agent=scripted_lm(locksmith)).use():
            assert Act()(corridor(), Memory(), lambda task, rollout: Room()).steps[0].observation == observation


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
        "add(a=1, a=2)",
        "add(" + "[" * 900 + "]" * 900 + ")",
        "add(" + "-" * 50_000 + "1)",
        "add(" * 20_000,
        "add" + "(1)" * 20_000,
        f"add('{'a' * MAX_CALL}')",
        f"add({'9' * 5000})",
        "add(9**9**9)",
        "add('\0')",
        "[" * 900,
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
    assert environment.step("ANSWER: 5") == ("", True)
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
