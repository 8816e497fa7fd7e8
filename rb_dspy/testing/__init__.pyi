# The names of this package; see ``__init__.py``.

from .embedder import HashEmbedder as HashEmbedder
from .environments import Corridor as Corridor, Doors as Doors, Faulty as Faulty, Lock as Lock
from .lm import (
    Answer as Answer,
    Prompt as Prompt,
    Reply as Reply,
    ScriptedEngine as ScriptedEngine,
    scripted_lm as scripted_lm,
)
from .locks import (
    corridor as corridor,
    hall as hall,
    lock as lock,
    locks as locks,
    locksmith as locksmith,
    scripted_program as scripted_program,
    toys as toys,
)
