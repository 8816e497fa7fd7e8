"""The language models of a compile: copies of the program's models that use DSPy's cache.

So an interrupted compile that is started again with the same arguments makes only the missing calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from rb_dspy.backbones import Backbones
from rb_dspy.backbones.errors import explain, translate
from rb_dspy.errors import BackboneError, InfrastructureError

Sample = tuple[int, float | None]
"""A rollout id and a temperature, with which an optimizer samples again from the same prompts."""


class Models:
    """Role -> language model, and the one that proposes prompts. Copies share it.

    Args:
        backbones: Backbones of the program.
        reflection: The model that proposes prompts: an LM, a ``BackboneConfig`` or a name; None: the agent's.
    """

    def __init__(self, backbones: Backbones, reflection: Any = None) -> None:
        lms = backbones.lms()
        copies = {id(lm): lm.copy(cache=True) for lm in lms.values()}
        self.backbones = Backbones(**{role: copies[id(lm)] for role, lm in lms.items()})
        proposer = backbones.lm("agent") if reflection is None else Backbones(agent=reflection).lm("agent")
        self._watch = _Watch(proposer)
        self.reflection = proposer.copy(cache=True, callbacks=[*(proposer.callbacks or ()), self._watch])
        self._sampling = cache(self._resampled)

    @property
    def failure(self) -> BackboneError | None:
        """Why the reflection model cannot be used at all; None if it can."""
        return self._watch.failure

    @contextmanager
    def use(self, sample: Sample | None = None) -> Iterator[None]:
        """Use these models inside the block; with ``sample``, copies of each role's own LM that sample again."""
        backbones = self._sampling(sample) if sample else self.backbones
        with backbones.use(), dspy.context(lm=backbones.lm("agent"), disable_history=True):
            yield

    def check_reflection(self) -> None:
        """Raise ``InfrastructureError`` if every call of the reflection model failed."""
        if self._watch.error is not None and not self._watch.answers:
            raise InfrastructureError(f"reflection: no call was answered; the last one: {self._watch.error}")

    def _resampled(self, sample: Sample) -> Backbones:
        rollout, temperature = sample
        copies: dict[int, Any] = {}
        for lm in self.backbones.lms().values():
            fixed = temperature is None or getattr(lm, "omit_temperature", False)
            copies[id(lm)] = lm.copy(rollout_id=rollout, **({} if fixed else {"temperature": temperature}))
        return Backbones(**{role: copies[id(lm)] for role, lm in self.backbones.lms().items()})


class _Watch(BaseCallback):
    """Records how calls of the reflection model end, because optimizers only log its errors."""

    def __init__(self, lm: Any) -> None:
        self.answers = 0
        self.error: str | None = None
        self.failure: BackboneError | None = None
        self._lm = lm

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """Count an answer, or store the error."""
        if exception is None:
            self.answers += 1
            return
        self.error = explain(exception, self._lm)
        error = translate(exception, "reflection", self._lm)
        if isinstance(error, BackboneError):
            self.failure = error
