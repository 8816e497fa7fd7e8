# The names of this package; see ``__init__.py``.

from .ledger import Ledger as Ledger, Meter as Meter, metered as metered, report as report
from .roles import (
    Backbones as Backbones,
    active as active,
    adapter_for as adapter_for,
    in_use as in_use,
    lm_for_others as lm_for_others,
    lm_of as lm_of,
    none_in_use as none_in_use,
    stands_in as stands_in,
)
