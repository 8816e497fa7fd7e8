"""What dspy's tools do to a module, for a whole program: what is no prompt is no part of it, and stays what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import dspy

from rb_dspy.backbones import Backbones
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.steps.copies import copied


class Whole(dspy.Module):
    """A program of steps. Its copies share its backbones, its environments, and a judge that is no module."""

    backbones: Backbones | None
    environments: EnvironmentFactory
    judge: Any

    def get_lm(self) -> Any:
        """For ``dspy.BestOfN`` and its like, which draw samples from copies of it; each role draws from its own."""
        return super().get_lm() or (self.backbones and self.backbones.lm("agent"))

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """As of any dspy module; with the steps that an optimizer has marked as compiled, which dspy leaves out."""
        frozen = {name: parameter.dump_state(json_mode) for name, parameter in self._frozen()}
        return {**super().dump_state(json_mode), **frozen}

    def load_state(self, state: dict[str, Any], **kwargs: Any) -> Any:
        """See ``dump_state``."""
        given = super().load_state(state, **kwargs)
        for name, parameter in self._frozen():
            if name in state:
                parameter.load_state(state[name], **kwargs)
        return given

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copied(self, memo, self.environments, self.judge)

    def deepcopy(self) -> Self:
        """As of any dspy module, which copies one by one what a subclass has and cannot be copied with the rest."""
        made: Self = super().deepcopy()
        made.environments = self.environments
        if not isinstance(self.judge, dspy.Module):
            made.judge = self.judge
        return made

    def _given(self, environments: EnvironmentFactory | None) -> EnvironmentFactory:
        """Those of a call, or where it names none, the program's own. A factory may be empty, and false."""
        return self.environments if environments is None else environments

    def _frozen(self) -> Iterator[tuple[str, Any]]:
        """The predictors, by name, of steps that dspy passes over, since they were compiled by themselves."""
        for name, step in vars(self).items():
            if isinstance(step, dspy.Module) and getattr(step, "_compiled", False):
                yield from ((f"{name}.{below}", parameter) for below, parameter in step.named_parameters())
