# The names of this package; see ``__init__.py``.

from .act import Act as Act, ActDiscussing as ActDiscussing
from .check import CheckAgain as CheckAgain, CheckFirst as CheckFirst
from .contrast import Contrast as Contrast, GeneralizeContrast as GeneralizeContrast
from .distill import (
    DistillFailure as DistillFailure,
    DistillSuccess as DistillSuccess,
    GeneralizeFailure as GeneralizeFailure,
    GeneralizeSuccess as GeneralizeSuccess,
    ProcedureFailure as ProcedureFailure,
    ProcedureSuccess as ProcedureSuccess,
)
from .draft import MemoryDraft as MemoryDraft, Strategy as Strategy
from .judge import Judge as Judge, PlainJudge as PlainJudge
from .review import Review as Review
from .select import Select as Select
