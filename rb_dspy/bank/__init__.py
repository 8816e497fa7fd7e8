"""The memory: experiences and the lessons drawn from them, kept for good and found again.

The store is the truth, the index is derived from it, and ``MemoryBank`` is the policy between them: what is admitted,
what counts as the same, and what may be found. Importing this imports no database, index or embedding library.
"""

from rb_dspy.bank.bank import MemoryBank
from rb_dspy.bank.duplicates import NearDuplicate
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import BankStats, Finding
from rb_dspy.bank.pending import Pending

__all__ = ["BankStats", "BankStore", "Finding", "MemoryBank", "NearDuplicate", "Pending"]
