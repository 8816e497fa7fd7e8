# The names of this package; see ``__init__.py``.

from .act import Act as Act
from .contrast import Contrast as Contrast
from .distill import Distill as Distill
from .drafts import Distilled as Distilled
from .ingest import Foreign as Foreign, as_task as as_task, as_trajectory as as_trajectory
from .judge import Judge as Judge
from .memory import Memory as Memory
from .refine import Refine as Refine, Refined as Refined
from .retrieve import Retrieve as Retrieve
from .select import Select as Select, Selection as Selection
