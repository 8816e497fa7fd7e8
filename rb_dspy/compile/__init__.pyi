# The names of this package; see ``__init__.py``.

from .compile import compile_program as compile_program
from .metric import Metric as Metric
from .optimizers import OPTIMIZERS as OPTIMIZERS
from .plan import CompilePlan as CompilePlan, measure_compile as measure_compile, plan_compile as plan_compile
from .progress import Progress as Progress
from .result import Candidate as Candidate, Compiled as Compiled
from .state import (
    Prompts as Prompts,
    load_program as load_program,
    prompts_of as prompts_of,
    save_program as save_program,
    set_state as set_state,
    state_of as state_of,
)
from .steps import STEPS as STEPS, CompileStep as CompileStep
