"""A typed table from TOML and ``key=value``: what is wrong in it is told by its key, and by where it was given."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

import pydantic
from pydantic_core import PydanticCustomError

from rb_dspy.errors import ConfigError
from rb_dspy.wording import first_misfit

_Model = TypeVar("_Model", bound=pydantic.BaseModel)

_UNSHOWN = "unshown"


def unshown(why: str) -> ValueError:
    """What a validator raises for a value that may be a secret in the wrong place: it is not quoted."""
    return PydanticCustomError(_UNSHOWN, "{why}", {"why": why})


def load(
    model: type[_Model], path: Path | str | None, overrides: Iterable[str], options: Mapping[str, tuple[str, Any]]
) -> _Model:
    """See ``rb_dspy.config.load_settings``."""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file; expected a TOML configuration") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path}: not valid TOML: {exc}") from None
        except (ValueError, RecursionError) as exc:
            raise ConfigError(_unreadable(str(path), exc)) from None
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
    of_file = deepcopy(data)
    for override in overrides:
        _set(data, override)
    for key, (option, value) in options.items():
        _put(data, key, value, option)
    if path is not None and _first_misfit(model, of_file) == _first_misfit(model, data):  # the file's own, or none
        return parse(model, data, str(path))
    return parse(model, data, "--set", {key: option for key, (option, _) in options.items()})


def _first_misfit(model: type[pydantic.BaseModel], data: Mapping[str, Any]) -> object:
    try:
        model.model_validate(data)
    except pydantic.ValidationError as exc:
        misfit = first_misfit(exc)
        return misfit.loc, misfit.type, repr(misfit.input)
    return None


def parse(
    model: type[_Model], data: Mapping[str, Any], source: str, options: Mapping[str, str] | None = None
) -> _Model:
    """``data``, checked. ``ConfigError`` names the first key that is unknown or has a bad value, and its ``source``.

    ``options``: keys -> the options that gave them.
    """
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as exc:
        raise refused(model, exc, source, options or {}) from None


def refused(
    model: type[pydantic.BaseModel], exc: pydantic.ValidationError, source: str, options: Mapping[str, str]
) -> ConfigError:
    """The first thing that does not fit ``model``, as ``parse`` tells it."""
    misfit = first_misfit(exc)
    location = [str(part) for part in misfit.loc if part != "[key]"]
    key = ".".join(location)
    if misfit.type == "extra_forbidden" or "[key]" in misfit.loc:
        known = _known_keys(model, location)
        near = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return ConfigError(f"{source}: unknown key {key!r}; {hint}")
    if misfit.type == "missing":
        return ConfigError(f"{source}: {key} is missing")
    if not key:  # of several together, which the message names
        return ConfigError(f"{source}: {misfit.why}")
    option = options.get(key)
    if misfit.type == _UNSHOWN:
        given = "what was given is empty" if misfit.input == "" else "what was given is not shown"
        return ConfigError(f"{option or f'{source}: {key}'}: {misfit.message} ({given})")
    where = f"{option} {_shown(misfit.input)}" if option else f"{source}: {key} = {_shown(misfit.input)}"
    return ConfigError(f"{where}: {misfit.why}")


def _known_keys(model: type[pydantic.BaseModel], location: list[str]) -> list[str]:
    """The keys that are allowed where the last part of ``location`` stands."""
    for i, part in enumerate(location[:-1]):
        field = model.model_fields.get(part)
        if field is None:
            continue
        kind: Any = next((each for each in get_args(field.annotation) if each is not NoneType), field.annotation)
        if get_origin(field.annotation) is dict:
            names, kind = get_args(field.annotation)
            if i == len(location) - 2:
                return list(get_args(names))
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            model = kind
    return list(model.model_fields)


def _set(data: dict[str, Any], override: str) -> None:
    """Put ``a.b=value`` into ``data``; the value is TOML where it parses, else text."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {override!r}: expected key=value, for example run.tasks=3")
    try:
        value: Any = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    except (ValueError, RecursionError) as exc:
        raise ConfigError(_unreadable(f"--set {key.strip()}", exc)) from None
    _put(data, key.strip(), value, f"--set {override!r}")


def _put(data: dict[str, Any], key: str, value: Any, source: str) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        child = data.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{source}: {parent!r} is not a table")
        data = child
    data[last] = value


def _unreadable(source: str, exc: Exception) -> str:
    """A number of too many digits, or brackets inside brackets: TOML to its grammar, and too much for Python."""
    return f"{source}: TOML that cannot be read ({type(exc).__name__}); give a shorter number, or fewer brackets"


def _shown(value: Any) -> str:
    """``value`` in a line of an error."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a long 0xF… or a.b.c… is read, and never shown
        return f"a {type(value).__name__} too large to be shown"
    return text if len(text) <= 200 else f"{text[:200]}…"
