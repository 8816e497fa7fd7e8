"""Reads ``Settings`` from ``rb.toml``, environment variables and options.

Later sources win: the file, environment variables (``RB_DSPY_RUN__TASKS=3``), ``--set run.tasks=3``, options of a
command. API keys are read from the environment variables of the providers; a key in a file is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from rb_dspy.config import Settings
from rb_dspy.config_errors import config_error
from rb_dspy.errors import ConfigError


class _Sources(Settings, BaseSettings):
    """Tells the sources of pydantic-settings which keys there are; never instantiated."""

    model_config = SettingsConfigDict(
        env_prefix="RB_DSPY_", env_nested_delimiter="__", env_ignore_empty=True, defer_build=True
    )


def load_settings(
    path: Path | str | None = None,
    overrides: Iterable[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
) -> Settings:
    """Read ``path`` (TOML), then environment variables, ``key=value`` overrides and ``options``; the last one wins.

    Args:
        path: A TOML file; None reads no file.
        overrides: Such as ``run.tasks=3``; the value is TOML if it parses as such, else text.
        options: Key -> (name of the command's option, value).

    Raises:
        ConfigError: The file is missing or not TOML, or a key is unknown or has a bad value.
    """
    data = {} if path is None else _read(Path(path))
    sources: dict[str, str] = {}
    try:
        environment = EnvSettingsSource(_Sources)()
    except ValueError as exc:
        raise ConfigError(f"environment: {exc}; expected variables such as RB_DSPY_RUN__TASKS=3") from None
    for key, value in _leaves(environment):
        _put(data, key, value, f"RB_DSPY_{key.upper().replace('.', '__')}", sources)
    for override in overrides:
        key, value = _parse_override(override)
        _put(data, key, value, "--set", sources)
    for key, (option, value) in (options or {}).items():
        _put(data, key, value, option, sources)
    try:
        return Settings.model_validate(data)
    except pydantic.ValidationError as exc:
        raise config_error(Settings, exc, sources, "settings" if path is None else str(path)) from None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a TOML configuration")
    try:
        return TomlConfigSettingsSource(_Sources, toml_file=path)()
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:  # not TOML, not UTF-8, or a number of too many digits
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None


def _parse_override(override: str) -> tuple[str, Any]:
    key, sign, text = (part.strip() for part in override.partition("="))
    if not (sign and key):
        raise ConfigError(f"--set {override!r}: expected key=value, for example run.tasks=3")
    try:
        return key, tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return key, text
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"--set {key}: {exc}; give a shorter value") from None


def _put(data: dict[str, Any], key: str, value: Any, source: str, sources: dict[str, str]) -> None:
    *tables, last = key.split(".")
    for name in tables:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{source} {key}: {name!r} is not a table")
    data[last] = value
    sources[key] = source


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
