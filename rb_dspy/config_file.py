"""Reads ``Settings`` from files, environment variables and options.

Later sources win: the user's own file, the folder's ``rb.toml``, environment variables (``RB_DSPY_RUN__TASKS=3``),
``--set run.tasks=3``, options of a command. API keys are read from the environment variables of the providers; a key in
a file is rejected.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from rb_dspy.config import ROLES, Settings
from rb_dspy.config_errors import config_error
from rb_dspy.errors import ConfigError

_LOOPBACK = re.compile(r"(?i)https?://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?(/[\w./-]*)?")
SAMPLING = {
    "top_p", "top_k", "min_p", "seed", "stop", "n", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "reasoning", "reasoning_effort", "thinking", "verbosity", "response_format", "parallel_tool_calls",
    "service_tier", "model_type",
}  # fmt: skip
"""Options of a language model that name no address, no file and no key."""
_SIZES = {"max_tokens", "temperature", "timeout", "num_retries", "cache", "context", "slots", "threads"}

Leaf = tuple[tuple[str, ...], Any]
"""The keys of a value, and the value."""


class _Sources(Settings, BaseSettings):
    """Tells the sources of pydantic-settings which keys exist; never instantiated."""

    model_config = SettingsConfigDict(
        env_prefix="RB_DSPY_", env_nested_delimiter="__", env_ignore_empty=True, defer_build=True
    )


def load_settings(
    path: Path | str | None = None,
    overrides: Iterable[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    *,
    own: Path | None = None,
    parts: Collection[str] = (),
) -> Settings:
    """Read ``own``, then ``path``, environment variables, ``key=value`` overrides and ``options``; the last one wins.

    A model's name may replace its table: ``agent = "openai/gpt-4o-mini"``, in ``[backbones]`` or above all tables.

    Args:
        path: A TOML file; None reads no file.
        overrides: Such as ``run.tasks=3``; the value is TOML if it parses as such, else text.
        options: Key -> (name of the command's option, value).
        own: The user's own TOML file, if it exists. If it is given, ``path`` is not trusted: unless another source
            repeats the value, it may set steps, streams and sampling, but no address, header, or variable with a key.
        parts: The only tables that the caller uses, so that the others need no confirmation; empty: all.

    Raises:
        ConfigError: The file is missing or not TOML, a key is unknown or has a bad value, or a value of ``path`` needs
            confirmation.
    """
    mine = _leaves(_read(own) if own is not None and own.is_file() else {})
    theirs = list(_leaves({} if path is None else _read(Path(path))))
    try:
        environment = _leaves(EnvSettingsSource(_Sources)())
    except ValueError as exc:
        raise ConfigError(f"environment: {exc}; expected variables such as RB_DSPY_RUN__TASKS=3") from None
    before = [(str(own), each) for each in mine]
    after = [(f"RB_DSPY_{'__'.join(each[0]).upper()}", each) for each in environment]
    after += [("--set", each) for override in overrides for each in _parse_override(override)]
    after += [(option, (tuple(key.split(".")), value)) for key, (option, value) in (options or {}).items()]
    data: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, leaf in (*before, *((str(path), each) for each in theirs), *after):
        _put(data, *_full(leaf), source, sources)
    try:
        settings = Settings.model_validate(data)
    except pydantic.ValidationError as exc:
        raise config_error(Settings, exc, sources, "settings" if path is None else str(path)) from None
    if own is not None:
        confirmed = [_full(leaf) for _, leaf in (*before, *after)]
        for keys, value in map(_full, theirs):
            key = ".".join(keys)
            unset = sources[key] != str(path) or (keys, value) in confirmed
            if not (unset or (parts and keys[0] not in parts) or _is_harmless(keys, value)):
                raise ConfigError(
                    f"{path}: {key} needs your confirmation, because this file may be another person's and could send"
                    f" your keys or data elsewhere; repeat it as --set {key}=VALUE, or in your own file, {own}"
                )
    return settings


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a TOML configuration")
    try:
        return TomlConfigSettingsSource(_Sources, toml_file=path)()
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:  # not TOML, not UTF-8, or a number of too many digits
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None


def _parse_override(override: str) -> Iterator[Leaf]:
    key, sign, text = (part.strip() for part in override.partition("="))
    if not (sign and key):
        raise ConfigError(f"--set {override!r}: expected key=value, for example run.tasks=3")
    keys = tuple(key.split("."))
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"--set {key}: {exc}; give a shorter value") from None
    return _leaves(value, keys) if isinstance(value, Mapping) and value else iter([(keys, value)])


def _full(leaf: Leaf) -> Leaf:
    """The leaf with its whole key: a role stands below ``backbones``, and a text for a role is the role's model."""
    keys, value = leaf
    if keys[0] in ROLES:
        keys = ("backbones", *keys)
    if len(keys) == 2 and keys[0] == "backbones" and isinstance(value, str):
        keys = (*keys, "model")
    return keys, value


def _put(data: dict[str, Any], keys: tuple[str, ...], value: Any, source: str, sources: dict[str, str]) -> None:
    """Set one key."""
    *tables, last = keys
    for name in tables:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{source} {'.'.join(keys)}: {name!r} is not a table; expected keys below [{name}]")
    sources[".".join(keys)] = source
    if not (isinstance(value, Mapping) and isinstance(data.get(last), dict)):  # an empty table removes nothing
        data[last] = value


def _leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The values of a table with their keys; an empty table is a value."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def own_file() -> Path:
    """The user's own ``rb.toml``, which may not exist."""
    import platformdirs

    return platformdirs.user_config_path("rb-dspy") / "rb.toml"


def _is_harmless(keys: tuple[str, ...], value: Any) -> bool:
    """Whether any file may set this: steps, streams and sampling, and places on this machine."""
    match keys:
        case ("run", "stream"):
            return _in_folder(value)
        case ("run" | "evaluate" | "compile" | "program" | "matts", *_) | ("bank", "scope"):
            return True
        case ("tracking", "enabled" | "experiment" | "traces"):
            return True
        case ("trust", "origins", _) | ("trust", "default"):
            return bool(value == "held")  # it can lower, never raise
        case ("trust", "cap"):
            return bool(value == 1)
        case ("trust", _, *_):
            return False
        case ("bank", "embedder"):
            return re.fullmatch(r"[\w-]+", value) is not None  # an installed one, not OWNER/MODEL of a hub
        case ("bank", "url"):
            return value == ":memory:" or _in_folder(value)
        case ("tracking", "uri"):
            file = value.removeprefix("sqlite:///")
            return _LOOPBACK.fullmatch(value) is not None if file == value else _in_folder(file)
        case ("backbones", _, "api_base"):
            return _LOOPBACK.fullmatch(value) is not None
        case ("backbones", _, "model"):
            return "://" not in value
        case ("backbones", _, "options", "extra_body", *names):
            return names == ["chat_template_kwargs", "enable_thinking"] or (len(names) == 1 and names[0] in SAMPLING)
        case ("backbones", _, "options", name, *_):
            return name in SAMPLING
        case ("backbones", _, name):
            return name in _SIZES or (name == "options" and not value)
    return not value  # an empty table


def _in_folder(path: str) -> bool:
    """Whether ``path`` is below the working directory, links followed; SQLite's ``file:`` and ``?`` are not read."""
    return re.fullmatch(r"[^\0?:~]*", path) is not None and Path(path).resolve().is_relative_to(Path.cwd())
