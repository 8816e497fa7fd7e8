# The names of this package; see ``__init__.py``.

from .orders import COMPILE_SHARES as COMPILE_SHARES, Streams as Streams, split_streams as split_streams
from .report import RunReport as RunReport, Summary as Summary
from .result import TaskResult as TaskResult
from .run import Program as Program, run_stream as run_stream
from .scaling import PassAt as PassAt, Passes as Passes, Scaling as Scaling
from .splits import SHARES as SHARES, split_templates as split_templates
from .tasks import PRESETS as PRESETS, TaskStream as TaskStream, stream_names as stream_names
