"""Earlier cases as they were: the nearest (ExpRAG), the last ones (ExpRecent), or those that an agent keeps (ReMem)."""

from __future__ import annotations

from rb_dspy.memories.recall import Listed, Nearest, Recall, Recent, Retriever
from rb_dspy.memories.system import Base, MemorySystem
from rb_dspy.memories.teach import Cases
from rb_dspy.memories.working import ROUNDS, Drop
from rb_dspy.steps.working import WorkingMemory

_SOURCE = "Evo-Memory, arXiv 2511.20857"
K = 4
"""Cases shown; the paper's k for ExpRAG, which it uses for ExpRecent too as far as it says."""
_HEADING = "Earlier tasks, with what was done and how it was judged:"


def exprag(base: Base) -> MemorySystem:
    """The ``K`` cases whose tasks are most similar, most similar first.

    The paper embeds with bge-base-en-v1.5, stores successes in its main tables and both in another; we store both, as
    the judge's label is shown, and cut long cases so that all fit the cap. Its feedback is the true reward.
    """
    return cases(base, Nearest(K, ("case",), min_score=-1.0), f"the {K} nearest by task")


def exprecent(base: Base) -> MemorySystem:
    """The last ``K`` cases, newest first."""
    return cases(base, Recent(K, ("case",)), f"the last {K}")


def remem(base: Base) -> MemorySystem:
    """The nearest cases as in ``exprag``; before each action the agent may think, and prune those that mislead it.

    In the paper thinking, pruning and acting are answers to one prompt, without a limit; here up to ``ROUNDS`` calls,
    which count as the agent's, stand before each action, and none when no case is left. What is pruned leaves this
    task's prompts, not the bank. Its feedback is the true reward.
    """
    shows = f"the {K} nearest by task; the agent prunes them, in up to {ROUNDS} calls a step"
    return cases(base, Nearest(K, ("case",), min_score=-1.0), shows, Drop(ROUNDS))


def cases(base: Base, retriever: Retriever, shows: str, working: WorkingMemory | None = None) -> MemorySystem:
    """A system of Evo-Memory, which stores whole cases."""
    return MemorySystem(
        stores="whole cases",
        shows=shows,
        source=_SOURCE,
        calls="0",
        retrieve=Recall(base, retriever, Listed(_HEADING), working=working),
        teach=Cases(),
        signal="outcome",
    )
