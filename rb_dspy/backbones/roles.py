"""Which language model plays which role, bound when a call is made.

No LM is ever pinned on a predictor: pinned LMs are dropped or deep-copied by optimizers and end up in saved state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import dspy

from rb_dspy.backbones.chat import ChatAdapter
from rb_dspy.backbones.hosted import HostedLM
from rb_dspy.backbones.patience import Patience
from rb_dspy.config import ROLES, BackboneConfig, Role
from rb_dspy.errors import BackboneError, ConfigError

_LIKE = {"contraster": "distiller", "selector": "judge"}
"""Whose LM a role takes before the agent's: they do the same kind of work."""


def fallbacks(role: str) -> tuple[str, ...]:
    """``role``, and the roles whose LM plays it where it has none of its own, in order."""
    return tuple(dict.fromkeys((role, _LIKE.get(role, "agent"), "agent")))


_KEY = "rb_dspy_backbones"
"""Where active backbones stand among dspy's settings, which reach copied contexts and the threads that dspy starts."""


class Backbones:
    """Role -> LM.

    Each role takes a ``dspy.LM``, a ``BackboneConfig``, or a model's name (``"openai/gpt-4o-mini"``,
    ``"local/qwen2.5-coder-1.5b"``). A role that is not given falls back: the contraster to the distiller, the selector
    to the judge, all to the agent, and the agent to the LM of ``dspy.configure``. That one, and what an optimizer puts
    in its place (``teacher_settings``), is the last resort: it is not asked where there is an agent. Two roles given
    equal names or equal ``BackboneConfig``s share one LM object. Copies of a program share their backbones, and no
    program saves them.
    """

    def __init__(
        self, agent: Any = None, judge: Any = None, distiller: Any = None, contraster: Any = None, selector: Any = None
    ) -> None:
        given = {
            "agent": agent,
            "judge": judge,
            "distiller": distiller,
            "contraster": contraster,
            "selector": selector,
        }
        made: list[tuple[BackboneConfig, Any]] = []
        self._lms: dict[str, Any] = {role: _as_lm(each, made) for role, each in given.items() if each is not None}

    @classmethod
    def of(cls, given: Backbones | Mapping[str, Any] | object | None) -> Backbones | None:
        """``given``, or the backbones that a dict of roles describes. Raises ``ConfigError`` for anything else."""
        if given is None or isinstance(given, Backbones):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(f"got {type(given).__name__} for backbones; expected Backbones(agent=...)")
        _check_roles(given)
        return cls(**given)

    @classmethod
    def from_settings(cls, configs: Mapping[Role, BackboneConfig]) -> Backbones:
        """Backbones as ``rb.toml`` describes them."""
        return cls(**{str(role): config for role, config in configs.items()})

    def lm(self, role: str) -> Any:
        """The LM of ``role``, or of the role it falls back to. Raises ``BackboneError`` where there is none."""
        lm = next((self._lms[name] for name in fallbacks(role) if name in self._lms), None) or dspy.settings.lm
        if lm is None:
            raise BackboneError(
                f"no language model for role {role!r}; give Backbones(agent=...), call dspy.configure(lm=...), or use a"
                " step of a program by itself within program.backbones.use()"
            )
        return lm

    def replace(self, **given: Any) -> Backbones:
        """These with other LMs in the roles that are ``given``; None takes a role's own away, so that it falls back.

        ``program.backbones = program.backbones.replace(judge="openai/gpt-4o")`` swaps one role.
        """
        _check_roles(given)
        return type(self)(**{**self._lms, **given})

    def names(self, role: str) -> bool:
        """Whether ``role`` was given an LM of its own."""
        return role in self._lms

    def roles(self) -> dict[str, Any]:
        """Role -> LM, fallbacks filled in."""
        return {role: self.lm(role) for role in ROLES}

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make these the backbones of what is called inside the block, in dspy's own threads and copied contexts too.

        A program that was given backbones keeps them: set ``program.backbones`` to change that.
        """
        with dspy.context(**{_KEY: self}):
            yield

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ROLES:
            raise ConfigError(
                f"backbones do not change: set program.backbones = program.backbones.replace({name}=...), as copies of"
                " a program share them"
            )
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbones:
        return self

    def __reduce__(self) -> Any:
        raise BackboneError("backbones are never saved or pickled; give the loaded program its own Backbones(...)")

    def __repr__(self) -> str:
        return f"Backbones({', '.join(f'{role}={lm.model}' for role, lm in self._lms.items())})"


def _check_roles(given: Mapping[str, Any]) -> None:
    strange = [role for role in given if role not in ROLES]
    if strange:
        raise ConfigError(f"backbones: {strange[0]!r} is no role; expected some of {', '.join(ROLES)}")


def active(own: Backbones | None = None) -> Backbones:
    """``own``, else those in use around the caller, else some without an LM, so that all falls back."""
    found: Backbones = own or dspy.settings.get(_KEY, None) or _NONE
    return found


def in_use() -> bool:
    """Whether the caller is inside ``Backbones.use()``."""
    return dspy.settings.get(_KEY, None) is not None


@contextmanager
def none_in_use() -> Iterator[None]:
    """Inside the block it is as if the caller were not inside ``Backbones.use()``."""
    with dspy.context(**{_KEY: None}):
        yield


def stands_in(role: str) -> bool:
    """Whether the LM that plays ``role`` here was given for another role."""
    backbones = active()
    return not backbones.names(role) and any(backbones.names(other) for other in fallbacks(role))


def lm_of(role: str) -> Any:
    """The LM that plays ``role`` in this context."""
    return active().lm(role)


def lm_for_others(role: str) -> Any:
    """The LM for what is not a step of ours and plays ``role``: the role's own, else the configured one, else the one
    that the role falls back to; None where there is none.
    """
    backbones = active()
    if dspy.settings.lm is not None and not backbones.names(role):
        return dspy.settings.lm
    with suppress(BackboneError):
        return backbones.lm(role)
    return None


def adapter_for(lm: Any) -> Any:
    """The adapter of ``dspy.configure`` if there is one; a grammar where ``lm``'s engine takes one; else plain chat.

    Ours never make a second LM call of their own accord: the one repair belongs to ``rb_dspy.steps.ask``.
    """
    if dspy.settings.adapter is not None:
        return dspy.settings.adapter
    if "grammar" in (getattr(lm.engine, "supported_params", ()) if hasattr(lm, "engine") else ()):
        from rb_dspy.backbones.grammar import GrammarAdapter

        return GrammarAdapter()
    return _CHAT


def _as_lm(given: Any, made: list[tuple[BackboneConfig, Any]]) -> Any:
    """The LM that ``given`` is or describes; those described so far, and this one then, are ``made``."""
    if isinstance(given, dspy.BaseLM):
        return given
    if isinstance(given, str):
        if not given:
            raise ConfigError("a backbone's name is empty; expected PROVIDER/MODEL, as in openai/gpt-4o-mini")
        given = BackboneConfig(model=given)
    if not isinstance(given, BackboneConfig):
        raise ConfigError(f"a backbone is a dspy.LM, a BackboneConfig or a model's name; got {type(given).__name__}")
    lm = next((lm for known, lm in made if known == given), None)
    if lm is None:
        lm = _described(given)
        made.append((given, lm))
    return lm


def _described(given: BackboneConfig) -> Any:
    if given.model.startswith("local/"):
        from rb_dspy.backbones.llamacpp import local_lm

        return local_lm(given)
    kwargs: dict[str, Any] = {}
    if given.api_key_env is not None:
        key = os.environ.get(given.api_key_env)
        if not key:
            raise BackboneError(
                f"{given.model}: the environment variable {given.api_key_env} is not set; export the key"
            )
        kwargs["api_key"] = key
    for name in ("api_base", "timeout", "temperature", "max_tokens"):
        if getattr(given, name) is not None:
            kwargs[name] = getattr(given, name)
    if given.patience is not None:
        kwargs["patience"] = Patience(given.patience)
    try:
        return HostedLM(given.model, cache=given.cache, omit=given.omit, options=deepcopy(given.options), **kwargs)
    except (ValueError, TypeError, dspy.LMError) as exc:
        raise BackboneError(f"{given.model}: {exc}") from exc


_NONE = Backbones()
_CHAT = ChatAdapter()
