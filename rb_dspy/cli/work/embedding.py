"""What ``rb-dspy bank import`` and ``reindex --embedder`` do: many texts are embedded, and a terminal shows how far."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rb_dspy import plugins
from rb_dspy.bank import MemoryBank, portability
from rb_dspy.bank.admission import checked_name
from rb_dspy.bank.parts import item_text
from rb_dspy.cli.bank_embedder import named, watched
from rb_dspy.cli.work.opening import whole_bank
from rb_dspy.config import BankConfig
from rb_dspy.errors import CorruptBank, InputError


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
    # A file that cannot be used makes no bank, nor does a name.
    portability.read(file, chosen.scope, origin=checked_name("origin", origin) if origin else "")
    with ExitStack() as open_:
        embedder = open_.enter_context(watched(plugins.embedder(chosen.embedder), "importing"))
        with named():
            kept = open_.enter_context(MemoryBank.open(chosen.url, scope=chosen.scope, embedder=embedder))
        before = kept.stats().experiences
        given = kept.import_jsonl(file, origin=origin)
        after = kept.stats()
        new = max(0, after.experiences - before)
        # They are looked up one by one: only where some can be missing.
        looked_for = given if after.removed and len(given) > new else ()
        gone = {experience.id for experience in looked_for if not _is_here(kept, experience.id)}
        others = 0
        if len(given) > new:
            told = portability.read(file, chosen.scope)
            others = sum(
                stored.id not in gone and set(map(item_text, line.items)) != set(map(item_text, stored.items))
                for line, stored in zip(told, given, strict=True)
            )
    return Imported(len(given), new, len(gone), others)


def _is_here(bank: MemoryBank, id: str) -> bool:
    try:
        bank.get(id)
    except InputError:
        return False
    except CorruptBank:  # damaged, but here
        return True
    return True


def move_bank(embedder: str, chosen: BankConfig, scope: str | None) -> tuple[int, str]:
    """Give a whole bank to another embedder: how many vectors were made, and its name."""
    with watched(plugins.embedder(embedder), "embedding") as new, whole_bank(chosen, scope) as kept:
        return kept.reindex(new), kept.stats().embedder
