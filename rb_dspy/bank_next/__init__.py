"""Memory that lasts: lessons with provenance, scoped, never overwritten, found by meaning or by words."""

from rb_dspy.bank_next.bank import MemoryBank
from rb_dspy.bank_next.pending import Pending
from rb_dspy.bank_next.records import BankStats, Finding

__all__ = ["BankStats", "Finding", "MemoryBank", "Pending"]
