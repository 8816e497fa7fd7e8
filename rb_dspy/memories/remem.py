"""ReMem: the cases of ExpRAG, from which the agent drops what does not help while it works."""

from __future__ import annotations

from rb_dspy.memories.exprag import K, cases
from rb_dspy.memories.recall import Nearest
from rb_dspy.memories.system import Base, MemorySystem
from rb_dspy.memories.working import ROUNDS, Drop


def remem(base: Base) -> MemorySystem:
    """The nearest cases as in ``exprag``; before each action the agent may think, and prune those that mislead it.

    In the paper thinking, pruning and acting are answers to one prompt, without a limit; here up to ``ROUNDS`` calls,
    which count as the agent's, stand before each action, and none when no case is left. What is pruned leaves this
    task's prompts, not the bank. Its feedback is the true reward.
    """
    shows = f"the {K} nearest by task; the agent prunes them, in up to {ROUNDS} calls a step"
    return cases(base, Nearest(K, ("case",), min_score=-1.0), shows, Drop(ROUNDS))
