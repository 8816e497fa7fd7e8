"""What is saved of a program: instructions and demonstrations, and the signatures that they were compiled for.

The file is JSON. No language model, key or address is in it, and nothing of it is code. Loading refuses signatures
other than those it was saved with: dspy's own loading would take them without a word.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import dspy
import pydantic

from rb_dspy.compile.files import of_kind, read_one_of, write_json
from rb_dspy.errors import DspyTooOld, InputError, SignatureChanged

FORMAT = "rb_dspy program"
VERSION = 1

COMPILED_FORMAT = "rb_dspy compiled"
COMPILED_VERSION = 1
"""Of the report of a compile, which holds the state of the program (``rb_dspy.compile.result``)."""

# What an optimizer has compiled, dspy takes for frozen, and names no predictor in it.
_SCALING = ("contrast", "select", "refine")
"""The steps that only ``MaTTS`` has."""
_FROZEN = "_compiled"

_LONGEST_VERSION = 100
"""In characters; no release has more, and Python refuses a number of 4,301 digits."""

Prompts = dict[str, dict[str, Any]]
"""Predictor -> ``instructions``, and ``demos`` as JSON values."""


def predictors_of(program: dspy.Module) -> list[tuple[str, Any]]:
    """Name and predictor of every one in ``program``, those in modules that are compiled already among them."""
    frozen = [module for _, module in program.named_sub_modules() if module is not program and _is_frozen(module)]
    for module in frozen:
        setattr(module, _FROZEN, False)
    try:
        return list(program.named_predictors())
    finally:
        for module in frozen:
            setattr(module, _FROZEN, True)


def thawed(program: dspy.Module) -> None:
    """Let optimizers change all of ``program``."""
    for _, module in program.named_sub_modules():
        if _is_frozen(module):
            setattr(module, _FROZEN, False)


def prompts_of(program: dspy.Module) -> Prompts:
    """What an optimizer may change in ``program``, as JSON values."""
    return {
        name: {
            "instructions": predictor.signature.instructions,
            "demos": [{key: _plain(value) for key, value in demo.items()} for demo in predictor.demos],
        }
        for name, predictor in predictors_of(program)
    }


def set_prompts(program: dspy.Module, prompts: Prompts) -> None:
    """Give the predictors that ``prompts`` names what it says; demos get their types back where they have some.

    All of them, or none where it raises.
    """
    made = []
    for name, predictor in predictors_of(program):
        if name in prompts:
            signature = predictor.signature.with_instructions(prompts[name]["instructions"])
            made.append((predictor, signature, [_demo(signature, demo) for demo in prompts[name]["demos"]]))
    for predictor, signature, demos in made:
        predictor.signature, predictor.demos = signature, demos


def signatures_of(program: dspy.Module) -> dict[str, list[dict[str, Any]]]:
    """Predictor -> its fields in order: name, kind, type and description. Instructions are what is compiled."""
    return {name: _fields(predictor.signature) for name, predictor in predictors_of(program)}


def signature_hash(program: dspy.Module) -> str:
    """A name for ``signatures_of(program)``."""
    return digest(signatures_of(program))


def state_of(program: dspy.Module) -> dict[str, Any]:
    """What ``save_program`` writes."""
    prompts = prompts_of(program)
    fields = signatures_of(program)
    return {
        "format": FORMAT,
        "version": VERSION,
        "versions": {"rb_dspy": installed("rb-dspy"), "dspy": installed("dspy")},
        "signatures": signature_hash(program),
        "predictors": {name: {"fields": fields[name], **prompts[name]} for name in prompts},
    }


def set_state(program: dspy.Module, state: Mapping[str, Any], *, source: str = "state", partial: bool = False) -> None:
    """Give ``program`` the prompts of ``state``, what ``state_of`` gives or what ``Compiled.save`` writes.

    Raises like ``load_program``, and changes nothing then.
    """
    state = _state_in(state, source)
    saved = _checked(state, source)
    _check_version(state, source)
    _check_signatures(signatures_of(program), saved, source, partial=partial)
    set_prompts(program, saved)


def only_scaling_differs(program: dspy.Module, state: Mapping[str, Any]) -> bool:
    """Whether one of both has test-time scaling and the other has not, and else they have the same predictors."""
    differ = set(state.get("predictors") or ()) ^ prompts_of(program).keys()
    return bool(differ) and all(str(name).partition(".")[0] in _SCALING for name in differ)


def save_program(program: dspy.Module, path: str | Path) -> None:
    """Save the prompts of ``program`` as JSON, whole or not at all."""
    write_json(path, state_of(program))


def load_program(program: dspy.Module, path: str | Path, *, partial: bool = False) -> None:
    """Give ``program`` the prompts that ``save_program`` or ``Compiled.save`` saved.

    Raises ``SignatureChanged`` where they were compiled for other signatures, ``DspyTooOld`` where a newer dspy saved
    them, ``InputError`` for a file that is not such JSON, a pickle for one; ``program`` is unchanged then. With
    ``partial`` only predictors that both have must agree, as for prompts of ``ReasoningBank`` in ``MaTTS``.
    """
    set_state(program, read_state(path), source=str(path), partial=partial)


def read_state(path: str | Path) -> dict[str, Any]:
    """The state in a file of ``save_program`` or of ``Compiled.save``. Raises ``InputError`` for any other."""
    return _state_in(read_one_of(path, {FORMAT: VERSION, COMPILED_FORMAT: COMPILED_VERSION}), str(path))


def digest(data: Any) -> str:
    """A short name for JSON values."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def with_prompts(state: dict[str, Any], prompts: Prompts) -> dict[str, Any]:
    """``state`` with the prompts of the predictors that ``prompts`` names."""
    predictors = {name: {**each, **prompts.get(name, {})} for name, each in state["predictors"].items()}
    return {**state, "predictors": predictors}


