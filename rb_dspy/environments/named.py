"""Import what a user names by ``MODULE:NAME``, such as an environment."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, RBError, describe_error
from rb_dspy.plugins import lacks
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Task

_GIVEN = ("task", "rollout_id")
_POSITION = inspect.Parameter.POSITIONAL_ONLY


def environment_factory(spec: str) -> EnvironmentFactory:
    """Return the factory that ``MODULE:NAME`` names; also imports from the current folder.

    Args:
        spec: Names a function ``(task, rollout_id)`` that returns an environment, an ``Environment`` class, or an
            ``EnvironmentFamily`` class. Function and class get what their parameters name: ``task``, ``rollout_id``,
            both or neither. Other names are filled in this order if they have no default.

    Raises:
        InputError: ``spec`` names something else or cannot be imported.
    """
    found, name = imported(spec, "environment"), spec.partition(":")[2]
    try:
        is_family = inspect.isclass(found) and hasattr(found, "make") and hasattr(found, "tasks")
        family: Any = found() if is_family else None
        signature = inspect.signature(found) if callable(found) else None
    except RBError:
        raise
    except (Exception, SystemExit) as exc:  # a user's module may raise anything
        raise InputError(f"environment {spec}: cannot be imported here: {describe_error(exc, 300)}") from exc
    if family is not None:
        family.check()
        return lambda task, rollout_id: family.make(task)
    if signature is None:
        raise InputError(f"environment {spec}: is a {type(found).__name__}; expected a function or a class")
    methods = ("reset", "step", "valid_actions", "answer", "outcome", "close")
    if inspect.isclass(found) and (missing := lacks(found, methods)):
        raise InputError(f"environment {spec}: {name} has no {', '.join(missing)}; see docs/environments.md")
    for given, named in _ways(signature):
        with suppress(TypeError):
            signature.bind(*given, **dict.fromkeys(named))
            return partial(_make, found, given, named)
    raise InputError(f"environment {spec}: takes {signature}; expected (task, rollout_id), (task) or nothing")


def imported(spec: str, what: str) -> Any:
    """Return what ``MODULE:NAME`` names; also imports from the current folder. ``what``: for errors.

    Raises ``InputError`` if it cannot be imported.
    """
    module, _, name = spec.partition(":")
    if not (module and name):
        raise InputError(f"{what} {spec}: expected MODULE:NAME, such as my_module:mine")
    if module.endswith(".py"):
        raise InputError(f"{what} {spec}: expected the name of a module, not of a file: {module[:-3]}:{name}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return pkgutil.resolve_name(spec)
    except RBError:
        raise
    except (Exception, SystemExit) as exc:  # a user's module may raise anything
        raise InputError(f"{what} {spec}: cannot be imported here: {describe_error(exc, 300)}") from exc


def _ways(signature: inspect.Signature) -> Sequence[tuple[Sequence[str], Sequence[str]]]:
    """What may be passed by position and by name; the first that fits is right."""
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    named = [each for each in _GIVEN if kinds.get(each, _POSITION) is not _POSITION]
    others = [each for each in _GIVEN if each not in named]
    ways = [(others[:n], named) for n in range(len(others) + 1)] + [(_GIVEN[:n], ()) for n in range(3)]
    return ways[::-1] if inspect.Parameter.VAR_POSITIONAL in kinds.values() else ways


def _make(found: Any, given: Sequence[str], named: Sequence[str], task: Task, rollout_id: str) -> Environment:
    values = {"task": task, "rollout_id": rollout_id}
    made: Environment = found(*(values[each] for each in given), **{each: values[each] for each in named})
    return made
