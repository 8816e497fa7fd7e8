"""What makes two compiles the same one: who plays, how it samples, and what everything runs in.

No key and no address counts: another key is no other compile, and neither may be found out from a folder.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version as installed
from typing import Any

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.protocols import Embedder

_APART = re.compile(
    r"(?:^|_)(?:api|key|keys|token|secret|password|credentials?|headers?|url|base|endpoint|organization|timeout|retries)"
    r"(?:_|$)"
)
"""Settings of a language model that decide no answer; ``max_tokens`` is not among them."""


def sampling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of an LM's settings those that decide its answers."""
    return {name: value for name, value in settings.items() if not _APART.search(name)}


def left_out(lm: Any) -> dict[str, Any]:
    """What decides an LM's answers and is no setting: whether it is never sent a temperature."""
    return {"omit_temperature": True} if getattr(lm, "omit_temperature", False) else {}


def who(backbones: Backbones, reflection: Any = None) -> dict[str, Any]:
    """Role -> model and sampling settings; ``reflection`` as ``compile_program`` takes it."""
    found = {role: _lm(lm) for role, lm in backbones.lms().items()}
    if reflection is not None:
        found["reflection"] = _lm(Backbones(agent=reflection).lm("agent"))
    return found


def models(players: Mapping[str, Any]) -> dict[str, str]:
    """Role -> name, out of ``who``."""
    return {role: player["model"] for role, player in players.items()}


def named_embedder(bank: MemoryBank | None, embedder: Embedder | str | None) -> str:
    """The id of the embedder of a run, or the name it was asked for by; empty where the bank brings its own."""
    if bank is not None:
        return ""  # its vectors are in its digest
    return embedder if isinstance(embedder, str) else getattr(embedder, "id", "")


def _named(thing: Any) -> str:
    """A function, a class or an object by where it is defined."""
    inner = getattr(thing, "func", thing)  # of a functools.partial
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{kind.__qualname__}"


def versions() -> dict[str, str]:
    """Of everything that may format a prompt or choose one in another way."""
    return {
        "python": platform.python_version(),
        **{name: installed(name) for name in ("rb-dspy", "dspy", "gepa", "optuna")},
    }


def _lm(lm: Any) -> dict[str, Any]:
    settings = sampling(getattr(lm, "kwargs", {})) | left_out(lm)
    return {
        "model": str(lm.model),
        "kind": str(getattr(lm, "model_type", "")),
        "settings": json.loads(json.dumps(settings, sort_keys=True, default=_told)),
    }


def _told(value: Any) -> str:
    said = repr(value)
    return _named(value) if " at 0x" in said else said
