"""What ``rb-dspy bank import`` and ``reindex --embedder`` do: many texts are embedded, and a terminal shows how far."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rb_dspy import plugins
from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import checked_name
from rb_dspy.bank.transfer import read
from rb_dspy.cli.bank_embedder import named, watched
from rb_dspy.cli.work.opening import whole_bank
from rb_dspy.config import BankConfig


@dataclass(frozen=True)
class Imported:
    """What came of the experiences of a file."""

    read: int
    new: int
    gone: int
    """Of those that are not new: how many were taken away from the bank, which an import does not undo."""
    others: int
    """Of those that are not new: how many have other lessons here than in the file, which an import does not change."""


def import_experiences(file: Path, chosen: BankConfig, origin: str) -> Imported:
    """Append what the file holds, and count it."""
    for _ in read(file, checked_name("origin", origin) if origin else ""):
        pass  # a file that cannot be used makes no bank, nor does a name
    with ExitStack() as open_:
        embedder = open_.enter_context(watched(plugins.embedder(chosen.embedder), "importing"))
        with named():
            kept = open_.enter_context(MemoryBank.open(chosen.url, scope=chosen.scope, embedder=embedder))
        before = kept.stats().experiences
        ids = kept.import_jsonl(file, origin=origin)
        here = {experience.id: experience for experience in kept.experiences()}
        others = sum(
            line.id in here and {item.id for item in line.items} != {item.id for item in here[line.id].items}
            for line in read(file, "")
        )
        return Imported(len(ids), len(here) - before, len(set(ids) - here.keys()), others)


def move_bank(embedder: str, chosen: BankConfig, scope: str | None) -> tuple[int, str]:
    """Give a whole bank to another embedder: how many vectors were made, and its name."""
    with watched(plugins.embedder(embedder), "embedding") as new, whole_bank(chosen, scope) as kept:
        return kept.reindex(new), kept.stats().embedder
