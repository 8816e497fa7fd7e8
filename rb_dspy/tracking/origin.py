"""Which run compiled a program: found by what its result says, for a result that was saved knows nothing of MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rb_dspy.compile.state import digest
from rb_dspy.tracking.where import Place

if TYPE_CHECKING:  # brings scipy
    from rb_dspy.compile.result import Compiled

RESULT = "rb.compiled"
"""The tag of a compile run: the digest of its result."""
COMPILE_RUN = "rb.compile_run"
"""The tag that names the run of the compile: of what was registered, and of the same compile given again."""
_SAYS = {"optimizer", "stage", "budget", "metric_calls", "seed", "seconds", "hashes", "prompts_before", "prompts_after"}


def result_digest(compiled: Compiled) -> str:
    """Equal for a result and for what was saved of it."""
    return digest(compiled.model_dump(mode="json", include=_SAYS))


def compile_run(place: Place, compiled: Compiled) -> str:
    """The id of the first run, in any experiment, that logged this result; empty where there is none."""
    experiments = [each.experiment_id for each in place.client.search_experiments()]
    wanted = f"tags.`{RESULT}` = '{result_digest(compiled)}'"
    found = place.client.search_runs(experiments, wanted, order_by=["attributes.start_time ASC"], max_results=1)
    return str(found[0].info.run_id) if found else ""
