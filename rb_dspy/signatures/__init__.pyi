# The names of this package; see ``__init__.py``.

from .act import Act as Act
from .check import CheckAgain as CheckAgain, CheckFirst as CheckFirst
from .contrast import Contrast as Contrast, GeneralizeContrast as GeneralizeContrast
from .distill import (
    DistillFailure as DistillFailure,
    DistillSuccess as DistillSuccess,
    GeneralizeFailure as GeneralizeFailure,
    GeneralizeSuccess as GeneralizeSuccess,
)
from .draft import MemoryDraft as MemoryDraft
from .judge import Judge as Judge
from .review import Review as Review
from .select import Select as Select
