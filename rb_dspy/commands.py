"""Options for the commands that messages offer: with them a command acts on the store that the message is about."""

from __future__ import annotations

import os
import shlex

from rb_dspy.addresses import without_secrets


def bank_options(location: str | os.PathLike[str], scope: str | None = None) -> str:
    """What ``rb-dspy bank ...`` needs to open this bank, with the space before it; ``scope``: where it matters.

    Of a fork, or of a bank as it was (``FILE@NUMBER``), the bank; empty for one in memory, which no command can open.
    """
    text = os.fspath(location)
    file = next((each for each in (text, text.rpartition("@")[0]) if os.path.isfile(os.path.expanduser(each))), None)
    if file is None:
        return ""
    return f" --bank {quoted(file)}{'' if scope is None else f' --scope {shlex.quote(scope)}'}"


def registry_options(uri: str) -> str:
    """What ``rb-dspy programs ...`` needs to find the registry of this address, with the space before it.

    Who it is entered as, and what with, are left out: what is printed may be kept in logs.
    """
    setting = f"tracking.uri={without_secrets(uri, '...')}"
    return f" --set {shlex.quote(setting)}"


def quoted(path: str | os.PathLike[str]) -> str:
    """``path`` as one word of a command, which no option parser takes for an option."""
    text = os.fspath(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
