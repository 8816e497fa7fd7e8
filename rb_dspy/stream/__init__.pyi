# The names of this package; see ``__init__.py``.

from .journal import Journal as Journal, Record as Record
from .program import StreamProgram as StreamProgram, stream_example as stream_example
from .progress import Progress as Progress
from .report import RunReport as RunReport, Summary as Summary, TaskResult as TaskResult
from .run import Program as Program, run_stream as run_stream
from .scaling import PassAt as PassAt, Passes as Passes, Scaling as Scaling
from .score import Score as Score
from .split import (
    COMPILE_SHARES as COMPILE_SHARES,
    Streams as Streams,
    near_duplicates as near_duplicates,
    split_streams as split_streams,
)
from .stream import (
    PRESETS as PRESETS,
    TaskStream as TaskStream,
    fingerprint as fingerprint,
    named_tasks as named_tasks,
    stream_names as stream_names,
)
from .templates import SHARES as SHARES, split_templates as split_templates
