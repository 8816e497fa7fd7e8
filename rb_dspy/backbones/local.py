"""The embedded model: ``local/NAME`` as a ``dspy.LM``, answered by llama.cpp's own server in a child process.

The server (``local_server``) listens on loopback with a random key. It starts at the first call, is shared by all LMs
of this process with the same file, context, slots and threads, is started again if it died, and ends with this process.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib.util
import os
import secrets
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15

from rb_dspy.backbones import local_server, models
from rb_dspy.backbones.adapters import ActionAdapter
from rb_dspy.config import BackboneConfig
from rb_dspy.errors import BackboneError, ConfigError, MissingDependency, ModelFileError

PROVIDER = "local"
DEFAULT_TIMEOUT = 3600.0
"""Seconds. An answer has no first byte before its last token, so dspy's own 600 are too few for a busy machine. A
server that dies closes its connections."""
MAX_DEFAULT_THREADS = 8
"""Beyond this, more threads rarely make a small model faster."""

_ACCESS = lm15.AccessPolicy(PROVIDER, base_url="http://127.0.0.1/v1")  # every LM states the address of its own server
lm15.register_provider(  # dspy binds the providers that are registered when an LM is made
    lm15.ProviderDefinition.chat(_ACCESS, compat=lm15.OpenAIChatCompat(max_tokens_field="max_tokens")),
    supports=lm15.ModelSupport(response_schema=True),
)


def local_lm(config: BackboneConfig) -> dspy.LM:
    """Return the LM of a ``local/NAME`` backbone. NAME is a name in the catalog or the path of a .gguf file.

    Raises ``MissingDependency`` if xllamacpp or the model is not on this machine, ``ModelFileError`` if the file is
    damaged (at the first call if only loading shows it), ``ConfigError`` for settings of hosted models.
    """
    for name, hosted in (("api_base", config.api_base), ("api_key_env", config.api_key_env)):
        if hosted is not None:
            raise ConfigError(f"{config.model} runs on this machine; {name} is for hosted models: remove it")
    passed = {"context", "slots", "threads", "max_tokens", "cache", "timeout"}
    kwargs = {"timeout": DEFAULT_TIMEOUT, **config.model_dump(include=passed, exclude_none=True), **config.options}
    return LocalLM(config.model, temperature=None if config.temperature == "none" else config.temperature, **kwargs)


class LocalLM(dspy.LM):
    """A ``dspy.LM`` that starts its server when it is called.

    Without a ``seed``, the seed is derived from ``rollout_id``, else it is 0. Equal prompts and seeds give equal texts,
    except for rounding, which depends on how much of the prompt the server has cached. ``adapter`` is its default
    adapter. Copies, saved states and pickles never contain the server's key.
    """

    adapter = ActionAdapter()

    def __init__(
        self, model: str, *, context: int = 8192, slots: int = 4, threads: int | None = None, **kwargs: Any
    ) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingDependency("local models need xllamacpp: run `pip install rb-dspy[local]`")
        path = _model_file(model.removeprefix(f"{PROVIDER}/"), context)
        self.server = ServerSettings(path, context, slots, threads or _default_threads())
        super().__init__(model, api_key=server_key, num_retries=kwargs.pop("num_retries", 0), **kwargs)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        return super().__call__(prompt, messages=messages, **self._connected(prompt, kwargs))

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """``__call__`` for asyncio."""
        kwargs = await asyncio.to_thread(self._connected, prompt, kwargs)
        return await super().acall(prompt, messages=messages, **kwargs)

    def dump_state(self) -> dict[str, Any]:
        """Return the state for ``load_state``, without address and key."""
        state = {name: value for name, value in super().dump_state().items() if name != "api_base"}
        return {**state, "context": self.server.context, "slots": self.server.slots, "threads": self.server.threads}

    def _connected(self, prompt: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Start the server if it is not running, and return ``kwargs`` with a seed.

        Raises ``ModelFileError`` or ``BackboneError`` if the server cannot start.
        """
        self.kwargs["api_base"] = running_server(self.server).url
        settings = {**self.kwargs, **kwargs}
        if isinstance(prompt, lm15.Request) or "request" in kwargs or settings.get("seed") is not None:
            return kwargs
        rollout = settings.get("rollout_id") or 0
        number = rollout if isinstance(rollout, int) else zlib.crc32(repr(rollout).encode())
        return {**kwargs, "seed": number % 2**31}  # a small rollout id itself


