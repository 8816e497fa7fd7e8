"""ReasoningBank as an optimizable DSPy program: agents that learn from their own successes and failures.

>>> from rb_dspy import Backbones, MemoryBank, ReasoningBank
>>> program = ReasoningBank(backbones=Backbones(agent="openai/gpt-4o-mini"))
>>> bank = MemoryBank.open("lessons.sqlite", scope="support-desk")
>>> memory = program.recall("Refund an order that was paid twice", bank)
"""

import lazy_loader

__version__ = "0.1.0"

# The names are in ``__init__.pyi``. Each is imported on first use, because importing dspy takes a second, and a bank
# does not need dspy.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
