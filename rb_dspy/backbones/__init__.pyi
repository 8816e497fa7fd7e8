# The names of this package; see ``__init__.py``.

from .ledger import Ledger as Ledger, Meter as Meter, metered as metered, report as report
from .roles import (
    Backbones as Backbones,
    adapter_for as adapter_for,
    lm_for_others as lm_for_others,
    lm_of as lm_of,
)
