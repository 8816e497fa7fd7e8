"""Names under which MLflow keeps a program and, with a predictor's name behind them, its prompts."""

from __future__ import annotations

import re

from rb_dspy.errors import InputError

MAX_NAME = 200
"""Characters. MLflow's databases have room for 256, of which the predictor of a prompt needs some."""

# What both take: a prompt's name has no blank and no letter beyond ASCII, a logged model's has no dot. A dash in front
# would be an option to every command line.
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_-]{{0,{MAX_NAME - 1}}}")
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")


def check_name(name: str, what: str = "the name") -> None:
    """Raise ``InputError`` for a name that MLflow would refuse, some of them only after a model was written."""
    if _NAME.fullmatch(name) is None:
        shown = name if len(name) <= 40 else f"{name[:40]}… ({len(name):,} characters)"
        raise InputError(
            f"{what} {shown!r}: no program can be registered as that; expected 1 to {MAX_NAME} characters, each one of"
            " a-z, A-Z, 0-9, _ and -, the first no -"
        )


def fitting_name(text: str) -> str:
    """``text`` as a name that ``check_name`` takes: the same where it is one, else with ``-`` for what is refused."""
    if _NAME.fullmatch(text) is not None:
        return text
    return _OTHERS.sub("-", text).strip("-")[:MAX_NAME] or "tasks"
