"""What every command shares: settings and output."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pydantic
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rb_dspy.config import Settings
from rb_dspy.config_file import load_settings
from rb_dspy.text import printable

CONFIG_FILE = Path("rb.toml")


class SafeConsole(Console):
    """A console that shows as escapes what a terminal would execute: tasks, answers and lessons may hold anything.

    Print such text as ``rich.text.Text``, because no escape of markup is right for every backslash and bracket.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else segment._replace(text=text)


out = SafeConsole(highlight=False, soft_wrap=False, emoji=False)
err = SafeConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def settings(config: Path | None, overrides: Iterable[str] | None, **options: Any) -> Settings:
    """Settings from file, then ``--set``, then the command's own options (``section__key=value``, None: not given)."""
    path = config if config is not None else (CONFIG_FILE if CONFIG_FILE.exists() else None)
    given = {
        name.replace("__", "."): (_OPTIONS.get(name) or f"--{name.rpartition('__')[2]}", value)
        for name, value in options.items()
        if value is not None
    }
    return load_settings(path, overrides or (), given)


_OPTIONS = {"bank__url": "--bank", "matts__mode": "--matts"}
"""Those that are not called as the last part of their key."""


def command_name() -> str:
    """How this program can be called again: by its name where it is on the path, else by where it lies."""
    if shutil.which("rb-dspy"):
        return "rb-dspy"
    called = Path(sys.argv[0])
    return shlex.quote(os.path.relpath(called)) if called.name.startswith("rb-dspy") else "python -m rb_dspy.cli.main"


def print_json(value: Any) -> None:
    """``value`` on one line of standard output; pydantic models in their own JSON form."""
    text = json.dumps(value, default=_plain, ensure_ascii=False)
    if printable(text) != text:  # what a terminal would execute is escaped; to a JSON reader that is the same
        text = json.dumps(value, default=_plain)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a lone surrogate, or a terminal of few characters: to a reader escapes are the same
        text = json.dumps(value, default=_plain)
    print(text, flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
