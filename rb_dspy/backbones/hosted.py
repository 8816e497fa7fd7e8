"""A language model that a server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.base_lm import LM_CLASS_STATE_KEY
from dspy.clients.call_context import adapter_fallback_scope

from rb_dspy.backbones.patience import NONE, Patience


class HostedLM(dspy.LM):
    """A ``dspy.LM`` as ``rb.toml`` describes it.

    ``options``: what else it hands on with every request, which ``kwargs`` hold as well. ``omit``: settings that are
    never sent, whoever sets them, for servers that refuse them. ``patience``: when a call that failed is made again,
    in place of dspy's own retries; see ``rb_dspy.backbones.patience``.
    """

    def __init__(
        self,
        model: str,
        *,
        omit: tuple[str, ...] = (),
        options: Mapping[str, Any] | None = None,
        patience: Patience | None = None,
        **kwargs: Any,
    ) -> None:
        self.omit = omit
        self.options = dict(options or {})
        self.patience = patience or Patience()
        super().__init__(model, num_retries=0, **kwargs, **self.options)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        kwargs = self._sent(prompt, kwargs)
        waits = self.patience.begin(self.model)
        while True:
            with adapter_fallback_scope() as shown:
                try:
                    return super().__call__(prompt, messages=messages, **kwargs)
                except dspy.LMError as exc:
                    if shown.emitted:  # somebody reads along, and would read it twice
                        raise
                    pause = waits.after(exc)
            waits.sleep(pause)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """``__call__`` for asyncio."""
        kwargs = self._sent(prompt, kwargs)
        waits = self.patience.begin(self.model)
        while True:
            with adapter_fallback_scope() as shown:
                try:
                    return await super().acall(prompt, messages=messages, **kwargs)
                except dspy.LMError as exc:
                    if shown.emitted:
                        raise
                    pause = waits.after(exc)
            await waits.asleep(pause)

    def asked_once(self) -> HostedLM:
        """A copy that waits for nothing, and takes no answer from a cache."""
        once: HostedLM = self.copy(cache=False)
        once.patience = NONE
        return once

    def _sent(self, prompt: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self.omit or isinstance(prompt, lm15.Request) or "request" in kwargs:  # whose settings are its own
            return kwargs
        return {**kwargs, **dict.fromkeys(self.omit)}  # dspy sends nothing that is None

    def dump_state(self) -> dict[str, Any]:
        """As a plain ``dspy.LM``, which anybody may load."""
        return {**super().dump_state(), LM_CLASS_STATE_KEY: "dspy.clients.lm.LM", "num_retries": self.patience.retries}
