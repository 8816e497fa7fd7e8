# The names of this package; see ``__init__.py``.

from .matts import BankProgram as BankProgram, MaTTS as MaTTS
from .rollouts import Lost as Lost
