# The names of this package; see ``__init__.py``.

from .matts import MaTTS as MaTTS
from .rollouts import Lost as Lost