@dataclass(frozen=True)
class ServerSettings:
    """LMs with equal settings share a server. ``context`` is in tokens, for each of ``slots`` sequences."""

    path: Path
    context: int
    slots: int
    threads: int


@dataclass(frozen=True)
class Server:
    """A running child: its process, and the address of its API."""

    process: subprocess.Popen[str]
    url: str


_servers: dict[ServerSettings, Server] = {}
_lock = threading.Lock()


@functools.cache
def server_key() -> str:
    """The key of this process's servers. LMs hold this function, so no text, copy or pickle of them has the key."""
    return secrets.token_urlsafe(32)


def running_server(settings: ServerSettings) -> Server:
    """Return this process's server with these settings; start it if there is none or it died."""
    with _lock:
        server = _servers.get(settings)
        if server is not None and server.process.poll() is not None:
            _end(server.process)
            server = None
        if server is None:
            server = _servers[settings] = _start(settings)
        return server


def stop_servers() -> None:
    """End all servers of this process and free their memory; the next call of an LM starts its server again."""
    with _lock:
        for server in _servers.values():
            _end(server.process)
        _servers.clear()


atexit.register(stop_servers)


def _start(settings: ServerSettings) -> Server:
    numbers = (settings.context, settings.slots, settings.threads)
    # -P: do not import from the script's folder, which has modules such as errors and models.
    process = subprocess.Popen(
        [sys.executable, "-P", local_server.__file__, str(settings.path), *map(str, numbers)],
        env={**os.environ, local_server.KEY_VARIABLE: server_key()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the parent
    )
    try:
        line = process.stdout.readline().strip() if process.stdout is not None else ""
    except BaseException:
        process.kill()
        _end(process)
        raise
    if line.startswith("http"):
        return Server(process, f"{line}/v1")
    _end(process)
    what = f"{settings.path} with {settings.slots} slots of {settings.context:,} tokens"
    if line:
        raise ModelFileError(
            f"{what} cannot be loaded: the file is damaged or of an unknown kind, or memory is short; get it again, or"
            " lower context or slots"
        )
    raise BackboneError(
        f"the local server ended with exit code {process.returncode} and did not load {what}; if memory is short (-9),"
        " use a smaller model, or lower context or slots; otherwise reinstall xllamacpp"
    )


def _end(process: subprocess.Popen[str]) -> None:
    """Close the stdin of a server, at which it ends; kill it if it does not."""
    with process:  # at the end, its pipes are closed and it has ended
        try:
            process.communicate(timeout=5.0)
        except subprocess.TimeoutExpired:
            process.kill()


def _forget_servers() -> None:
    """After a fork, close the pipes to the servers: they belong to the parent and must notice when it ends."""
    global _lock
    _lock = threading.Lock()
    for server in _servers.values():
        with server.process:
            server.process.returncode = 0  # not a child of this process, so it is not waited for
    _servers.clear()
    server_key.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_servers)


def _model_file(name: str, context: int) -> Path:
    if not name.endswith(".gguf"):
        spec = models.find(name)
        if context > spec.context:
            raise ConfigError(f"{name} has a context of {spec.context:,} tokens, got {context:,}: lower context")
        return models.model_path(name)
    path = Path(name).absolute()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise MissingDependency(f"{path}: {error.strerror}; expected the path of a .gguf file") from error
    if magic != b"GGUF":
        raise ModelFileError(f"{path} is not a GGUF file (it starts with {magic!r}); give the path of a model file")
    return path


def _default_threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_DEFAULT_THREADS)
