"""``dspy.Predict`` whose demonstrations hold what its prompt can show, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dspy

from rb_dspy.schema import Task, Trajectory
from rb_dspy.signatures.check import renewed
from rb_dspy.steps.view import view

_ROLLOUT = 2_000
"""Tokens of a rollout in a demonstration: there may be several, and the one that is asked about has 4,000."""


class Predict(dspy.Predict):
    """A step's predictor.

    Optimizers make demonstrations of whole examples: with ground truth in a ``Task``, with a bank, which can neither be
    shown nor saved. Of such a one the fields of the signature are kept, a task as its instruction and a rollout as its
    transcript, as the step itself is asked; where there is no output field, it would never be shown, and is left out.
    """

    @property
    def demos(self) -> list[Any]:
        """The demonstrations."""
        return self._demos

    @demos.setter
    def demos(self, given: Iterable[Any] | None) -> None:
        self._demos = [shown for demo in given or () if (shown := self._shown(demo)) is not None]

    def load_state(self, state: dict[str, Any], **kwargs: Any) -> Any:
        """As of any dspy predictor; what was saved for a check is read by its words of now."""
        loaded: Any = super().load_state(state, **kwargs)
        signature = loaded.signature
        instructions, loaded.demos = renewed(signature, signature.instructions, loaded.demos)
        if instructions != signature.instructions:
            loaded.signature = signature.with_instructions(instructions)
        return loaded

    def _shown(self, demo: Any) -> Any:
        """A demonstration as it can be shown and saved; None for one that shows nothing."""
        if not isinstance(demo, Mapping | dspy.Example):
            return demo
        fields = {**self.signature.fields, "augmented": None}  # the second is dspy's mark of what it has made itself
        if not any(_is_whole(value) or (name not in fields and not _plain(value)) for name, value in demo.items()):
            return demo
        kept = {name: _as_text(value) for name, value in demo.items() if name in fields}
        if not kept.keys() & self.signature.output_fields.keys():
            return None
        return dspy.Example(**kept) if isinstance(demo, dspy.Example) else kept


def _is_whole(value: object) -> bool:
    return isinstance(value, Task | Trajectory)


def _plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | list | tuple | dict)


def _as_text(value: Any) -> Any:
    if isinstance(value, Task):
        return value.instruction
    return view(value, _ROLLOUT) if isinstance(value, Trajectory) else value
