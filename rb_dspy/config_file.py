"""Reads ``Settings`` from files, environment variables and options.

Later sources win: the user's own file, the folder's ``rb.toml``, environment variables (``RB_DSPY_RUN__TASKS=3``),
``--set run.tasks=3``, options of a command. API keys are read from the environment variables of the providers; a key in
a file is rejected.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from rb_dspy.config import ROLES, Settings
from rb_dspy.config_errors import config_error
from rb_dspy.errors import ConfigError

_LOOPBACK = re.compile(r"(?i)https?://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?(/[\w./-]*)?")
_HOSTS = {
    "anthropic": "api.anthropic.com",
    "cohere": "api.cohere.com",
    "deepseek": "api.deepseek.com",
    "fireworks_ai": "api.fireworks.ai",
    "gemini": "generativelanguage.googleapis.com",
    "groq": "api.groq.com",
    "mistral": "api.mistral.ai",
    "openai": "api.openai.com",
    "openrouter": "openrouter.ai",
    "together_ai": "api.together.xyz",
    "xai": "api.x.ai",
}
"""Provider (the first part of a model's name) -> its own server."""
_PLACES = ("domain", "host", "location", "region", "region_name")
"""Suffixes of option names from which a provider's address is built."""


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
) -> Settings:
    """Read ``own``, then ``path``, environment variables, ``key=value`` overrides and ``options``; the last one wins.

    A model's name may replace its table: ``agent = "openai/gpt-4o-mini"``, in ``[backbones]`` or above all tables.

    Args:
        path: A TOML file; None reads no file.
        overrides: Such as ``run.tasks=3``; the value is TOML if it parses as such, else text.
        options: Key -> (name of the command's option, value).
        own: The user's own TOML file, if it exists. If it is given, ``path`` is not trusted: an address of a
            language model that only ``path`` names is rejected, because the user's API key would be sent there.

    Raises:
        ConfigError: The file is missing or not TOML, a key is unknown or has a bad value, or an address is rejected.
    """
    data: dict[str, Any] = {}
    sources: dict[str, str] = {}
    mine = _read(own) if own is not None and own.is_file() else {}
    for source, table in ((str(own), mine), (str(path), {} if path is None else _read(Path(path)))):
        for keys, value in _leaves(table):
            _put(data, keys, value, source, sources)
    try:
        environment = EnvSettingsSource(_Sources)()
    except ValueError as exc:
        raise ConfigError(f"environment: {exc}; expected variables such as RB_DSPY_RUN__TASKS=3") from None
    for keys, value in _leaves(environment):
        _put(data, keys, value, f"RB_DSPY_{'__'.join(keys).upper()}", sources)
    for override in overrides:
        keys, value = _parse_override(override)
        _put(data, keys, value, "--set", sources)
    for key, (option, value) in (options or {}).items():
        _put(data, tuple(key.split(".")), value, option, sources)
    try:
        settings = Settings.model_validate(data)
    except pydantic.ValidationError as exc:
        raise config_error(Settings, exc, sources, "settings" if path is None else str(path)) from None
    if own is not None and path is not None:
        _check_addresses(settings, sources, str(path), mine)
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


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    key, sign, text = (part.strip() for part in override.partition("="))
    if not (sign and key):
        raise ConfigError(f"--set {override!r}: expected key=value, for example run.tasks=3")
    keys = tuple(key.split("."))
    try:
        return keys, tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return keys, text
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"--set {key}: {exc}; give a shorter value") from None


def _put(data: dict[str, Any], keys: tuple[str, ...], value: Any, source: str, sources: dict[str, str]) -> None:
    """Set one key; a string for a role is the role's model."""
    if keys[0] in ROLES:
        keys = ("backbones", *keys)
    if len(keys) == 2 and keys[0] == "backbones" and isinstance(value, str):
        keys = (*keys, "model")
    *tables, last = keys
    for name in tables:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{source} {'.'.join(keys)}: {name!r} is not a table; expected keys below [{name}]")
    if isinstance(value, Mapping) and isinstance(data.get(last), dict):
        return  # an empty table removes nothing
    data[last] = value
    sources[".".join(keys)] = source


def _leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a table with their keys; an empty table is a value."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _check_addresses(settings: Settings, sources: Mapping[str, str], path: str, own: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for the first address that only the file ``path`` names."""
    texts = [
        (f"backbones.{role}.{'.'.join(keys)}", text, backbone.model)
        for role, backbone in settings.backbones.items()
        for keys, value in _leaves(backbone.model_dump(exclude_defaults=True))
        for text in _texts(value)
    ]
    confirmed = {*_texts(own), *(text for key, text, _ in texts if sources.get(key) != path)}
    for key, text, model in texts:
        if text not in confirmed and _is_address(key, text) and not _is_safe(text, model):
            raise ConfigError(
                f"{path}: {key} is an address that you have not confirmed, and your API key would be sent there;"
                f" repeat it as --set {key}=ADDRESS, or in your own file, {own_file()}"
            )


def own_file() -> Path:
    """The user's own ``rb.toml``, which may not exist."""
    import platformdirs

    return platformdirs.user_config_path("rb-dspy") / "rb.toml"


def _is_address(key: str, text: str) -> bool:
    return "://" in text or (key.endswith(_PLACES) and re.fullmatch(r"[\w-]*", text) is None)


def _is_safe(address: str, model: str) -> bool:
    """Whether the address is on this machine, or is the server of the model's provider."""
    if _LOOPBACK.fullmatch(address):
        return True
    host = _HOSTS.get(model.partition("/")[0])
    return host is not None and re.fullmatch(rf"https://{re.escape(host)}(/[\w./-]*)?", address) is not None


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, tables and lists included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)
