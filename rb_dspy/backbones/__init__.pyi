# The names of this package; see ``__init__.py``.

from .call import call as call, lent as lent, value as value
from .roles import Backbones as Backbones, active as active
from .usage import Budget as Budget, Ledger as Ledger, budget as budget, metered as metered
