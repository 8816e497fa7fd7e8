"""Build the program of a command from the settings and saved prompts, and its tracker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rb_dspy.config import BackboneConfig, Settings
from rb_dspy.errors import BackboneError, InputError

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank
    from rb_dspy.matts import BankProgram
    from rb_dspy.tracking import Tracker


def build_program(
    chosen: Settings,
    env: str | None = None,
    prompts: str | None = None,
    agent: str | None = None,
    score: str | None = None,
) -> BankProgram:
    """The program of the settings, with what ``--env``, ``--program``, ``--agent`` and ``--score`` name.

    Raises ``InputError`` for what cannot be used.
    """
    from rb_dspy.assembly import build_program as build
    from rb_dspy.backbones import Backbones

    program = build(chosen.program, chosen.matts, env, Backbones.from_settings(chosen.roles), agent, score)
    if prompts is not None:
        _load_prompts(program, prompts, chosen)
    return program


def _load_prompts(program: BankProgram, name: str, chosen: Settings) -> None:
    """Set the prompts of ``program`` to those of a file or of a registered program."""
    from rb_dspy.prompts import load_program, set_state

    if not name.startswith("models:/") and (Path(name).exists() or Path(name).suffix == ".json"):
        load_program(program, name)
        return
    if not name.startswith("models:/") and "/" in name:
        raise InputError(f"--program {name}: no such file; expected a file, a registered NAME, or models:/NAME/2")
    set_state(program, tracker(chosen, True).state(name), source=name)


def start_bank(chosen: Settings, bank: str | None, scope: str | None) -> AbstractContextManager[MemoryBank | None]:
    """The bank that a command starts from if ``--bank`` or ``--scope`` is given; it must exist."""
    from rb_dspy.bank import MemoryBank

    if bank is None and scope is None:
        return nullcontext()
    url, name = bank or chosen.bank.url, scope or chosen.bank.scope
    return MemoryBank.open(url, scope=name, embedder=chosen.bank.embedder, create=False, trust=chosen.trust)


def reflection_model(chosen: Settings, name: str | None) -> Any:
    """The language model that proposes prompts, by role or model name; None: that of rb.toml, else the agent's.

    Raises ``BackboneError`` if it does not answer, because a compile would call it late.
    """
    from rb_dspy.backbones import Backbones
    from rb_dspy.cli.models import probe

    if name is None and "reflection" not in chosen.backbones:
        return None
    name = name or "reflection"
    config = next((each for role, each in chosen.backbones.items() if role == name), BackboneConfig(model=name))
    problem = probe(config)["problem"]
    if problem:
        raise BackboneError(f"--reflection {name}: {problem}")
    return Backbones.from_settings({"agent": config}).lm("agent")


def tracker(chosen: Settings, track: bool | None) -> Tracker:
    """The tracker; on or off by ``--track``, else by ``tracking.enabled``, else on if ``[tracking]`` exists."""
    from rb_dspy.tracking import Tracker

    on = chosen.tracking.enabled if track is None else track
    if on is None:
        on = "tracking" in chosen.model_fields_set
    return Tracker(chosen.tracking.model_copy(update={"enabled": on}))


def model_names(models: Mapping[str, str]) -> str:
    """The language models by role; one name if one model plays every role."""
    names = set(models.values())
    return names.pop() if len(names) == 1 else ", ".join(f"{role} {model}" for role, model in models.items())


def about(program: BankProgram, chosen: Settings) -> dict[str, Any]:
    """What a run must have in common with an earlier one to continue it: models, scaling, and settings with prompts."""
    from rb_dspy.backbones import Backbones
    from rb_dspy.jsonl import digest
    from rb_dspy.prompts import prompts_of

    roles = {role: str(lm.model) for role, lm in (program.backbones or Backbones()).lms().items()}
    scaling = chosen.matts.model_dump(mode="json") if chosen.matts else ""
    found = {"roles": roles, "models": model_names(roles), "matts": scaling}
    return found | {"settings": digest([chosen.program.model_dump(mode="json"), prompts_of(program)])}
