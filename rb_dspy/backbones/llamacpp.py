"""The embedded engine: a GGUF model inside this process, as an engine of dspy's.

``LlamaEngine`` implements dspy 3.4's engine protocol over ``runtime``; ``local_lm`` makes the ``dspy.LM`` of a
``local/NAME`` backbone. NAME is a name of the catalogue, or the path of a .gguf file.

Determinism: the same prompt, seed and temperature give the same text, from several threads too, within the limits
that ``runtime`` states for warm prompts; without a seed it is ``DEFAULT_SEED``. A change of machine, thread count or
library version may change the text.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15

from rb_dspy.backbones import models, runtime
from rb_dspy.backbones.stop import stopping
from rb_dspy.backbones.wire import body_of, response_of
from rb_dspy.backbones.worker import wait_for
from rb_dspy.config import BackboneConfig
from rb_dspy.errors import ConfigError, MissingDependency, RBError

DEFAULT_SEED = 0
DEFAULT_CONTEXT = 8192
DEFAULT_SLOTS = 4
MAX_DEFAULT_THREADS = 8
"""Beyond this, more threads rarely make a small model faster."""

_candidate: ContextVar[Iterator[int] | None] = ContextVar("rb_dspy_candidate", default=None)


class LlamaEngine:
    """Answers with a model that runs inside this process.

    Making one is cheap: the model is loaded at the first call, once for all engines with the same file, ``context``
    (tokens a slot), ``slots`` (prompts kept warm) and ``threads``. Safe for several threads; requests are answered one
    after the other. ``Usage.cache_read_tokens`` says how much of a prompt was warm. A call whose work has been given up
    (see ``stop``) ends soon, with an error.

    Raises ``MissingDependency`` where xllamacpp or the model is not there, ``ModelFileError`` where it is not whole,
    ``InputError`` for a name that is neither in the catalogue nor a file. Calls raise dspy.lm15 errors only.
    """

    supports_function_calling = False
    supports_reasoning = False
    supports_response_schema = True
    supported_params = frozenset(
        {
            *("temperature", "max_tokens", "max_completion_tokens", "top_p", "top_k", "stop", "seed", "logprobs"),
            *("top_logprobs", "frequency_penalty", "presence_penalty", "response_format", "grammar", "metadata"),
        }
    )

    def __init__(
        self,
        model: str,
        *,
        context: int = DEFAULT_CONTEXT,
        slots: int = DEFAULT_SLOTS,
        threads: int | None = None,
        prefix_cache: bool = True,
        directory: Path | None = None,
    ) -> None:
        runtime.check_installed()
        self.model, path = _resolve(model, context, directory)
        self.prefix_cache = prefix_cache
        self._load = runtime.Load(path, context, slots, threads or _default_threads())
        self._threads = threads

    def load(self) -> None:
        """Load the model now instead of at the first call. Raises ``ModelFileError``."""
        runtime.shared(self._load).load()

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request; the prompt is read only as far as no slot holds it."""
        stop = threading.Event()
        with stopping(stop):
            pending = self._submit(request)
        try:
            return self._finish(request, pending)
        except BaseException:
            stop.set()  # an interrupted caller must not leave the model busy for minutes
            raise

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """The events of ``complete``, once it is complete."""
        return iter(lm15.response_to_events(self.complete(request)))

    def close(self) -> None:
        """Unload the model, for all engines that share it; the next call loads it again."""
        runtime.shared(self._load).unload().result()

    def dump_state(self) -> dict[str, Any]:
        """What ``load_state`` needs: the model's name and the settings; no path of this machine."""
        return {
            "model": self.model,
            "context": self._load.context,
            "slots": self._load.slots,
            "threads": self._threads,
            "prefix_cache": self.prefix_cache,
        }

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> LlamaEngine:
        """The engine of ``dump_state``; a model that is not of the catalogue is looked for in the models' folder."""
        return cls(**state)

    def __deepcopy__(self, memo: dict[int, Any]) -> LlamaEngine:
        return self  # it holds nothing but settings

    def _submit(self, request: lm15.Request) -> Future[runtime.Answer]:
        candidates = _candidate.get()
        body = body_of(request, default_seed=DEFAULT_SEED, candidate=next(candidates) if candidates else 0)
        body["cache_prompt"] = self.prefix_cache
        return runtime.shared(self._load).submit(body)

    def _finish(self, request: lm15.Request, pending: Future[runtime.Answer]) -> lm15.Response:
        try:
            wait_for([pending])
            return response_of(request, pending.result())
        except runtime.RequestRefused as refusal:
            raise _lm15_error(refusal) from refusal
        except RBError as error:
            raise lm15.ConfigurationError(str(error), provider="local") from error


