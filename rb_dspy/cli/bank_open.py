"""Open the bank of a ``rb-dspy bank`` command; only ``add`` creates one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rb_dspy.cli import options
from rb_dspy.config import BankConfig
from rb_dspy.errors import EmbedderMismatch, UnknownScope

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank


def open_bank(
    config: Path | None, bank: str | None, scope: str | None, *, embeds: bool = False, create: bool = False
) -> MemoryBank:
    """Open the bank. A command that ``embeds`` needs the bank's own embedder; others work on any bank."""
    from rb_dspy.bank import MemoryBank

    chosen = options.settings(config, None, bank__url=bank, bank__scope=scope).bank
    embedder = chosen.embedder if embeds else None
    try:
        return MemoryBank.open(chosen.url, scope=chosen.scope, embedder=embedder, create=create)
    except EmbedderMismatch as exc:
        raise EmbedderMismatch(f"{exc}; set bank.embedder in rb.toml to the bank's embedder") from None


def open_every_scope(chosen: BankConfig, scope: str | None, *, embeds: bool = False) -> MemoryBank:
    """A bank for what concerns all its scopes; only ``scope``, the command's own option, must exist."""
    from rb_dspy.bank import MemoryBank
    from rb_dspy.bank.opening import scopes

    embedder = chosen.embedder if embeds else None
    try:
        return MemoryBank.open(chosen.url, scope=chosen.scope, embedder=embedder, create=False)
    except UnknownScope:
        names = scopes(chosen.url)
        if scope is not None or not names:
            raise
    return MemoryBank.open(chosen.url, scope=names[0], embedder=embedder, create=False)
