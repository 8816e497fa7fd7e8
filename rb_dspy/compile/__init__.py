"""Compiling prompts: DSPy's optimizers on streams of tasks, with feedback for each predictor and a held-out score."""

import lazy_loader

# The names are in ``__init__.pyi``, as in ``rb_dspy``.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
