"""Earlier cases as they were: the nearest (ExpRAG), or the last ones (ExpRecent)."""

from __future__ import annotations

from rb_dspy.memories.recall import Listed, Nearest, Recall, Recent, Retriever
from rb_dspy.memories.system import Base, MemorySystem
from rb_dspy.memories.teach import Cases

_SOURCE = "Evo-Memory, arXiv 2511.20857"
_K = 4
"""Cases shown; the paper's k for ExpRAG, which it uses for ExpRecent too as far as it says."""
_HEADING = "Earlier tasks, with what was done and how it was judged:"


def exprag(base: Base) -> MemorySystem:
    """The ``_K`` cases whose tasks are most similar, most similar first.

    The paper embeds with bge-base-en-v1.5, stores successes in its main tables and both in another; we store both, as
    the judge's label is shown, and cut long cases so that all fit the cap. Its feedback is the true reward.
    """
    return _cases(base, Nearest(_K, ("case",), min_score=-1.0), f"the {_K} nearest by task")


def exprecent(base: Base) -> MemorySystem:
    """The last ``_K`` cases, newest first."""
    return _cases(base, Recent(_K, ("case",)), f"the last {_K}")


def _cases(base: Base, retriever: Retriever, shows: str) -> MemorySystem:
    return MemorySystem(
        stores="whole cases",
        shows=shows,
        source=_SOURCE,
        calls="0",
        retrieve=Recall(base, retriever, Listed(_HEADING)),
        teach=Cases(),
        signal="outcome",
    )
