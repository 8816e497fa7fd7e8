"""Python functions as the tools of an agent: an action is one call, and its result or its error is the observation."""

from __future__ import annotations

import ast
import functools
import inspect
import keyword
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rb_dspy.errors import InputError, describe_error
from rb_dspy.protocols import Environment
from rb_dspy.schema import Outcome, Task

ANSWER = "ANSWER:"
"""Prefix of the action that ends an episode."""

MAX_CALL = 100_000
"""Maximum length of a call, in characters."""


class Functions(Environment):
    """An environment of plain functions. Make a new one, with its own state, for every rollout.

    ::

        def desk(task, rollout_id):
            orders = load_orders()
            return Functions([orders.find, orders.refund], lambda answer, calls: orders.refunded == task.env_args["id"])

        program = ReasoningBank(environments=desk)     # on the command line: --env my_module:desk

    An action is one call with literal arguments, such as ``refund(order=17, reason="late")``; it is never evaluated as
    code. An exception becomes the observation, because errors are what an agent learns most from. The episode ends with
    ``ANSWER: ...`` or after ``max_calls`` calls.

    Args:
        functions: Called by name; also async functions, partials and objects that can be called. Set ``__name__`` to
            give one another name.
        score: Called once, with the answer (None if there is none) and the successful calls, as texts.
            Returns a bool, a reward from 0 to 1 (1 is success), an ``Outcome``, or None if the truth is unknown.
        max_calls: Number of actions after which the episode ends.
        describe: Whether the agent sees the first line of each docstring; it always sees names and parameters.
        first: The first observation.
        restart: Called by ``reset`` to restore the initial state of the functions.
    """

    action_rules = ""

    def __init__(
        self,
        functions: Iterable[Callable[..., Any]],
        score: Callable[[str | None, Sequence[str]], bool | float | Outcome | None],
        *,
        max_calls: int = 10,
        describe: bool = True,
        first: str = "The functions are ready.",
        restart: Callable[[], object] | None = None,
    ) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        for function in functions:
            name = _name(function)
            if name in self._functions:
                raise InputError(f"Functions: two functions are called {name!r}; set __name__ of one of them")
            self._functions[name] = function
        if not self._functions:
            raise InputError("Functions: there is no function; expected at least one")
        self._score = score
        self._max_calls = max_calls
        self._first = first
        self._restart = restart
        self._answer: str | None = None
        self._calls: list[str] = []
        self._count = 0
        self.action_pattern = rf"^(({'|'.join(self._functions)})\(.*\)|{ANSWER} .*)$"
        lines = [_described(name, function, describe) for name, function in self._functions.items()]
        self.action_rules = (
            f"Your action is one call of a function with plain values, or '{ANSWER} ' and your final answer, which ends"
            f" the task. There are at most {max_calls} actions. The functions:\n" + "\n".join(lines)
        )

    def reset(self, task: Task) -> str:
        self._answer, self._calls, self._count = None, [], 0
        if self._restart is not None:
            self._restart()
        return self._first

    def step(self, action: str) -> tuple[str, bool]:
        if self._answer is not None or self._count >= self._max_calls:
            return "The task has ended.", True
        self._count += 1
        text = action.strip()
        if text.startswith(ANSWER):
            self._answer = text.removeprefix(ANSWER).strip()
            return "", True
        return self._called(text), self._count >= self._max_calls

    def answer(self) -> str | None:
        return self._answer

    def outcome(self) -> Outcome | None:
        score = self._score(self._answer, tuple(self._calls))
        if score is None or isinstance(score, Outcome):
            return score
        return Outcome(reward=float(score), success=float(score) >= 1.0)

    def _called(self, text: str) -> str:
        """Make the call in ``text`` and return its result or its error as an observation."""
        try:
            name, positional, named = parse_call(text)
        except InputError as exc:
            return f"Error: {exc}"
        function = self._functions.get(name)
        if function is None:
            return f"Error: there is no function {name!r:.60}; expected one of {', '.join(self._functions)}"
        try:
            signature = _signature(function)
            if signature is not None:
                signature.bind(*positional, **named)
        except TypeError as exc:
            return f"Error: {name}: {exc}"
        from rb_dspy.concurrency import resolve  # they import dspy, which takes a second
        from rb_dspy.content import observation_text

        try:
            result = resolve(function(*positional, **named))
        except (Exception, SystemExit) as exc:  # noqa: BLE001 (the agent sees every exception of a user's function)
            return f"Error: {describe_error(exc, 500)}"
        self._calls.append(text)
        return result if isinstance(result, str) else observation_text(result)


# CPython 3.11 counts the depth of a tree for all threads together: "AST constructor recursion depth mismatch".
_PARSER = threading.Lock()


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Parse a call such as ``f(1, b="x")`` into name and arguments. Nothing is evaluated: arguments are literals.

    Raises:
        InputError: ``text`` is not such a call.
    """
    expected = 'expected one call with plain values, such as name(1, key="value")'
    try:
        if len(text) > MAX_CALL:
            raise InputError(f"the call has {len(text):,} characters; at most {MAX_CALL:,} are read")
        with _PARSER:
            call = ast.parse(text.strip(), mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise InputError(f"this is no call; {expected}")
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
        if len(named) < len(call.keywords):
            raise InputError(f"** and a name that occurs twice cannot be used; {expected}")
        return call.func.id, [ast.literal_eval(each) for each in call.args], named
    except InputError:
        raise
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):  # ast raises any of these
        raise InputError(f"the call cannot be read; {expected}") from None


def _name(function: Any) -> str:
    """The name of a function, of what a partial calls, or of an object's class."""
    inner = _inner(function)
    name = str(getattr(function, "__name__", getattr(inner, "__name__", type(inner).__name__)))
    if not callable(function) or not name.isidentifier() or keyword.iskeyword(name):
        raise InputError(f"Functions: {name!r:.60} is no name of a function; use def, or set its __name__")
    return name


def _inner(function: Any) -> Any:
    return function.func if isinstance(function, functools.partial) else function


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters; None for a function of C that does not state them."""
    try:
        return inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
    except ValueError:
        return None


def _described(name: str, function: Callable[..., Any], describe: bool) -> str:
    text = (inspect.getdoc(_inner(function)) or "").partition("\n")[0] if describe else ""
    return f"- {name}{_signature(function) or '(...)'}" + (f": {text}" if text else "")