def _state_in(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """``data``, or where it is the report of a compile, the state in it."""
    if data.get("format") == COMPILED_FORMAT:
        data = of_kind(data, {COMPILED_FORMAT: COMPILED_VERSION}, source).get("state") or {}
    return of_kind(data, {FORMAT: VERSION}, source)


def _is_frozen(module: Any) -> bool:
    return bool(getattr(module, _FROZEN, False))


def _fields(signature: Any) -> list[dict[str, Any]]:
    found = []
    for name, field in signature.fields.items():
        schema = pydantic.TypeAdapter(field.annotation).json_schema()
        extra = field.json_schema_extra
        told = {"constraints": extra["constraints"]} if extra.get("constraints") else {}  # they stand in the prompt
        found.append(
            {
                "name": name,
                "kind": extra["__dspy_field_type"],
                "type": inspect.formatannotation(field.annotation),
                "schema": digest(schema),  # a type may keep its name and get other fields
                "description": extra["desc"],
                **told,
            }
        )
    return found


def _plain(value: Any) -> Any:
    """``value`` as it stands in a prompt, where dspy formats it in the same way."""
    return pydantic.TypeAdapter(Any).dump_python(value, mode="json", fallback=str)


def _demo(signature: Any, demo: Mapping[str, Any]) -> Any:
    """A demonstration with the types of its fields; a value that is not of its field's type stays what it is."""
    typed = {}
    for name, value in demo.items():
        field = signature.fields.get(name)
        if field is not None and not isinstance(value, str):
            with suppress(pydantic.ValidationError):
                value = pydantic.TypeAdapter(field.annotation).validate_python(value)
        typed[name] = value
    return dspy.Example(**typed)


def _checked(state: Mapping[str, Any], source: str) -> Prompts:
    """The predictors of a state, which may come from anywhere."""
    predictors: Any = state.get("predictors")
    sound = isinstance(predictors, dict) and all(
        isinstance(each, dict)
        and isinstance(each.get("instructions"), str)
        and isinstance(each.get("demos"), list)
        and all(isinstance(demo, dict) for demo in each["demos"])
        and isinstance(each.get("fields"), list)
        and all(isinstance(field, dict) and isinstance(field.get("name"), str) for field in each["fields"])
        for each in predictors.values()
    )
    if not sound:
        raise InputError(f"{source}: its predictors cannot be read; expected what save_program wrote: save it again")
    for name, each in predictors.items():
        _check_text(f"{source}: {name}", [each["instructions"], each["demos"]])
    return {str(name): each for name, each in predictors.items()}


def _check_text(source: str, texts: Any) -> None:
    """Half a character, which only an escape can write, goes into no signature and to no language model."""
    try:
        json.dumps(texts, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as exc:
        half = exc.object[exc.start]
        raise InputError(
            f"{source}: its prompts hold half a character, {half!a}; expected UTF-8, take it out"
        ) from None


def _check_version(state: Mapping[str, Any], source: str) -> None:
    versions = state.get("versions")
    saved = versions.get("dspy") if isinstance(versions, dict) else None
    if not isinstance(saved, str) or len(saved) > _LONGEST_VERSION:
        raise InputError(f"{source}: does not say which dspy saved it; expected what save_program wrote: save it again")
    here = installed("dspy")
    if _release(saved) > _release(here):
        raise DspyTooOld(
            f"{source}: saved with dspy {saved}, and dspy {here} is installed, which may format its prompts in another"
            f" way; install dspy {saved} or newer"
        )


def _check_signatures(here: Mapping[str, list[dict[str, Any]]], saved: Prompts, source: str, *, partial: bool) -> None:
    found = []
    if not partial:
        found += [f"{name} is not in this program" for name in saved if name not in here]
        found += [f"{name} is not in the file" for name in here if name not in saved]
    elif not set(saved) & set(here):
        found.append("no predictor is in both")
    for name in saved:
        if name in here:
            found += [f"{name}: {what}" for what in _differences(here[name], saved[name]["fields"])]
    if found:
        raise SignatureChanged(
            f"{source}: compiled for other signatures than this program has: {'; '.join(found)}; compile it again"
        )


def _differences(here: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[str]:
    """What is different from ``saved``, field by field."""
    now, then = ({field["name"]: field for field in fields} for fields in (here, saved))
    found = [f"field {name!r} is gone" for name in then if name not in now]
    found += [f"field {name!r} is new" for name in now if name not in then]
    for name in now:
        if name in then:
            for what in ("kind", "type", "schema", "description", "constraints"):
                if now[name].get(what) != then[name].get(what):
                    shown = (
                        f" ({_cut(then[name].get(what))} -> {_cut(now[name].get(what))})" if what != "schema" else ""
                    )
                    found.append(f"field {name!r} has another {what}{shown}")
                    break
    if not found and list(now) != list(then):
        found.append(f"the fields have another order ({', '.join(then)} -> {', '.join(now)})")
    return found


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _release(version: Any) -> tuple[int, ...]:
    """``3.4.1rc2`` as 3, 4, 1."""
    return tuple(int(number) for number in re.findall(r"\d+", str(version))[:3])
