"""Opening a bank that is there, as the commands of ``rb-dspy bank`` do."""

from __future__ import annotations

from pathlib import Path

from rb_dspy.bank import Finding, MemoryBank
from rb_dspy.bank.opening import scopes
from rb_dspy.cli.bank_common import chosen_settings
from rb_dspy.cli.bank_embedder import named
from rb_dspy.config import BankConfig
from rb_dspy.errors import UnknownScope


def opened_bank(
    config: Path | None,
    bank: str | None,
    scope: str | None,
    at: str | None = None,
    *,
    embeds: bool = False,
    create: bool = False,
) -> MemoryBank:
    """Open a bank that exists, or with ``create`` a new one.

    Only what ``embeds`` needs the bank's own embedder; all else works on a bank of any.
    """
    chosen = chosen_settings(config, bank, scope).bank
    if not embeds:
        return MemoryBank.open(chosen.url, scope=chosen.scope, create=False, at=at)
    with named():
        return MemoryBank.open(chosen.url, scope=chosen.scope, embedder=chosen.embedder, create=create, at=at)


def whole_bank(chosen: BankConfig, scope: str | None, *, embeds: bool = False) -> MemoryBank:
    """A bank for what is done to all its scopes; ``scope``: the command's own option, which must be there.

    ``embeds``: whether it may have to embed, with the embedder that is configured.
    """
    embedder = chosen.embedder if embeds else None
    try:
        return MemoryBank.open(chosen.url, scope=chosen.scope, embedder=embedder, create=False)
    except UnknownScope:
        known = scopes(chosen.url)
        if scope is not None or not known:
            raise
    return MemoryBank.open(chosen.url, scope=known[0], embedder=embedder, create=False)


def copied_bank(chosen: BankConfig, to: str) -> None:
    """``MemoryBank.backup`` of the bank that was chosen."""
    MemoryBank.backup(chosen.url, to=to)


def restored_bank(chosen: BankConfig, copy: str) -> Path | None:
    """``MemoryBank.restore`` of the bank that was chosen."""
    return MemoryBank.restore(chosen.url, copy=copy)


def examined(chosen: BankConfig, scope: str | None) -> tuple[list[Finding], int]:
    """What ``doctor`` finds in one scope, or in all, and the number of scopes."""
    names = scopes(chosen.url) if scope is None else [scope]
    findings: dict[Finding, None] = {}  # what is wrong with the file is found with every scope
    for name in names:
        with MemoryBank.open(chosen.url, scope=name, create=False) as bank:
            findings |= dict.fromkeys(bank.doctor())
    return [*findings], len(names)
