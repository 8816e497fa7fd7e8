"""Commands that are offered to be typed next: with the options that this one was given, quoted for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from rb_dspy.cli.common import command_name
from rb_dspy.tracking.addresses import without_secrets


def as_argument(value: object) -> str:
    """``value`` as one word of a command, which no option parser takes for an option."""
    text = str(value)
    return shlex.quote(f"./{text}" if isinstance(value, Path) and text.startswith("-") else text)


def options(**given: object) -> list[str]:
    """``--NAME VALUE`` of those that were given."""
    return [f"--{name} {as_argument(value)}" for name, value in given.items() if value is not None]


def bank_command(what: str, config: Path | None, bank: str | None, scope: str | None) -> str:
    """This program's command ``what``, on the bank that the present one was called for."""
    return " ".join(
        [command_name(), what, *options(config=config, bank=bank and without_secrets(bank, "..."), scope=scope)]
    )


def settings_options(config: Path | None, overrides: Iterable[str] | None, only: str = "") -> list[str]:
    """``--config`` and every ``--set``, as they were given; with ``only`` no ``--set`` of other sections.

    Who a database is entered as, and what with, are left out: what is printed may be kept in logs.
    """
    found = [each for each in overrides or () if each.strip().startswith(f"{only}." if only else "")]
    return [*options(config=config), *(f"--set {shlex.quote(without_secrets(each, '...'))}" for each in found)]
