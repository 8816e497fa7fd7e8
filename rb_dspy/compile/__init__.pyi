# The names of this package; see ``__init__.py``.

from .compile import compile_program as compile_program
from .metric import Metric as Metric
from .optimizers import OPTIMIZERS as OPTIMIZERS
from .plan import CompilePlan as CompilePlan, measure_compile as measure_compile, plan_compile as plan_compile
from .progress import Progress as Progress
from .result import Candidate as Candidate, Compiled as Compiled
from .steps import STEPS as STEPS, CompileStep as CompileStep
