"""What ``--program`` names: a file, or a program in MLflow's registry, by the name that MLflow has for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rb_dspy.cli import registered
from rb_dspy.cli.common import command_name
from rb_dspy.cli.registered import Version, registry
from rb_dspy.config import TrackingConfig
from rb_dspy.errors import InputError
from rb_dspy.text import counted
from rb_dspy.tracking.addresses import registry_options

_SCHEME = "models:/"
_registered = re.compile(r"models:/(?P<name>[^/@]+)(?:[@/](?P<version>[^/@]+))?").fullmatch


def is_registered(given: str) -> bool:
    """Whether ``given`` names a registered program, and not a file."""
    return given.startswith(_SCHEME)


@dataclass(frozen=True)
class NamedPrompts:
    """Where prompts are."""

    path: Path
    """A file, or a folder of files by backbone."""
    name: str
    """What messages call them."""
    report: Path | None = None
    """The report of the compile, of a registered program that has one; a file of a compile is its own."""
    held_out: str = ""
    """Digest of the tasks that were kept apart, of a registered program that was compiled; a file says it itself."""
    lessons: str = ""
    """What is to be said of the lessons inside a registered program: they are no part of its prompts."""


@contextmanager
def prompts_named(given: str | None, tracking: TrackingConfig) -> Iterator[NamedPrompts | None]:
    """The prompts that ``given`` names; None where nothing is given.

    ``models:/NAME@ALIAS``, ``models:/NAME/2``, and ``models:/NAME``, which is the champion, are put into a file that is
    gone when the block ends. Raises ``InputError`` where no such version is registered.
    """
    if given is None or not is_registered(given):
        yield None if given is None else NamedPrompts(Path(given), given)
        return
    named = _registered(given)
    if named is None:
        raise InputError(f"--program {given}: expected models:/NAME@champion, or models:/NAME/2, or the name of a file")
    with TemporaryDirectory(prefix="rb-dspy-") as folder:
        with registry(tracking) as place:
            version = registered.version(place, named["name"], named["version"] or registered.CHAMPION)
            file = registered.state_file(version, folder)
            report = registered.report_file(version, folder)
        yield NamedPrompts(file, given, report, version.data, _lessons(version, tracking))


def _lessons(version: Version, tracking: TrackingConfig) -> str:
    if not version.lessons:
        return ""
    number = counted(version.lessons, "lesson")
    get = f"{command_name()} programs lessons {version.name} {version.number}{registry_options(tracking.uri)}"
    return (
        f"the {number} of scope {version.scope} inside it: not used here, where the bank has its own; `{get}` gets them"
    )
