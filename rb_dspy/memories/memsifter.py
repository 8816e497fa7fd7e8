"""MemSifter: a model reasons about many lessons before the task, and only the ones that help are shown."""

from __future__ import annotations

from rb_dspy.memories.rankers import Sifted
from rb_dspy.memories.recall import Listed, Nearest, Recall
from rb_dspy.memories.system import Base, MemorySystem

_NEAR = 20
"""Candidates by similarity; ours."""
_SHOWN = 10
"""Most that are shown (plageon/MemSifter: at most 10 are ranked)."""


def memsifter(base: Base) -> MemorySystem:
    """The program's own lessons, of which a language model chooses.

    The authors rank sessions of a conversation, with a small model that they train for it; we rank lessons, with the
    distiller's model. What is near by similarity has no floor: the model may say that nothing helps.
    """
    near = Nearest(_NEAR, ("lesson",), min_score=-1.0)
    return MemorySystem(
        stores="lessons",
        shows=f"up to {_SHOWN} that a model chooses from the {_NEAR} nearest, after reasoning about them",
        source="plageon/MemSifter",
        calls="2",
        retrieve=Recall(base, near, Listed(), rank=[Sifted(_SHOWN, base.distill)]),
        signal="outcome",
    )
