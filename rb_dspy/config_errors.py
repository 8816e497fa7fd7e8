"""One line for the first error of a configuration: where it was set, its key, its value, and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import pydantic

from rb_dspy.errors import ConfigError

_HIDDEN = {"api_base", "api_key_env", "options"}
"""Keys whose values may hold a secret by mistake: errors do not quote them."""
_REMOVED = {
    ("ActConfig", "step_seconds"): "set a time limit in the environment itself",
    ("DistillConfig", "filter_numbers"): "lessons that quote numbers are no longer dropped",
    ("SelectConfig", "agreement"): "use matts.select.verdicts",
    ("MattsConfig", "adaptive"): "use matts.k",
    ("BackboneConfig", "patience"): "use num_retries",
    ("BackboneConfig", "omit"): 'use temperature = "none"',
}


def config_error(
    model: type[pydantic.BaseModel], exc: pydantic.ValidationError, sources: Mapping[str, str], default: str
) -> ConfigError:
    """The first error in one line. ``sources``: key -> what set it; every other key is from ``default``."""
    error = exc.errors(include_url=False, include_context=False)[0]
    table, allowed, path = "", _children(model)[1], []
    for part in error["loc"]:
        path.append(str(part))
        if part not in allowed:
            break
        name, below = _children(allowed[part])
        if not below:
            break
        table, allowed = name, below
    else:
        allowed = {}  # the error is about a whole table
    key = ".".join(path)
    near_keys = (each for each in sources if f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}."))
    source = sources.get(next(near_keys, ""), default)
    if allowed and path[-1] not in allowed:
        removed = _REMOVED.get((table or model.__name__, path[-1]))
        near = difflib.get_close_matches(path[-1], allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(allowed)}"
        return ConfigError(
            f"{source}: {f'{key!r} was removed; {removed}' if removed else f'unknown key {key!r}; {hint}'}"
        )
    if error["type"] == "missing":
        return ConfigError(f"{source}: {key} is missing")
    message = error["msg"].removeprefix("Value error, ")
    why = message[:1].lower() + message[1:]
    where = source if source.startswith("--") and source != "--set" else f"{source}: {key}".removesuffix(": ")
    if not allowed or _HIDDEN.intersection(path):
        return ConfigError(f"{where}: {why}")
    return ConfigError(f"{where} = {_shorten(error['input'])}: {why}")


def _children(annotation: Any) -> tuple[str, dict[str, Any]]:
    """The name of a table and its keys with their types; no keys for a plain value."""
    kinds = (annotation,) if isinstance(annotation, type) else get_args(annotation)
    model = next((each for each in kinds if isinstance(each, type) and issubclass(each, pydantic.BaseModel)), None)
    if get_origin(annotation) is dict:
        return "", {} if model is None else dict.fromkeys(get_args(kinds[0]), model)
    return ("", {}) if model is None else (model.__name__, {n: f.annotation for n, f in model.model_fields.items()})


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or thousands of nested tables
        return f"a {type(value).__name__} too large to be shown"
    return text if len(text) <= 200 else f"{text[:200]}…"
