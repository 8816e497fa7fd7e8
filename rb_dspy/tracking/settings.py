"""Convert a program to plain settings and back: what a registered model stores besides its prompts.

Names, addresses and sampling settings of language models are stored, never a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy

from rb_dspy.agents import ExternalAct
from rb_dspy.backbones import Backbones
from rb_dspy.config import BackboneConfig
from rb_dspy.config_file import SAMPLING, load_settings, own_file
from rb_dspy.environments import make_environment
from rb_dspy.environments.named import environment_factory
from rb_dspy.errors import ConfigError, InputError
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.redaction import without_secrets
from rb_dspy.steps import Judge

BackbonesLike = Backbones | Mapping[str, Any]
"""Backbones, or role -> LM, ``BackboneConfig`` or a model's name."""

_OPTIONS = SAMPLING | {"extra_body", "api_version", "aws_region_name", "vertex_location", "vertex_project"}
"""Settings of an LM that are stored; others may contain keys."""


def program_settings(program: BankProgram, environments: str | None = None) -> dict[str, Any]:
    """What ``build_program`` needs, as JSON values.

    Args:
        program: Its agent, judge and retrieval must be those of rb_dspy, because other code is not stored in the model.
        environments: ``package.module:attribute`` of the program's environments, unless they are the installed ones.

    Raises:
        InputError: The program has a part that cannot be stored, or ``environments`` cannot be used.
    """
    own = {"agent": isinstance(program.act, ExternalAct), "judge": not isinstance(program.judge, Judge)}
    own["reranker"] = program.retrieve.reranker is not None
    for part in (name for name, is_own in own.items() if is_own):
        raise InputError(f"register: the program has a custom {part}, which cannot be stored; remove it")
    if environments is None and program.environments is not make_environment:
        raise InputError(
            "register: the program's environments are not the installed ones; pass"
            " environments='package.module:attribute'"
        )
    if environments is not None:
        environment_factory(environments)
    steps = ("retrieve", "act", "judge", "distill")
    config: dict[str, Any] = {step: getattr(program, step).config.model_dump(mode="json") for step in steps}
    config |= {"learn": "one_call" if program.review else "two_calls", "skip_known": program.skip_known}
    matts = program.config.model_dump(mode="json") if isinstance(program, MaTTS) else None
    return {"program": config, "matts": matts, "environments": environments}


def backbone_settings(backbones: BackbonesLike | None) -> dict[str, dict[str, Any]]:
    """Role -> the table of ``rb.toml`` that describes its language model, for each role that has one of its own.

    Raises:
        InputError: An address contains a password or a key.
    """
    if backbones is None:
        return {}
    if isinstance(backbones, Backbones):
        backbones = backbones.own
    tables = {role: _table(value) for role, value in backbones.items()}
    for role, table in tables.items():
        address = table.get("api_base", "")
        if address != without_secrets(address):
            raise InputError(
                f"register: the api_base of the role {role} contains a password or a key, which is not stored;"
                " pass other backbones=..., and set the address where the program is served"
            )
    return tables


def serving_backbones(stored: Mapping[str, Any]) -> Backbones:
    """The backbones of this process: those of ``rb.toml`` in the current folder or of ``RB_DSPY_BACKBONES__...``, if
    either names some, else the ``stored`` ones of a registered program.
    """
    file = Path("rb.toml")
    settings = load_settings(file if file.is_file() else None, own=own_file())
    if "backbones" in settings.model_fields_set:
        return Backbones.from_settings(settings.roles)
    return Backbones(**{role: BackboneConfig(**table) for role, table in stored.items()})


def _table(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = BackboneConfig(model=value)
    elif isinstance(value, dspy.BaseLM):
        value = _config(value)
    if not isinstance(value, BackboneConfig):
        raise ConfigError(f"backbones: got {type(value).__name__}; expected a dspy.LM, a BackboneConfig or a name")
    options = {name: option for name, option in value.options.items() if name in _OPTIONS}
    stored = value.model_copy(update={"options": options})
    return stored.model_dump(mode="json", exclude_defaults=True) | {"model": value.model}


def _config(lm: dspy.BaseLM) -> BackboneConfig:
    """The settings of an LM. Raises ``ConfigError`` if a stored one is a secret, or no JSON."""
    settings, local = lm.kwargs, str(lm.model).startswith("local/")  # whose address belongs to a child process
    options = {name: option for name, option in settings.items() if name in _OPTIONS and option is not None}
    if getattr(lm, "model_type", "chat") != "chat":
        options["model_type"] = lm.model_type
    return BackboneConfig(
        model=str(lm.model),
        api_base=None if local else settings.get("api_base"),
        temperature="none" if getattr(lm, "omit_temperature", False) else settings.get("temperature"),
        max_tokens=settings.get("max_tokens", settings.get("max_completion_tokens")),
        timeout=settings.get("timeout"),
        options=options,
    )
