"""A language model that a server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.base_lm import LM_CLASS_STATE_KEY


class HostedLM(dspy.LM):
    """A ``dspy.LM`` as ``rb.toml`` describes it.

    ``options``: what else it hands on with every request, which ``kwargs`` hold as well. ``omit``: settings that are
    never sent, whoever sets them, for servers that refuse them.
    """

    def __init__(
        self, model: str, *, omit: tuple[str, ...] = (), options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.omit = omit
        self.options = dict(options or {})
        super().__init__(model, **kwargs, **self.options)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        return super().__call__(prompt, messages=messages, **self._sent(prompt, kwargs))

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """``__call__`` for asyncio."""
        return await super().acall(prompt, messages=messages, **self._sent(prompt, kwargs))

    def _sent(self, prompt: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self.omit or isinstance(prompt, lm15.Request) or "request" in kwargs:  # whose settings are its own
            return kwargs
        return {**kwargs, **dict.fromkeys(self.omit)}  # dspy sends nothing that is None

    def dump_state(self) -> dict[str, Any]:
        """As a plain ``dspy.LM``, which anybody may load."""
        return {**super().dump_state(), LM_CLASS_STATE_KEY: "dspy.clients.lm.LM"}
