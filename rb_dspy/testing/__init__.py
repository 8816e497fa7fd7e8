"""Fakes that are part of the library: a scripted language model, a hash embedder, toy environments."""

from rb_dspy.testing.embedder import HashEmbedder
from rb_dspy.testing.environments import Corridor, Doors, Lock
from rb_dspy.testing.lm import Prompt, Reply, ScriptedEngine, scripted_lm

__all__ = ["Corridor", "Doors", "HashEmbedder", "Lock", "Prompt", "Reply", "ScriptedEngine", "scripted_lm"]
