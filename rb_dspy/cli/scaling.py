"""``--matts`` and ``--k``: whether a command's program does each task several times, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import pydantic
import typer

from rb_dspy.cli.common import settings
from rb_dspy.cli.options import default
from rb_dspy.config import MattsConfig, MattsMode, Settings
from rb_dspy.errors import ConfigError
from rb_dspy.text import first_error

MODES = ", ".join(mode.replace("_", "-") for mode in get_args(MattsMode))

OFF = "off"
"""What turns off what the settings say."""

MattsOption = Annotated[
    str | None,
    typer.Option(
        "--matts",
        metavar="MODE",
        help=f"Several rollouts of each task: {MODES}, or {OFF} for one; {default('matts.mode', 'one rollout')}",
    ),
]
KOption = Annotated[
    int | None,
    typer.Option(
        "--k", "-k", help=f"How many rollouts, or passes; with --matts; {default('matts.k', MattsConfig().k)}"
    ),
]


def settings_for(
    config: Path | None, set_: list[str] | None, matts: str | None, k: int | None, **options: Any
) -> Settings:
    """Settings with the options of a command that works with a program."""
    if matts is not None and matts.strip().lower() == OFF:
        if k is not None:
            raise ConfigError(f"--matts {OFF} and --k {k}: one rollout a task, or several; give one of the two")
        return settings(config, set_, **options).model_copy(update={"matts": None})
    if k is not None and matts is None and settings(config, set_).matts is None:
        raise ConfigError(f"--k {k} is for test-time scaling; say how with --matts MODE: {MODES}")
    if k is not None:
        _check_k(k)
    return settings(config, set_, matts__mode=_mode(matts), matts__k=k, **options)


def _check_k(k: int) -> None:
    """Refuse what the settings would, by the name that it was given by."""
    try:
        MattsConfig.model_validate({"k": k})
    except pydantic.ValidationError as exc:
        raise ConfigError(f"--k {k}: {first_error(exc)[1]}; it is how many rollouts, or passes, a task has") from None


def _mode(given: str | None) -> str | None:
    """A mode as the settings call it."""
    mode = given and given.strip().lower().replace("-", "_")
    if mode is not None and mode not in get_args(MattsMode):
        raise ConfigError(f"--matts {given!r}: no such mode; expected one of {MODES}, or {OFF}")
    return mode
