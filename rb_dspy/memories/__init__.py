"""Memory systems: what is learned from a rollout, what a later agent is shown, and how a bank is kept.

Each is one file, which composes the parts in ``recall``, ``rankers``, ``teach`` and ``curators`` and its own, and an
entry point in the group ``rb_dspy.memories``.
"""

from rb_dspy.memories.system import (
    Attempt as Attempt,
    Base as Base,
    Credit as Credit,
    Curated as Curated,
    Curator as Curator,
    Distiller as Distiller,
    MemoryFactory as MemoryFactory,
    MemorySystem as MemorySystem,
    Retrieval as Retrieval,
    Signal as Signal,
    system_of as system_of,
    unjudged as unjudged,
)
