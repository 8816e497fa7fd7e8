"""What ``rb-dspy resume`` does: rollouts that wait in a bank are learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.cli.again import bank_command
from rb_dspy.cli.bank_common import line, show_below
from rb_dspy.cli.bank_embedder import named
from rb_dspy.cli.built import give_prompts, program_for
from rb_dspy.cli.common import err, out, print_json
from rb_dspy.cli.ending import interrupted
from rb_dspy.cli.prompts import prompts_named
from rb_dspy.config import BankConfig, Settings
from rb_dspy.errors import (
    BackboneError,
    ConfigError,
    InfrastructureError,
    InputError,
    InvalidVector,
    RBError,
    UnparseableOutput,
)
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Experience
from rb_dspy.text import counted


def learn_from_waiting(chosen: Settings, ids: Sequence[str], prompts: str | None, *, json_: bool) -> None:
    """Those of ``ids``, or all; with the prompts that ``prompts`` names, where it is given."""
    learner = _learner(chosen)
    with prompts_named(prompts, chosen.tracking) as found:
        misfit = "" if found is None else give_prompts(learner, found.path, source=found.name)[1]
    if misfit:
        err.print(Text(misfit))
    with (
        named(),
        MemoryBank.open(
            chosen.bank.url, scope=chosen.bank.scope, embedder=chosen.bank.embedder, create=False
        ) as opened,
    ):
        broken = _learned(learner, _chosen(opened, ids, chosen.bank), json_=json_)
    if broken:
        raise broken


def _learner(chosen: Settings) -> MaTTS:
    """Several rollouts may wait together, which only test-time scaling learns from; one alone it treats as all do."""
    program = program_for(chosen)
    return program if isinstance(program, MaTTS) else MaTTS(program)


def _chosen(bank: MemoryBank, ids: Sequence[str], place: BankConfig) -> list[Pending]:
    waiting = bank.pending()
    unknown = [id for id in ids if id not in {pending.id for pending in waiting}]
    if unknown:
        look = bank_command("bank pending", None, place.url, place.scope)
        raise InputError(f"no rollouts wait as {unknown[0]!r}; `{look}` lists those that do")
    return [pending for pending in waiting if not ids or pending.id in ids]


def _learned(learner: MaTTS, waiting: Sequence[Pending], *, json_: bool) -> RBError | None:
    """Learn from each; the error of one that broke, where all did. What would break every one ends it at once."""
    if not waiting and not json_:
        out.print("nothing waits to be learned from")
    errors: list[RBError] = []
    try:
        for pending in waiting:
            try:
                with err.status(Text(f"learning from {line(pending.task.id)} …")):
                    experience = learner.resume(pending).experience
            except (ConfigError, BackboneError):
                raise
            except (InfrastructureError, UnparseableOutput, InputError, InvalidVector) as exc:
                errors.append(exc)
                _show(pending, None, str(exc), json_=json_)
            else:
                _show(pending, experience, "", json_=json_)
    except KeyboardInterrupt:
        raise interrupted("what was learned is in the bank, and the other rollouts go on waiting") from None
    return errors[-1] if errors and len(errors) == len(waiting) else None


def _show(pending: Pending, experience: Experience | None, error: str, *, json_: bool) -> None:
    verdicts = [] if experience is None else [verdict.label for verdict in experience.verdicts]
    if json_:
        found: dict[str, Any] = {"id": pending.id, "task": pending.task.id, "verdicts": verdicts, "error": error}
        print_json({**found, "items": [] if experience is None else experience.items})
        return
    if experience is None:
        out.print(Text.assemble((line(pending.task.id), "bold"), "  ", (line(error, 300), "red")), soft_wrap=True)
        return
    what = f"{', '.join(verdicts)} · {counted(len(experience.items), 'lesson')}"
    out.print(Text.assemble((line(pending.task.id), "bold"), "  ", (what, "dim")), soft_wrap=True)
    for item in experience.items:
        show_below(Text(item.title))
