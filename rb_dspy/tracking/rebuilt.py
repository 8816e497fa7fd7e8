"""A program as settings and back: what a registered model is made of, besides its prompts.

Of language models the names and how they sample are kept, never a key or an address. What is made by the caller's own
code is named as ``package.module:attribute``, and imported where the model is loaded.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import dspy
import pydantic

from rb_dspy.backbones import Backbones
from rb_dspy.compile.identity import sampling
from rb_dspy.config import ROLES, BackboneConfig, MattsConfig, ProgramConfig, Role
from rb_dspy.environments import make_environment
from rb_dspy.errors import ConfigError, InputError, RBError, describe_error
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.steps import Judge
from rb_dspy.text import first_error
from rb_dspy.tracking.described import sampled

BackbonesLike = Backbones | Mapping[Role, dspy.BaseLM | BackboneConfig | str] | str
"""Backbones, or by role an LM, a configuration or a model's name, or ``package.module:attribute`` of a function that
makes them."""


_ELSEWHERE = "elsewhere"
"""Says of what is kept of a language model that it had an address of its own: asked at its provider's, tasks would go
where nobody meant them to go.
"""


def settings_of(program: ReasoningBank | MaTTS, environments: str | None = None) -> dict[str, Any]:
    """What ``rebuilt`` needs. ``environments``: where the program's are found, if they are not the installed ones.

    Raises ``InputError`` for a part that is the caller's own and that nobody could make again, and for environments
    that cannot be called like some, as far as that can be told; ``ConfigError`` where there are none of that name.
    """
    if not isinstance(program.judge, Judge) or program.retrieve.reranker is not None:
        what = "reranker" if isinstance(program.judge, Judge) else "judge"
        raise InputError(f"a program with a {what} of its own cannot be registered: its code would not be in the model")
    if program.environments is not make_environment and environments is None:
        raise InputError(
            "the program's environments are not the installed ones; say where they are found, as"
            " environments='package.module:attribute'"
        )
    if environments is not None:
        _check_factory(environments)
    config = ProgramConfig(
        retrieve=program.retrieve.config,
        act=program.act.config,
        judge=program.judge.config,
        distill=program.distill.config,
    )
    matts = program.config.model_dump(mode="json") if isinstance(program, MaTTS) else None
    return {"program": config.model_dump(mode="json"), "matts": matts, "environments": environments}


def _check_factory(place: str) -> None:
    """That what ``place`` names takes what environments are made from: else the first task that is served breaks."""
    found = named(place)
    expected = "expected an EnvironmentFactory: a function (task, rollout_id) that gives an environment"
    if not callable(found):
        raise InputError(f"environments={place!r}: is a {type(found).__name__}, which cannot be called; {expected}")
    try:
        inspect.signature(found).bind("task", "rollout_id")
    except TypeError as exc:
        raise InputError(
            f"environments={place!r}: cannot be called with a task and a rollout's id ({exc}); {expected}"
        ) from None
    except ValueError:  # it has no signature to look at
        return


def rebuilt(settings: Mapping[str, Any]) -> ReasoningBank | MaTTS:
    """The program that ``settings_of`` was given, without its prompts and without backbones."""
    environments = settings.get("environments")
    program = ReasoningBank(
        ProgramConfig.model_validate(settings["program"]),
        environments=make_environment if environments is None else named(environments),
    )
    matts = settings.get("matts")
    return program if matts is None else MaTTS(program, config=MattsConfig.model_validate(matts))


def saved_backbones(given: BackbonesLike | None) -> dict[str, Any] | str | None:
    """What is kept of backbones: of each role that was given one the model's name and how it samples; or the name of
    what makes them. A role that falls back does so again where this is loaded.

    How an LM samples is its ``temperature``, its ``max_tokens`` and its ``options``; see ``described.sampled``. Raises
    ``InputError`` for such as no backbone has.
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Backbones):
        return {role: _sampling(given.lm(role)) for role in ROLES if given.has(role)}
    hidden = {"api_base", "api_key_env"}
    found: dict[str, Any] = {}
    for role, each in given.items():
        if isinstance(each, dspy.BaseLM):
            found[role] = _sampling(each)
            continue
        config = BackboneConfig(model=each) if isinstance(each, str) else each
        found[role] = _open(config.model_dump(mode="json", exclude=hidden, exclude_defaults=True))
        found[role] |= {_ELSEWHERE: True} if config.api_base is not None else {}
    return found


def _sampling(lm: Any) -> dict[str, Any]:
    """An LM as the configuration of a backbone."""
    found = {"model": str(lm.model), **sampled(lm)}
    try:
        kept = BackboneConfig.model_validate(found).model_dump(mode="json", exclude_defaults=True)
    except pydantic.ValidationError as exc:
        raise InputError(
            f"{lm.model}: {': '.join(first_error(exc))}; change it, or say which backbones the model has when it is"
            " loaded, as backbones='package.module:attribute'"
        ) from None
    return kept | ({_ELSEWHERE: True} if lm.kwargs.get("api_base") and not kept["model"].startswith("local/") else {})


def _open(kept: dict[str, Any]) -> dict[str, Any]:
    """Without those options that decide no answer, as headers do: they may say where a model is."""
    options = sampling(kept.pop("options", {}))
    return kept | ({"options": options} if options else {})


def made_backbones(given: BackbonesLike | None) -> Backbones:
    """Backbones from what ``saved_backbones`` kept, or from what the caller gives instead."""
    if given is None:
        return Backbones()
    if isinstance(given, Backbones):
        return given
    if isinstance(given, str):
        made = made_by(given)
        if not isinstance(made, Backbones):
            raise ConfigError(f"{given} gave a {type(made).__name__}; expected Backbones")
        return made
    if not isinstance(given, Mapping):
        raise ConfigError(f"got {type(given).__name__} for backbones; expected Backbones(agent=...)")
    return Backbones.of({role: _backbone(role, each) for role, each in given.items()}) or Backbones()


def _backbone(role: str, given: object) -> object:
    """What a role of ``Backbones`` takes; what was kept of one is described as in ``rb.toml``."""
    if not isinstance(given, Mapping):
        return given
    if given.get(_ELSEWHERE):
        raise ConfigError(
            f"{given.get('model')} was registered as the {role} at an address of its own (api_base), which is not kept;"
            f" say where it is: load(..., backbones={{'{role}': ...}})"
        )
    try:
        return BackboneConfig.model_validate(given)
    except pydantic.ValidationError as exc:
        raise ConfigError(
            f"backbones: {role}.{': '.join(first_error(exc))}; expected a backbone as in rb.toml"
        ) from None


def named(place: str) -> Any:
    """What ``package.module:attribute`` names. Raises ``ConfigError`` where there is nothing, or its code breaks."""
    module, colon, attribute = place.partition(":")
    if not colon or not attribute:
        raise ConfigError(f"{place!r}: expected package.module:attribute")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"{place!r}: {exc}; expected package.module:attribute of what is installed") from exc
    except RBError:
        raise
    except Exception as exc:
        raise _broke(place, exc) from exc
    return found


def made_by(place: str) -> Any:
    """What the function of this name gives. Raises ``ConfigError`` as ``named`` does."""
    function = named(place)
    try:
        return function()
    except RBError:
        raise
    except Exception as exc:
        raise _broke(place, exc) from exc


def _broke(place: str, exc: Exception) -> ConfigError:
    """What the caller's own code raised, which may be anything: told apart here from what MLflow raises around it."""
    return ConfigError(f"{place!r}: {describe_error(exc, 200)}; mend it, or see that what it needs is here")
