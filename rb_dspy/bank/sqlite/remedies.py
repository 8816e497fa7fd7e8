"""What can be done about damage: commands that act on the bank in question when they are copied from the screen."""

from __future__ import annotations

from rb_dspy.bank.commands import bank_options

_BANK = "{bank}"
"""Stands for the options that name the bank, until it is known which one that is."""

RESTORE = f"rb-dspy bank restore COPY{_BANK}"

FROM_A_COPY = f"restore the file from a copy ({RESTORE})"

OR_WHAT_IS_LEFT = f"{FROM_A_COPY}, or export what can be read and import it into a new bank"

REINDEX = f"rb-dspy bank reindex{_BANK}"

REINDEX_AS = f"rb-dspy bank reindex --embedder NAME{_BANK}"


def of_bank(remedy: str, location: str) -> str:
    """``remedy`` for the bank at ``location``."""
    return remedy.replace(_BANK, bank_options(location))
