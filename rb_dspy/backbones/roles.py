"""Which language model plays which role.

LMs are bound when a call is made and never pinned on a predictor: optimizers drop or copy pinned LMs, and saved states
would contain them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import dspy

from rb_dspy.config import ROLES, BackboneConfig
from rb_dspy.errors import BackboneError, ConfigError

_KEY = "rb_dspy_backbones"
"""Key of the active backbones in dspy's settings, which reach copied contexts and the threads that dspy starts."""


class Backbones:
    """Role -> language model.

    The LM of a call is the predictor's own (``set_lm``), else the role's, else the agent's, else the one of
    ``dspy.context`` or ``dspy.configure``. Copies of a program share their backbones; a saved state contains none.

    Args:
        agent: A ``dspy.LM``, a ``BackboneConfig``, or a model's name (``"openai/gpt-4o-mini"``,
            ``"local/qwen2.5-coder-1.5b"``); the same for the other roles.
        judge: Judges rollouts.
        distiller: Writes lessons from one rollout; with ``ProgramConfig.learn`` ``one_call`` it also judges it.
        contraster: Writes lessons from several rollouts of one task.
        selector: Chooses one of several rollouts.

    Raises:
        ConfigError: A value is none of these.
        BackboneError: A named environment variable is not set, or dspy refuses the model's settings.
    """

    def __init__(
        self, agent: Any = None, judge: Any = None, distiller: Any = None, contraster: Any = None, selector: Any = None
    ) -> None:
        values = (agent, judge, distiller, contraster, selector)
        shared: dict[str, Any] = {}
        self.own: Mapping[str, Any] = MappingProxyType(
            {str(role): _as_lm(value, shared) for role, value in zip(ROLES, values, strict=True) if value is not None}
        )
        """Role -> its LM, for each role that has one of its own."""

    @classmethod
    def of(cls, backbones: Backbones | Mapping[str, Any] | None) -> Backbones | None:
        """Return ``backbones``, or those that a dict of roles describes."""
        if backbones is None or isinstance(backbones, Backbones):
            return backbones
        if not isinstance(backbones, Mapping):
            raise ConfigError(f"backbones: got {type(backbones).__name__}; expected Backbones(agent=...) or a dict")
        return cls.from_settings(backbones)

    @classmethod
    def from_settings(cls, roles: Mapping[Any, Any]) -> Backbones:
        """Return the backbones that a dict of roles describes, such as that of ``rb.toml``."""
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            raise ConfigError(f"backbones: {unknown[0]!r} is not a role; expected {', '.join(ROLES)}")
        return cls(**roles)

    def lm(self, role: str) -> Any:
        """Return the LM that plays ``role``. Raises ``BackboneError`` if there is none."""
        lm = self.own.get(role) or self.own.get("agent") or dspy.settings.lm
        if lm is None:
            raise BackboneError(
                f"no language model for the role {role!r}; pass Backbones(agent=...) or call dspy.configure(lm=...)"
            )
        return lm

    def replace(self, **roles: Any) -> Backbones:
        """Return a copy with other LMs in ``roles``; None removes a role's own LM.

        ``program.backbones = program.backbones.replace(judge="openai/gpt-4o")`` swaps one role.
        """
        return type(self).from_settings({**self.own, **roles})

    def lms(self) -> dict[str, Any]:
        """Return role -> LM, with fallbacks filled in."""
        return {role: self.lm(role) for role in ROLES}

    @contextmanager
    def use(self) -> Iterator[None]:
        """Use these for the calls inside the block, as for one step alone: ``dspy.Evaluate(program.judge)``."""
        with dspy.context(**{_KEY: self}):
            yield

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ROLES:
            raise ConfigError(f"backbones are immutable; use program.backbones = program.backbones.replace({name}=...)")
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbones:
        return self

    def __reduce__(self) -> Any:
        raise BackboneError("backbones may hold keys and cannot be pickled; pass Backbones(...) after loading")

    def __repr__(self) -> str:
        return f"Backbones({', '.join(f'{role}={lm.model}' for role, lm in self.own.items())})"


def active() -> Backbones:
    """Return the backbones of the running program, or an empty one, with which every role has the configured LM."""
    backbones: Backbones = dspy.settings.get(_KEY, None) or Backbones()
    return backbones


def _as_lm(value: Any, shared: dict[str, Any]) -> Any:
    """Return the LM that ``value`` is or describes. Equal descriptions share one LM."""
    if isinstance(value, dspy.BaseLM):
        return value
    if isinstance(value, str):
        if not value:
            raise ConfigError("the name of a backbone is empty; expected PROVIDER/MODEL, as in openai/gpt-4o-mini")
        value = BackboneConfig(model=value)
    if not isinstance(value, BackboneConfig):
        raise ConfigError(f"backbones: got {type(value).__name__}; expected a dspy.LM, a BackboneConfig or a name")
    settings = value.model_dump_json()
    if settings not in shared:
        shared[settings] = _make_lm(value)
    return shared[settings]


def _make_lm(config: BackboneConfig) -> Any:
    if config.model.startswith("local/"):
        from rb_dspy.backbones.local import local_lm

        return local_lm(config)
    passed = {"api_base", "timeout", "max_tokens", "cache", "num_retries"}
    kwargs = config.model_dump(include=passed, exclude_none=True) | deepcopy(config.options)
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env)
        if not key:
            raise BackboneError(f"{config.model}: environment variable {config.api_key_env} is not set; export the key")
        kwargs["api_key"] = key
    if isinstance(config.temperature, int | float):
        kwargs["temperature"] = config.temperature
    try:
        lm = dspy.LM(config.model, **kwargs)
    except (ValueError, TypeError, dspy.LMError) as exc:
        raise BackboneError(f"{config.model}: {exc}; check the name and the options of the model") from exc
    lm.omit_temperature = config.temperature == "none"
    lm.api_key_env = config.api_key_env
    return lm
