"""Format the first error of a configuration in one line: its source, key, value, and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import pydantic

from rb_dspy.errors import ConfigError
from rb_dspy.text import first_error

_HIDDEN = {"api_base", "api_key_env", "options"}
"""Keys whose values may hold a secret by mistake: errors do not quote them."""


def config_error(
    model: type[pydantic.BaseModel], exc: pydantic.ValidationError, sources: Mapping[str, str], default: str
) -> ConfigError:
    """Return the first error in one line. ``sources``: key -> its source; every other key is from ``default``."""
    error = exc.errors(include_url=False, include_context=False)[0]
    allowed, path = _children(model), []
    for part in error["loc"]:
        path.append(str(part))
        if part not in allowed:
            break
        if not (below := _children(allowed[part])):
            break
        allowed = below
    else:
        allowed = {}  # the error is about a whole table
    key = ".".join(path)
    near_keys = (each for each in sources if f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}."))
    source = sources.get(next(near_keys, ""), default)
    if allowed and path[-1] not in allowed:
        near = difflib.get_close_matches(path[-1], allowed, n=1)
        hint = f"did you mean {'.'.join((*path[:-1], near[0]))!r}?" if near else f"known here: {', '.join(allowed)}"
        return ConfigError(f"{source}: unknown key {key!r}; {hint}")
    if error["type"] == "missing":
        return ConfigError(f"{source}: {key} is missing")
    why = first_error(exc)[1]
    where = source if source.startswith("--") and source != "--set" else f"{source}: {key}".removesuffix(": ")
    if not allowed or _HIDDEN.intersection(path):
        return ConfigError(f"{where}: {why}")
    return ConfigError(f"{where} = {_shorten(error['input'])}: {why}")


def _children(annotation: Any) -> dict[str, Any]:
    """The keys of a table with their types; none for a plain value."""
    kinds = (annotation,) if isinstance(annotation, type) else get_args(annotation)
    model = next((each for each in kinds if isinstance(each, type) and issubclass(each, pydantic.BaseModel)), None)
    if model is None:
        return {}
    if get_origin(annotation) is dict:
        return dict.fromkeys(get_args(kinds[0]), model)
    return {name: field.annotation for name, field in model.model_fields.items()}


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or thousands of nested tables
        return f"a {type(value).__name__} too large to be shown"
    return text if len(text) <= 200 else f"{text[:200]}…"
