"""Where a step has its predictor, or any module with the same inputs and outputs, but for one kind of them."""

from __future__ import annotations

from typing import Any

import dspy

from rb_dspy.errors import ConfigError

_OWN = "trajectory"
"""What ``dspy.ReAct``, and ``CodeAct`` after it, call what they did themselves, whatever their signature has by it."""


class Place:
    """An attribute of a step that holds a predictor. Setting it raises ``ConfigError`` for one that could never work.

    The value is where dspy looks for it, among the attributes of the instance.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, step: Any, owner: type | None = None) -> Any:
        if step is None:
            return self
        try:
            return vars(step)[self._name]
        except KeyError:
            raise AttributeError(f"{type(step).__name__} has no {self._name!r}") from None

    def __set__(self, step: Any, given: Any) -> None:
        _check(f"{type(step).__name__}.{self._name}", given)
        vars(step)[self._name] = given


def _check(where: str, given: Any) -> None:
    for _, module in given.named_sub_modules(dspy.ReAct) if isinstance(given, dspy.Module) else ():
        if _OWN in module.signature.input_fields:
            kind = type(module).__name__
            raise ConfigError(
                f"{where}: dspy.{kind} cannot read the {_OWN}, since it has an input of that name itself; put"
                f" dspy.ReActV2 there, or a module that hands it to {kind} by another name"
            )
