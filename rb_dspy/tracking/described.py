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
from rb_dspy.backbones.hosted import HostedLM
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.identity import left_out, sampling
from rb_dspy.compile.state import Prompts, digest, prompts_of
from rb_dspy.config import ROLES
from rb_dspy.errors import BackboneError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.stream import Streams

_STEPS = ("retrieve", "act", "judge", "distill")
_SAMPLING = ("temperature", "max_tokens", "max_completion_tokens", "top_p", "reasoning_effort")


def described(program: Any) -> dict[str, Any]:
    """Kind, settings and models of ``program``: what ``settled`` says, ``lm.ROLE``, and ``lm.ROLE.temperature`` and
    the like where the model was configured with one, which wins over the step's.
    """
    found = settled(program) | {f"lm.{role}": model for role, model in models(program.backbones).items()}
    for role, lm in _played(program.backbones).items():
        own = active(program.backbones).names(role)
        sampled = {name: lm.kwargs.get(name) for name in _SAMPLING if own or name != "temperature"}
        if isinstance(lm, HostedLM):  # as rb.toml describes it, where no secret may be
            sampled |= sampling(lm.options) | left_out(lm)
        found |= _flat(f"lm.{role}", {name: value for name, value in sampled.items() if value is not None})
    return found


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
    found = active(backbones)
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
