"""``rb-dspy settings``: every key that ``rb.toml`` and ``--set`` take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
import typer
from pydantic.fields import FieldInfo
from rich.padding import Padding
from rich.text import Text

from rb_dspy.cli.common import out, print_json, settings
from rb_dspy.cli.options import ConfigOption, JsonLinesOption, SetOption
from rb_dspy.config import Settings
from rb_dspy.errors import InputError
from rb_dspy.tracking.addresses import without_secrets

_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    tuple: "list of texts",
    dict: "table",
}
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most"}


@dataclass(frozen=True)
class Key:
    """One setting. ``default`` and ``value`` are None where nothing is set; passwords in addresses are left out."""

    key: str
    type: str
    choices: tuple[str, ...]
    """Empty where the type says what can be given."""
    default: Any
    value: Any
    """What holds now."""
    meaning: str


def settings_command(
    part: Annotated[str | None, typer.Argument(help="Only the keys that contain this, as in program.act.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonLinesOption = False,
) -> None:
    """Every key that rb.toml and --set take, with its default, what it is now, and what it means.

    matts is off until one of its keys is set, and a role of backbones is played by the agent's model until its own is.
    """
    found = [each for each in _keys(Settings, Settings(), settings(config, set_)) if (part or "") in each.key]
    if not found:
        tables = dict.fromkeys(each.key.partition(".")[0] for each in _keys(Settings, None, None))
        raise InputError(f"no key contains {part!r}; they begin with {', '.join(tables)}")
    if json_:
        for each in found:
            print_json(asdict(each))
        return
    roles: set[str] = set()
    for each in found:
        out.print(_line(each), overflow="fold")  # what is cut can be neither read nor copied
        if not each.key.startswith("backbones.") or each.meaning not in roles:  # which are the same for every role
            out.print(Padding(Text(each.meaning, "dim"), (0, 0, 0, 4), expand=False))
        if each.key.startswith("backbones."):
            roles.add(each.meaning)


def _line(found: Key) -> Text:
    """A key as ``rb.toml`` has it, what it takes, and what it is by default where that is something else."""
    changed = found.value not in (found.default, None)
    now = Text("not set") if found.value is None else Text(f"= {_shown(found.value)}", "bold" if changed else "")
    kind = " or ".join(map(_shown, found.choices)) if found.choices else found.type
    usual = "" if found.value == found.default else f" · default {_shown(found.default)}"
    return Text.assemble((found.key, "cyan"), " ", now, "  ", (f"{kind}{usual}", "dim"))


def _keys(
    model: type[pydantic.BaseModel], usual: pydantic.BaseModel | None, now: pydantic.BaseModel | None, above: str = ""
) -> Iterator[Key]:
    """The keys of a table, in order; ``usual`` and ``now`` are None for one that is not there by default, or now."""
    for name, field in model.model_fields.items():
        of_field = None if field.is_required() else field.get_default(call_default_factory=True)
        default = of_field if usual is None else getattr(usual, name)
        yield from _below(f"{above}{name}", _bare(field.annotation), field, default, getattr(now, name, None))


def _below(key: str, kind: Any, field: FieldInfo, default: Any, value: Any) -> Iterator[Key]:
    """``key``, or the keys of the table, or tables by name, that it is."""
    if get_origin(kind) is dict and get_args(kind)[0] is not str:
        names, inner = get_args(kind)
        for name in get_args(names):
            yield from _below(f"{key}.{name}", inner, field, _get(default, name), _get(value, name))
    elif isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        yield from _keys(kind, default, value, f"{key}.")
    else:
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        meaning = " ".join((field.description or "").replace("``", "").replace("None:", "not set:").split())
        yield Key(key, "one of" if choices else _type(kind, field), choices, _open(default), _open(value), meaning)


def _bare(annotation: Any) -> Any:
    """The type without None; of several the first."""
    if get_origin(annotation) in (Union, UnionType):
        return next(kind for kind in get_args(annotation) if kind is not NoneType)
    return annotation


def _type(kind: Any, field: FieldInfo) -> str:
    metadata = list(field.metadata)
    if get_origin(kind) is Annotated:  # its limits are a field of their own
        kind, *inner = get_args(kind)
        metadata += [each for part in inner for each in getattr(part, "metadata", [part])]
    name = _NAMES.get(get_origin(kind) or kind) or _NAMES[kind]
    limits = [
        f"{word} {getattr(each, limit)}"
        for each in metadata
        for limit, word in _LIMITS.items()
        if getattr(each, limit, None) is not None
    ]
    return ", ".join([name, *limits])


def _get(tables: Mapping[str, Any] | None, name: str) -> Any:
    return None if tables is None else tables.get(name)


def _open(value: Any) -> Any:
    """``value`` without the secrets that an address may hold."""
    if isinstance(value, list | tuple):
        return [_open(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _open(each) for name, each in value.items()}
    return without_secrets(value) if isinstance(value, str) else value


def _shown(value: Any) -> str:
    """As it is written in ``rb.toml``."""
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
