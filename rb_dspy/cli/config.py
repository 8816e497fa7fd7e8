"""``rb-dspy config``: every key of ``rb.toml`` and ``--set``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
import typer
from rich.padding import Padding
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, out
from rb_dspy.config import Settings
from rb_dspy.errors import InputError
from rb_dspy.redaction import without_secrets


@options.shared
def config(
    part: Annotated[str | None, typer.Argument(help="Only keys that contain this, such as program.act.")] = None,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """List every key of rb.toml and --set, with its value, default and meaning.

    matts is off until one of its keys is set; a role of backbones uses the agent's model until its own is set.
    """
    keys = [each for each in _keys(Settings, Settings(), options.settings(config, set_)) if (part or "") in each["key"]]
    if not keys:
        raise InputError(f"no key contains {part!r}; they begin with {', '.join(Settings.model_fields)}")
    explained: set[str] = set()
    for each in keys:
        emit(each)
        value, default = each["value"], each["default"]
        now = "not set" if value is None else f"= {json.dumps(value, ensure_ascii=False)}"
        usual = "" if value == default else f"  default {'not set' if default is None else json.dumps(default)}"
        line = ((each["key"], "cyan"), " ", (now, "bold" if usual else ""), (usual, "dim"))
        out.print(Text.assemble(*line), overflow="fold")
        meaning = f"{each['meaning']} ({' or '.join(each['choices'])})" if each["choices"] else each["meaning"]
        if not (each["key"].startswith("backbones.") and meaning in explained):  # every role has the same keys
            out.print(Padding(Text(meaning, "dim"), (0, 0, 0, 4), expand=False))
        explained.add(meaning)


def _keys(model: type[pydantic.BaseModel], default: Any, now: Any, above: str = "") -> Iterator[dict[str, Any]]:
    """The keys of a table, in order; ``default`` and ``now`` are None if the table is not set."""
    for name, field in model.model_fields.items():
        usual = None if field.is_required() else field.get_default(call_default_factory=True)
        usual = usual if default is None else getattr(default, name)
        kind, key, value = _bare(field.annotation), f"{above}{name}", getattr(now, name, None)
        if get_origin(kind) is dict and get_args(kind)[0] is not str:  # a table for each role
            roles, table = get_args(kind)
            for role in get_args(roles):
                yield from _keys(table, (usual or {}).get(role), (value or {}).get(role), f"{key}.{role}.")
        elif isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            yield from _keys(kind, usual, value, f"{key}.")
        else:
            choices = list(get_args(kind)) if get_origin(kind) is Literal else []
            meaning = " ".join((field.description or "").replace("``", "").split())
            yield {"key": key, "value": _open(value), "default": _open(usual), "choices": choices, "meaning": meaning}


def _bare(annotation: Any) -> Any:
    """The type without None; the first type of a union."""
    if get_origin(annotation) in (Union, UnionType):
        return next(kind for kind in get_args(annotation) if kind is not NoneType)
    return annotation


def _open(value: Any) -> Any:
    """``value`` with the passwords in addresses removed."""
    if isinstance(value, list | tuple):
        return [_open(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _open(each) for name, each in value.items()}
    return without_secrets(value) if isinstance(value, str) else value
