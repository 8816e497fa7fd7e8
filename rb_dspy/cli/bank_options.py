"""Options for the commands that messages suggest, so that they act on the bank that the message is about."""

from __future__ import annotations

import os
import shlex


def bank_options(location: str | os.PathLike[str], scope: str | None = None) -> str:
    """The options with which ``rb-dspy bank ...`` opens this bank, with a space before them.

    For a fork, or a bank at a number (``FILE@NUMBER``), those of the bank; empty for a bank in memory.
    """
    text = os.fspath(location)
    file = next((each for each in (text, text.rpartition("@")[0]) if os.path.isfile(os.path.expanduser(each))), None)
    if file is None:
        return ""
    return f" --bank {quoted(file)}{'' if scope is None else f' --scope {shlex.quote(scope)}'}"


def quoted(path: str | os.PathLike[str]) -> str:
    """``path`` as one word of a command that no option parser takes for an option."""
    text = os.fspath(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
