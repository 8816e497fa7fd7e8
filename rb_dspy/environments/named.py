"""Import a user's environment by ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, RBError, describe_error
from rb_dspy.plugins import lacks
from rb_dspy.protocols import EnvironmentFactory


def environment_factory(spec: str) -> EnvironmentFactory:
    """Return the factory that ``MODULE:NAME`` names; also imports from the current folder.

    Args:
        spec: Names a function ``(task, rollout_id)`` that returns an environment, an ``Environment`` class (called
            without arguments, or with the task), or an ``EnvironmentFamily`` class.

    Raises:
        InputError: ``spec`` names something else or cannot be imported.
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
    signature, counts = inspect.signature(found), (0, 1, 2)
    if inspect.isclass(found):
        if missing := lacks(found, ("reset", "step", "valid_actions", "answer", "outcome", "close")):
            raise InputError(f"environment {spec}: {name} has no {', '.join(missing)}; see docs/environments.md")
    elif any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()):
        counts = (2, 1, 0)
    for count in counts:
        with suppress(TypeError):
            signature.bind(*range(count))
            return lambda task, rollout_id: found(*(task, rollout_id)[:count])
    raise InputError(f"environment {spec}: takes {signature}; expected (task, rollout_id), (task) or nothing")
