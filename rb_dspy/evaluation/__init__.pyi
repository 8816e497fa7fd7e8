# The names of this package; see ``__init__.py``.

from .intervals import (
    Comparison as Comparison,
    Interval as Interval,
    Verdict as Verdict,
    compare as compare,
    detectable as detectable,
)
