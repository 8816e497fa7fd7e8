"""Does memory help? Arms over the same tasks in several orders, a report and a verdict."""

import lazy_loader

# The names are in ``__init__.pyi``, as in ``rb_dspy``.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
