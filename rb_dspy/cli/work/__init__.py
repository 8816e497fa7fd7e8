"""What the commands do; the modules above hold what they take, and what ``--help`` says of them.

Each name is loaded when its command is called: dspy takes a second, a bank's libraries some tenths of one.
"""

import lazy_loader

# The names are in ``__init__.pyi``, as in ``rb_dspy``.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
