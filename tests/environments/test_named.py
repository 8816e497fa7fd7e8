"""``--env``: what the user's function or class is called with."""

import sys
from functools import partial

import pytest

from rb_dspy.environments.named import environment_factory
from rb_dspy.errors import InputError
from rb_dspy.schema import Task

TASK = Task(id="t", instruction="?")
BOTH = {"task": TASK, "rollout_id": "7"}


class Desk:
    """An environment that keeps what it was made with."""

    def __init__(self, task=None, size=3):
        self.given = {"task": task} if size == 3 else {}

    reset = step = valid_actions = answer = outcome = close = lambda self, *_: None


class Plain(Desk):
    def __init__(self, size=3):
        self.given = {"size": size}


class Family(Desk):
    """A family."""

    def check(self): ...

    def tasks(self): ...

    def make(self, task):
        return Desk(task)


def wrapped(*args, **named):
    return [*args, named]


FUNCTIONS = {
    "lambda task, rollout_id: [task, rollout_id]": [TASK, "7"],
    "lambda t, r: [t, r]": [TASK, "7"],
    "lambda task: [task]": [TASK],
    "lambda: []": [],
    "lambda task, rollout_id='x': [task, rollout_id]": [TASK, "7"],
    "lambda task=None, rollout_id=None: [task, rollout_id]": [TASK, "7"],
    "lambda rollout_id, task: [task, rollout_id]": [TASK, "7"],
    "lambda t, rollout_id=None: [t, rollout_id]": [TASK, "7"],
    "lambda task, r: [task, r]": [TASK, "7"],
    "lambda task, *, rollout_id: [task, rollout_id]": [TASK, "7"],
    "lambda *, rollout_id='x': [rollout_id]": ["7"],
    "lambda task, /, seed=1: [task, seed]": [TASK, 1],
    "lambda size=2: [size]": [2],
    "lambda *args: list(args)": [TASK, "7"],
    "lambda task, *args: [task, *args]": [TASK, "7"],
    "wrapped": [TASK, "7", {}],
    "partial(wrapped, 1)": [1, TASK, "7", {}],
    "partial(lambda task, rollout_id: [task, rollout_id], rollout_id='x')": [TASK, "7"],
}


@pytest.mark.parametrize("source", FUNCTIONS)
def test_a_function_gets_what_its_parameters_name(source, monkeypatch):
    function = eval(source, {"wrapped": wrapped, "partial": partial})
    monkeypatch.setattr(sys.modules[__name__], "made", function, raising=False)
    assert environment_factory(f"{__name__}:made")(**BOTH) == FUNCTIONS[source]


@pytest.mark.parametrize(("name", "given"), [("Desk", {"task": TASK}), ("Plain", {"size": 3}), ("Family", None)])
def test_a_class_too(name, given):
    assert environment_factory(f"{__name__}:{name}")(TASK, "7").given == (given or {"task": TASK})


MODULES = {
    "raise ValueError('two\\nlines')": "ValueError: two lines",
    "import sys; sys.exit('leave')": "leave",
    "import not_there_at_all": "not_there_at_all",
    "def (": "SyntaxError",
    "made = 3": "int",
    "made = max": "max",
    "made = lambda a, b, c: None": "(a, b, c)",
    "class made: pass": "reset",
    "class made:\n def make(self, task): ...\n def tasks(self): ...\n def __init__(self): 1 / 0": "ZeroDivisionError",
    "": "made",
}


@pytest.mark.parametrize("source", MODULES)
def test_what_cannot_be_used_is_refused_in_one_line(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_env", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_env.py").write_text(source)
    with pytest.raises(InputError, match=r"own_env:made") as caught:
        environment_factory("own_env:made")
    assert MODULES[source] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["x", ":x", "x:", "../x:y", ".x:y", "json:..", "builtins:max"])
def test_a_name_that_is_none_too(spec):
    with pytest.raises(InputError, match="environment"):
        environment_factory(spec)
