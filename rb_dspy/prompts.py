"""Prompts as JSON: instructions and demonstrations of each predictor, with a hash of the signature they are for.

It contains no language model, key, address or code. Unlike DSPy's own loading, loading rejects prompts that were
compiled for other signatures.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import dspy
import pydantic

from rb_dspy.errors import DspyTooOld, InputError, SignatureChanged
from rb_dspy.files import atomic_write
from rb_dspy.jsonl import digest
from rb_dspy.text import first_error, summary_line

FORMAT = "rb_dspy program"
VERSION = 2

COMPILED_FORMAT = "rb_dspy compiled"
COMPILED_VERSION = 2
"""Version of a compile's result (``rb_dspy.compile.result``), which contains a state."""

_SCALING = ("contrast.", "select.", "refine.")
"""Predictors that only ``MaTTS`` has."""

Prompts = dict[str, dict[str, Any]]
"""Predictor -> ``instructions``, and ``demos`` as JSON values."""


class _Saved(pydantic.BaseModel):
    """The prompts of one predictor in a file."""

    signature: str
    instructions: str
    demos: list[dict[str, Any]]


def predictors_of(program: dspy.Module) -> dict[str, Any]:
    """Name -> predictor, including modules that DSPy considers compiled and hides from ``named_predictors``."""
    modules = program.named_sub_modules(dspy.Predict)
    return {name.removeprefix("self."): predictor for name, predictor in modules}


def prompts_of(program: dspy.Module) -> Prompts:
    """The prompts of ``program``, which an optimizer can change, as JSON values."""
    return {
        name: {
            "instructions": predictor.signature.instructions,
            "demos": [{key: _plain(value) for key, value in demo.items()} for demo in predictor.demos],
        }
        for name, predictor in predictors_of(program).items()
    }


def set_prompts(program: dspy.Module, prompts: Prompts) -> None:
    """Set the prompts of the predictors that ``prompts`` names: all of them, or none if it raises.

    Values of demonstrations are converted back to the types of their fields.
    """
    changes = []
    for name, predictor in predictors_of(program).items():
        if name in prompts:
            signature = predictor.signature.with_instructions(prompts[name]["instructions"])
            changes.append((predictor, signature, [_demo(signature, demo) for demo in prompts[name]["demos"]]))
    for predictor, signature, demos in changes:
        predictor.signature, predictor.demos = signature, demos


def signatures_of(program: dspy.Module) -> dict[str, str]:
    """Predictor -> a hash of its fields: names, order, kinds, types, descriptions and limits; not of instructions."""
    return {name: digest(_fields(predictor.signature)) for name, predictor in predictors_of(program).items()}


def state_of(program: dspy.Module) -> dict[str, Any]:
    """The state that ``save_program`` writes."""
    signatures = signatures_of(program)
    return {
        "format": FORMAT,
        "version": VERSION,
        "versions": {"rb_dspy": installed("rb-dspy"), "dspy": installed("dspy")},
        "predictors": {
            name: {"signature": signatures[name], **prompts} for name, prompts in prompts_of(program).items()
        },
    }


def set_state(program: dspy.Module, state: Mapping[str, Any], *, source: str = "state") -> None:
    """Set the prompts of a ``state_of``. A ``MaTTS`` accepts that of a ``ReasoningBank`` and keeps its other prompts.

    Raises like ``load_program``; ``program`` is unchanged then.
    """
    saved = _checked(state, source)
    _check_version(state, source)
    here = signatures_of(program)
    scaling = {name for name in here if name.startswith(_SCALING)}
    missing = set() if scaling.isdisjoint(saved) else scaling
    changed = [name for name in here if name in saved and here[name] != saved[name].signature]
    changed += [name for name in here if name not in saved and (name in missing or name not in scaling)]
    changed += [name for name in saved if name not in here]
    if changed:
        raise SignatureChanged(
            f"{source}: compiled for other signatures than this program has: {', '.join(changed)}; compile it again"
        )
    set_prompts(program, {name: each.model_dump(exclude={"signature"}) for name, each in saved.items()})


def saved_prompts(state: Mapping[str, Any], source: str) -> Prompts:
    """The prompts in a ``state_of``, which may be untrusted. Raises ``InputError``."""
    return {name: each.model_dump(exclude={"signature"}) for name, each in _checked(state, source).items()}


