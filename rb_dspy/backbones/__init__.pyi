# The names of this package; see ``__init__.py``.

from .budget import Budget as Budget, budget as budget
from .call import call as call, lent as lent, value as value
from .roles import Backbones as Backbones, active as active
from .usage import Ledger as Ledger, metered as metered
