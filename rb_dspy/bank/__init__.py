"""The memory bank: lessons with provenance, in separate scopes, never overwritten, searched by meaning or words."""

from rb_dspy.bank.bank import MemoryBank
from rb_dspy.bank.doctor import BankStats, Finding, HeldItem, NearDuplicate, Origin
from rb_dspy.bank.reading import Pending

__all__ = ["BankStats", "Finding", "HeldItem", "MemoryBank", "NearDuplicate", "Origin", "Pending"]
