"""The memory bank: lessons with provenance, in separate scopes, never overwritten, searched by meaning or words."""

from rb_dspy.bank.bank import MemoryBank
from rb_dspy.bank.doctor import BankStats, Finding, NearDuplicate
from rb_dspy.bank.reading import Pending
from rb_dspy.bank.store.overlay import Scope as BankStore

__all__ = ["BankStats", "BankStore", "Finding", "MemoryBank", "NearDuplicate", "Pending"]
