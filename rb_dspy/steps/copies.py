"""How programs and steps are copied: optimizers do it all the time, and what is no prompt must stay what it is."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

import dspy

M = TypeVar("M", bound=dspy.Module)


def copied(module: M, memo: dict[int, Any], *shared: Any) -> M:
    """``module`` as ``copy.deepcopy`` makes it, but with the ``shared`` objects themselves: a server, a pool, a model
    that ranks are not to be there twice, nor half. Modules among them are copied as any other.
    """
    memo |= {id(each): each for each in shared if not isinstance(each, dspy.Module)}
    made = object.__new__(type(module))
    memo[id(module)] = made
    made.__setstate__(deepcopy(module.__getstate__(), memo))
    return made
