# The names of this package; see ``__init__.py``.

from .checking import check_models as check_models
from .compiling import compile_prompts as compile_prompts
from .embedding import import_experiences as import_experiences, move_bank as move_bank
from .environments import (
    list_environments as list_environments,
    play_baselines as play_baselines,
    show_environment as show_environment,
)
from .measuring import run_matrix as run_matrix
from .opening import (
    copied_bank as copied_bank,
    examined as examined,
    opened_bank as opened_bank,
    restored_bank as restored_bank,
    whole_bank as whole_bank,
)
from .programs import (
    compare_programs as compare_programs,
    list_programs as list_programs,
    promote_program as promote_program,
    show_program as show_program,
    write_lessons as write_lessons,
)
from .registering import register_program as register_program
from .resuming import learn_from_waiting as learn_from_waiting
from .running import run_tasks as run_tasks
