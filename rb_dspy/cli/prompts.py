"""What ``--program`` names: a file, or a program in MLflow's registry, by the name that MLflow has for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rb_dspy.cli import registered
from rb_dspy.cli.registered import registry
from rb_dspy.config import TrackingConfig
from rb_dspy.errors import InputError

_SCHEME = "models:/"
_registered = re.compile(r"models:/(?P<name>[^/@]+)(?:[@/](?P<version>[^/@]+))?").fullmatch


def is_registered(given: str) -> bool:
    """Whether ``given`` names a registered program, and not a file."""
    return given.startswith(_SCHEME)


@contextmanager
def prompts_file(given: str | None, tracking: TrackingConfig) -> Iterator[Path | None]:
    """The file with the prompts that ``given`` names; None where nothing is given.

    Of ``models:/NAME@ALIAS``, ``models:/NAME/2`` and ``models:/NAME``, which is the champion, one that is gone when the
    block ends. Raises ``InputError`` where no such version is registered.
    """
    if given is None or not is_registered(given):
        yield None if given is None else Path(given)
        return
    named = _registered(given)
    if named is None:
        raise InputError(f"--program {given}: expected models:/NAME@champion, or models:/NAME/2, or the name of a file")
    with TemporaryDirectory(prefix="rb-dspy-") as folder:
        with registry(tracking) as place:
            version = registered.version(place, named["name"], named["version"] or registered.CHAMPION)
            file = registered.state_file(version, folder)
        yield file
