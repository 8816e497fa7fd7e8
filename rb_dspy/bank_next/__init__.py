"""One store for all banks, on SQLAlchemy Core. It will take the place of `rb_dspy.bank`; nothing uses it yet."""

from rb_dspy.bank_next.bank import MemoryBank
from rb_dspy.bank_next.duplicates import NearDuplicate
from rb_dspy.bank_next.pending import Pending
from rb_dspy.bank_next.records import BankStats, Finding
from rb_dspy.bank_next.store.base import Scope as BankStore

__all__ = ["BankStats", "BankStore", "Finding", "MemoryBank", "NearDuplicate", "Pending"]
