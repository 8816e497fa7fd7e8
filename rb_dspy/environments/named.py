"""An environment of the user's own, by the place of its code."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, RBError, describe_error
from rb_dspy.plugins import lacks
from rb_dspy.protocols import EnvironmentFactory


def environment_factory(spec: str) -> EnvironmentFactory:
    """The factory that ``MODULE:NAME`` names, imported from the current folder too.

    Args:
        spec: Names a function ``(task, rollout_id)`` that returns an environment, an ``Environment`` class (called
            without arguments, or with the task), or an ``EnvironmentFamily`` class.

    Raises:
        InputError: It names something else, or cannot be imported.
    """
    module, _, name = spec.partition(":")
    if not (module and name):
        raise InputError(f"environment {spec}: expected MODULE:NAME, such as my_env:Desk")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except RBError:
        raise
    except Exception as exc:
        raise InputError(f"environment {spec}: cannot be imported here: {describe_error(exc, 300)}") from exc
    if not callable(found):
        raise InputError(f"environment {spec}: is a {type(found).__name__}; expected a function or a class")
    if inspect.isclass(found) and hasattr(found, "make") and hasattr(found, "tasks"):
        family: Any = found()
        family.check()
        return lambda task, rollout_id: family.make(task)
    if inspect.isclass(found):
        needed = ("reset", "step", "valid_actions", "answer", "outcome", "close")
        if missing := lacks(found, needed):
            raise InputError(
                f"environment {spec}: {found.__name__} has no {', '.join(missing)}; expected an Environment, see"
                " docs/agents.md"
            )
    count = _parameters(found, spec)
    return lambda task, rollout_id: found(*(task, rollout_id)[:count])


def _parameters(factory: Any, spec: str) -> int:
    """How many of (task, rollout_id) it is called with."""
    parameters = inspect.signature(factory).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.kind in kinds and each.default is each.empty]
    if len(required) > 2:
        raise InputError(
            f"environment {spec}: takes {len(required)} arguments; expected (task, rollout_id), (task) or none"
        )
    if required or inspect.isclass(factory):
        return len(required)
    return 2 if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters) else 0