def save_program(program: dspy.Module, path: str | Path) -> None:
    """Save the prompts of ``program`` as JSON; the file is replaced atomically."""
    write_json(path, state_of(program))


def load_program(program: dspy.Module, path: str | Path) -> None:
    """Set the prompts that ``save_program`` or ``Compiled.save`` saved.

    Raises:
        SignatureChanged: They were compiled for other signatures; names the predictors.
        DspyTooOld: A newer DSPy saved them.
        InputError: The file cannot be read, or has another format.
    """
    set_state(program, read_state(path), source=str(path))


def read_state(path: str | Path) -> dict[str, Any]:
    """The state in a file of ``save_program`` or ``Compiled.save``. Raises ``InputError`` for any other file."""
    data = read_json(path, {FORMAT: VERSION, COMPILED_FORMAT: COMPILED_VERSION})
    if data["format"] == COMPILED_FORMAT:
        data = data.get("state")  # type: ignore[assignment]
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"{path}: has no prompts; expected a file of Compiled.save")
    return data


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` as readable JSON."""
    text = json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False)
    with atomic_write(path) as file:
        file.write(f"{text}\n".encode())


def read_json(path: str | Path, formats: Mapping[str, int]) -> dict[str, Any]:
    """A JSON object that states one of ``formats`` and its version. Raises ``InputError`` for any other file."""
    expected = f"expected JSON of the format {' or '.join(map(repr, formats))}"
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as exc:
        raise InputError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise InputError(f"{path}: cannot be parsed ({summary_line(exc, 100)}); {expected}") from None
    if not isinstance(data, dict) or not isinstance(data.get("format"), str) or data["format"] not in formats:
        raise InputError(f"{path}: has another format; {expected}")
    if data.get("version") != formats[data["format"]]:
        raise InputError(
            f"{path}: has version {str(data.get('version'))[:20]} of the format; expected {formats[data['format']]}:"
            " save it again with this release of rb_dspy, or compile again"
        )
    return data


def _fields(signature: Any) -> list[list[Any]]:
    fields = []
    for name, field in signature.fields.items():
        extra = field.json_schema_extra
        schema = pydantic.TypeAdapter(field.annotation).json_schema()  # a type can keep its name and change its fields
        kind, limits = extra["__dspy_field_type"], extra.get("constraints")
        fields.append([name, kind, inspect.formatannotation(field.annotation), schema, extra["desc"], limits])
    return fields


def _plain(value: Any) -> Any:
    """``value`` as JSON values, which DSPy formats in the same way."""
    return pydantic.TypeAdapter(Any).dump_python(value, mode="json", fallback=str)


def _demo(signature: Any, demo: Mapping[str, Any]) -> Any:
    typed = dict(demo)
    for name, value in demo.items():
        if name in signature.fields and not isinstance(value, str):
            with suppress(pydantic.ValidationError):
                typed[name] = pydantic.TypeAdapter(signature.fields[name].annotation).validate_python(value)
    return dspy.Example(**typed)


def _checked(state: Mapping[str, Any], source: str) -> dict[str, _Saved]:
    """The validated predictors of a state, which may be untrusted."""
    try:
        saved = pydantic.TypeAdapter(dict[str, _Saved]).validate_python(state.get("predictors"))
        json.dumps(state.get("predictors"), ensure_ascii=False).encode()
    except pydantic.ValidationError as exc:
        raise InputError(f"{source}: predictors {': '.join(first_error(exc))}; save the program again") from None
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        raise InputError(f"{source}: a prompt contains a lone surrogate; remove it") from None
    return saved


def _check_version(state: Mapping[str, Any], source: str) -> None:
    versions = state.get("versions")
    saved = str(versions.get("dspy") if isinstance(versions, Mapping) else "")
    numbers = [part for part in saved.split(".")[:2] if part.isdecimal() and len(part) < 5]
    if len(numbers) < 2:
        raise InputError(f"{source}: does not state which version of dspy saved it; save the program again")
    if [int(part) for part in numbers] > [int(part) for part in installed("dspy").split(".")[:2]]:
        raise DspyTooOld(
            f"{source}: saved with dspy {saved}, which may format prompts in another way; dspy {installed('dspy')} is"
            f" installed: upgrade it to {'.'.join(numbers)} or newer"
        )
