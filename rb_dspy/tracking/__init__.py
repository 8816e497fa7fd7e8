"""Log runs in MLflow: numbers, traces, prompts, data, and programs that can be loaded and served."""

import lazy_loader

# The names are in ``__init__.pyi``: importing this package imports neither dspy nor MLflow.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
