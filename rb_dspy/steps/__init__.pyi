# The names of this package; see ``__init__.py``.

from .act import Act as Act
from .contrast import Contrast as Contrast
from .distill import Distill as Distill, Distilled as Distilled
from .judge import Judge as Judge, judge_rollout as judge_rollout
from .memory import Memory as Memory
from .refine import Refine as Refine, Refined as Refined
from .retrieve import Retrieve as Retrieve
from .review import Review as Review
from .select import Select as Select, Selection as Selection
