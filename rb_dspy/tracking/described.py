"""What there is to say of a program, its language models and its bank, as parameters of a run.

Of a language model its name and how it samples, the options of its table in ``rb.toml`` included: never a key, an
address, or anything else it was configured with.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pydantic

from rb_dspy.backbones import Backbones, active
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.identity import sampling
from rb_dspy.compile.state import Prompts, digest, prompts_of
from rb_dspy.config import ROLES, BackboneConfig
from rb_dspy.errors import BackboneError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.stream import Streams
from rb_dspy.tracking.hidden import Hidden

_STEPS = ("retrieve", "act", "judge", "distill")
_KEYS = {*BackboneConfig.model_fields, "max_completion_tokens", "rollout_id"}
"""Settings of an LM that are no options."""
_hidden = Hidden()


def described(program: Any) -> dict[str, Any]:
    """Kind, settings and models of ``program``: what ``settled`` says, ``lm.ROLE``, and ``lm.ROLE.temperature`` and
    the like if the model was configured with one, which takes precedence over the step's.
    """
    found = settled(program) | {f"lm.{role}": model for role, model in models(program.backbones).items()}
    for role, lm in _played(program.backbones).items():
        settings = sampled(lm)
        found |= _flat(f"lm.{role}", {**settings.pop("options", {}), **settings})
    return found


def sampled(lm: Any) -> dict[str, Any]:
    """How an LM samples, as ``BackboneConfig`` takes it: ``temperature``, ``max_tokens`` and ``options``, if set.

    A plain LM may have any setting, so those options are left out that may be a key or an address, in tables too.
    """
    settings = lm.kwargs
    tokens = settings.get("max_tokens", settings.get("max_completion_tokens"))  # the latter: a reasoning model's
    found = {
        "temperature": "none" if getattr(lm, "omit_temperature", False) else settings.get("temperature"),
        "max_tokens": tokens,
        "options": {name: value for name, value in _public(settings).items() if name not in _KEYS},
    }
    if getattr(lm, "model_type", "chat") != "chat":
        found["options"]["model_type"] = lm.model_type
    return {name: value for name, value in found.items() if value not in (None, {})}


def _public(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings those that decide answers, as JSON."""
    found = {str(name): _public(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    return {name: value for name, value in sampling(found).items() if _is_public(value)}


def _is_public(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_public(each) and not isinstance(each, Mapping) for each in value)
    if isinstance(value, str):
        return _hidden(value) == value
    return isinstance(value, bool | int | float | Mapping)


def told(program: Any, name: str = "prompts") -> dict[str, str]:
    """``prompts``, equal for equal prompts, and ``prompts.changed``: which predictors have others than at first.

    ``name``: what they are called instead, where a run has more than one set of prompts.
    """
    prompts, first = prompts_of(program), uncompiled()
    changed = [name for name, prompt in prompts.items() if prompt != first.get(name)]
    return {name: short(prompts), f"{name}.changed": ", ".join(changed) or "none"}


def uncompiled() -> Prompts:
    """The prompts of every predictor that a program may have, as they are before any compile."""
    return prompts_of(MaTTS(ReasoningBank()))


def short(prompts: Prompts) -> str:
    """A name for prompts, equal for equal ones."""
    return digest(prompts)[:12]


def settled(program: Any) -> dict[str, Any]:
    """Kind and settings of ``program``, whoever plays it: ``program``, ``mode``, ``k``, ``STEP.SETTING``."""
    found: dict[str, Any] = {"program": type(program).__name__}
    if isinstance(program, MaTTS):
        found |= {"mode": program.config.mode, "k": program.config.k}
        found |= _flat("matts", program.config.model_dump(mode="json", exclude={"mode", "k"}))
    for name in _STEPS:
        step = getattr(program, name, None)
        config = getattr(step, "config", None)
        if isinstance(config, pydantic.BaseModel):
            found |= _flat(name, config.model_dump(mode="json"))
        elif step is not None:
            found[name] = type(step).__name__
    return found


def described_streams(streams: Streams) -> dict[str, Any]:
    """Name, size and digest of the tasks to compile on, to choose by, and held out: as ``stream`` is of one stream."""
    found: dict[str, Any] = {}
    for split in ("compile", "dev", "held_out"):
        stream = getattr(streams, split)
        name = f"stream.{split}"
        found |= {name: stream.name, f"{name}.tasks": len(stream), f"{name}.digest": stream.digest}
    return found


def title(program: Any) -> str:
    """``program`` in a few words, to tell runs apart."""
    if isinstance(program, MaTTS):
        return f"MaTTS {program.config.mode} {program.config.k}"
    return type(program).__name__


def models(backbones: Backbones | None) -> dict[str, str]:
    """Role -> name of the model that plays it; of roles that nobody plays nothing."""
    return {role: str(lm.model) for role, lm in _played(backbones).items()}


def models_of_compile(backbones: Backbones | None, reflection: Any = None) -> dict[str, str]:
    """``models``, with who proposes prompts: an LM, a ``BackboneConfig`` or a model's name; None: the agent's."""
    played = models(backbones)
    proposer = played.get("agent", "") if reflection is None else str(getattr(reflection, "model", reflection))
    return {**played, "reflection": proposer}


def proposer(reflection: Any) -> dict[str, str]:
    """The model that proposes prompts, as a role beside the others; none where it is the agent's."""
    return {} if reflection is None else {"reflection": str(Backbones(agent=reflection).lm("agent").model)}


def lms(backbones: Backbones | None) -> list[Any]:
    """The language models that play the roles, each once."""
    return list({id(lm): lm for lm in _played(backbones).values()}.values())


def _played(backbones: Backbones | None) -> dict[str, Any]:
    found = backbones or active()
    playing: dict[str, Any] = {}
    for role in ROLES:
        with suppress(BackboneError):  # nobody plays it, which whoever asks for it is told
            playing[role] = found.lm(role)
    return playing


def described_bank(bank: MemoryBank) -> dict[str, Any]:
    """Scope, size, and the digest of the bank's history: equal digests are equal banks."""
    with bank.fork() as fork:
        digest = fork.snapshot("as-tracked").digest
    return {"bank.scope": bank.scope, "bank.items": len(bank), "bank.digest": digest or "empty"}


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(f"{prefix}.{name}", value) if isinstance(value, Mapping) else {f"{prefix}.{name}": value}
    return found