class AsyncLlamaEngine:
    """``LlamaEngine`` for asyncio: the loop goes on while the model works; a cancelled call stops it."""

    def __init__(self, engine: LlamaEngine) -> None:
        self.engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request."""
        stop = threading.Event()
        with stopping(stop):
            pending = self.engine._submit(request)
        try:
            await asyncio.wait([asyncio.wrap_future(pending)])
        except BaseException:
            stop.set()
            raise
        return self.engine._finish(request, pending)

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:
        """The events of ``complete``, once it is complete."""
        for event in lm15.response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """See ``LlamaEngine.close``."""
        await asyncio.to_thread(self.engine.close)

    def dump_state(self) -> dict[str, Any]:
        """See ``LlamaEngine.dump_state``."""
        return self.engine.dump_state()

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncLlamaEngine:
        """See ``LlamaEngine.load_state``."""
        return cls(LlamaEngine.load_state(state))

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncLlamaEngine:
        return self


class LocalLM(dspy.LM):
    """A ``dspy.LM`` whose distinct ``rollout_id``s, and ``n`` candidates, are distinct samples.

    dspy keeps both from engines, which a hosted model does not mind, being random; here they become seeds.
    """

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        token = _candidate.set(count())
        try:
            return super().__call__(prompt, messages=messages, **self._seeded(prompt, kwargs))
        finally:
            _candidate.reset(token)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """``__call__`` for asyncio."""
        token = _candidate.set(count())
        try:
            return await super().acall(prompt, messages=messages, **self._seeded(prompt, kwargs))
        finally:
            _candidate.reset(token)

    def _seeded(self, prompt: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        rollout = kwargs.get("rollout_id", self.kwargs.get("rollout_id"))
        typed = isinstance(prompt, lm15.Request) or "request" in kwargs
        if rollout is None or typed or kwargs.get("seed") is not None or self.kwargs.get("seed") is not None:
            return kwargs
        return {**kwargs, "seed": seed_of(rollout)}


def seed_of(rollout: object) -> int:
    """The seed of a rollout id: a small number itself, for anything else a hash."""
    if isinstance(rollout, int) and 0 <= rollout < 2**31:
        return rollout
    return int.from_bytes(hashlib.sha256(str(rollout).encode()).digest()[:4]) >> 1


def local_lm(config: BackboneConfig, *, prefix_cache: bool = True, directory: Path | None = None) -> dspy.LM:
    """The LM of a ``local/NAME`` backbone; see ``LlamaEngine`` for what may be raised.

    Raises ``ConfigError`` for settings that only a hosted model has.
    """
    name = config.model.removeprefix("local/")
    for field in ("api_base", "api_key_env", "timeout", "patience", "options", "omit"):
        if getattr(config, field) not in (None, {}, ()):
            meant = "remove it, or set the model that is meant as well, as PROVIDER/MODEL"
            raise ConfigError(f"{config.model} runs in this process; {field} is for hosted models: {meant}")
    engine = LlamaEngine(
        name,
        context=config.context,
        slots=config.slots,
        threads=config.threads,
        prefix_cache=prefix_cache,
        directory=directory,
    )
    return LocalLM(
        f"local/{engine.model}",
        engine=engine,
        async_engine=AsyncLlamaEngine(engine),
        temperature=config.temperature,
        max_tokens=config.max_tokens,
        cache=config.cache,
        num_retries=0,
    )


def _resolve(model: str, context: int, directory: Path | None) -> tuple[str, Path]:
    """The model's name and file. A file outside the catalogue goes by its own name."""
    if not model.endswith(".gguf"):
        spec = models.find(model)
        if context > spec.context:
            raise ConfigError(f"{model} has a context of {spec.context:,} tokens; {context:,} were asked for")
        return spec.name, models.model_path(model, directory=directory)
    path = Path(model)
    if not path.is_file():
        path = (directory or models.default_directory()) / path.name
    if not path.is_file():
        raise MissingDependency(f"{model} is not a file, nor is it in {path.parent}; give the path of a .gguf file")
    return path.name, path


def _default_threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_DEFAULT_THREADS)


def _lm15_error(refusal: runtime.RequestRefused) -> lm15.LM15Error:
    kinds: dict[str, type[lm15.LM15Error]] = {
        "exceed_context_size_error": lm15.ContextLengthError,
        "invalid_request_error": lm15.InvalidRequestError,
        "not_supported_error": lm15.UnsupportedFeatureError,
    }
    return kinds.get(refusal.kind, lm15.ServerError)(str(refusal), provider="local")
