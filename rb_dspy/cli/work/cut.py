"""Answers that end where a cap of tokens cut them off: counted by role, and told once, with the setting to raise."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.text import Text

from rb_dspy.backbones import Ledger, metered
from rb_dspy.backbones.roles import fallbacks
from rb_dspy.cli.common import err
from rb_dspy.config import Settings
from rb_dspy.schema import RoleUsage
from rb_dspy.wording import counted

_LOGGER = "dspy.clients.lm"
_SAID = "LM response was truncated"
"""How dspy's own line begins, which names neither a role nor a setting, and comes with every such answer."""

_CAPS = {
    "agent": "program.act.max_tokens (matts.refine.max_tokens for checks of its own work)",
    "judge": "program.judge.max_tokens",
    "distiller": "program.distill.max_tokens",
    "contraster": "matts.contrast.max_tokens",
    "selector": "matts.select.max_tokens",
}


class _Cut(Ledger, logging.Filter):
    """Takes dspy's line out of the log, and counts it for the role whose call is reported next in its thread."""

    def __init__(self) -> None:
        Ledger.__init__(self)
        logging.Filter.__init__(self)
        self.by_role: Counter[str] = Counter()
        self._here = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith(_SAID):
            return True
        self._here.cut = getattr(self._here, "cut", 0) + 1
        return False

    def add(self, role: str, usage: RoleUsage, *, unreadable: bool = False) -> None:
        with self._lock:
            self.by_role[role] += getattr(self._here, "cut", 0)
        self._here.cut = 0


@contextmanager
def told_once(chosen: Settings) -> Iterator[None]:
    """Inside the block dspy says nothing of answers that were cut off; after it we do, a line for each role."""
    cut = _Cut()
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(cut)
    try:
        with metered(cut):
            yield
    finally:
        logger.removeFilter(cut)
        for role, number in sorted((+cut.by_role).items()):
            answers = counted(number, "answer")
            told = f"{answers} of the {role} {'was' if number == 1 else 'were'} cut off: raise {_cap(chosen, role)}"
            err.print(Text(told, "yellow"))


def _cap(chosen: Settings, role: str) -> str:
    """The setting that caps the answers of ``role``."""
    played_by = next((name for name in fallbacks(role) if name in chosen.backbones), None) if role in _CAPS else None
    if played_by is not None and chosen.backbones[played_by].max_tokens is not None:
        return f"backbones.{played_by}.max_tokens"
    return _CAPS.get(role, "max_tokens of its model")
