"""A model file, loaded once in this process, that answers one request at a time and keeps prompts warm.

How llama.cpp is set up, and what was measured for it (2 cores, 1.5b model, CPU seconds):

- Requests run one after the other. Decoding four at once took as long as four in turn, and a request that finds its
  warm slot busy evaluates its whole prompt again in another (42 s instead of 13 s for four).
- Repacked weights and flash attention are off: prompts are faster (53-58 tokens a CPU second against 47-49), loading
  is faster, memory is 0.6 GB less, and a warm prompt gives the numbers of a cold one, to the bit, when at least
  ``_EXACT_TOKENS`` of its tokens are evaluated; where it would be fewer, some are evaluated again.
- What still depends on the cache, in the last bits, and so now and then in the text: turns of a chat that were
  generated here are kept as generated, one token at a time, while a cold prompt reads them at once; and a prompt whose
  length is just above a multiple of 512 tokens. Without ``prefix_cache`` nothing depends on what was asked before.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rb_dspy.backbones.ending import leave_native_threads
from rb_dspy.backbones.stop import stop_all, watch
from rb_dspy.backbones.worker import Worker
from rb_dspy.errors import MissingDependency, ModelFileError

_MAGIC = b"GGUF"
_SHORTEST = {"messages": [{"role": "user", "content": "."}], "max_tokens": 1, "stream": True}
_SPINS = "300"
"""Of GNU's OpenMP: some microseconds."""
_SAVED_PROMPTS_MIB = 512
"""Memory for prompts that lost their slot; they come back without being evaluated again."""
_SIMILARITY = 0.1
"""Least share of a prompt that a slot must hold already to be chosen for it; else the slot that is idle longest."""
_EXACT_TOKENS = 8
"""Fewer prompt tokens than this, evaluated at once, give other last bits than many do."""
_REWIND_CHARS = 60
"""How much is cut off a prompt, in characters, to make its slot forget at least that many tokens."""
_SOCKET_PATH_LIMIT = 100


class RequestRefused(Exception):
    """The runtime's own word on a request that it did not answer: ``kind``, and a message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Answer:
    """What the model said: text, ``"stop"`` or ``"length"``, and llama.cpp's own counts."""

    text: str = ""
    finish: str = "stop"
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """What makes two engines share one loaded model. ``context`` is in tokens, for each of ``slots`` warm prompts."""

    path: Path
    context: int
    slots: int
    threads: int


def check_installed() -> None:
    """Raise ``MissingDependency`` where the runtime is not installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise MissingDependency("the embedded engine needs xllamacpp: `pip install rb-dspy[local]`")


class Runtime:
    """One loaded model. Its single thread loads, answers and unloads, so requests queue in the order they came."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.computing = False
        """Whether llama.cpp may be at work: a request that was ended early is not over before its batch is."""
        self._server: Any = None
        self._was_asked = False
        """Whether the server has answered anything."""
        self._worker = Worker("rb-dspy-llama")

    def load(self) -> None:
        """Load the model, unless it is loaded. Raises ``ModelFileError``."""
        self._worker.submit(self._loaded).result()

    def submit(self, body: Mapping[str, Any]) -> Future[Answer]:
        """Queue a request. The future raises ``RequestRefused``.

        When the work at hand is given up (see ``stop``) the request is refused, at its next token if it has begun, at
        the latest when 512 more tokens of its prompt are read.
        """
        return self._worker.submit(self._answer, dict(body), watch())

    def unload(self) -> Future[None]:
        """Free the model when the requests before this call have been answered; a later one loads it again."""
        return self._worker.submit(self._drop)

    def _drop(self) -> None:
        if self.perhaps_begins:
            # A server that is told to end before its loop has begun never ends; who is answered knows that it has.
            with self._worker.in_native_code():
                self._server.handle_chat_completions(json.dumps(_SHORTEST), lambda _: False)
        self._server = None
        self._was_asked = self.computing = False

    @property
    def perhaps_begins(self) -> bool:
        """Whether it is loaded, and its loop may not have begun: nobody has been answered yet."""
        return self._server is not None and not self._was_asked

    def _loaded(self) -> Any:
        if self._server is None:
            self.computing = True
            try:
                self._server = _start(self._load, self._worker)
            finally:
                self.computing = False
        return self._server

    def _answer(self, body: dict[str, Any], stop: Callable[[], bool]) -> Answer:
        answer = self._run(body, stop, exact=True)
        if answer is None:  # asked before, as far as the last few tokens
            self._run(_shortened(body), stop)
            answer = self._run(body, stop, exact=True)
        return answer or self._run({**body, "cache_prompt": False}, stop) or Answer()

    def _run(self, body: Mapping[str, Any], stop: Callable[[], bool], *, exact: bool = False) -> Answer | None:
        """One request. None, at once, where ``exact`` is asked for and too few tokens would be evaluated."""
        answer = Answer()
        refused: list[dict[str, Any]] = []
        warm = False

        def collect(chunk: str) -> bool:
            nonlocal warm
            event = json.loads(chunk)
            if "choices" not in event:
                refused.append(event.get("error", event))
                return True
            progress = event.get("prompt_progress")
            if exact and progress and 0 < progress["cache"] > progress["total"] - _EXACT_TOKENS:
                warm = True
                return True
            _add(answer, event)
            return stop()

        if not stop():
            server = self._loaded()  # which takes seconds: whoever asked may be gone by then
            if not stop():
                self.computing = True
                with self._worker.in_native_code():
                    server.handle_chat_completions(json.dumps({**body, "return_progress": True}), collect)
                self._was_asked = self._was_asked or not refused  # what is refused may not have come to its loop
        if stop():  # a part of an answer must not be taken, and cached, for the whole
            raise RequestRefused("stopped", "stopped: the work that this belonged to was given up")
        self.computing = warm
        if refused:
            raise RequestRefused(str(refused[0].get("type", "")), str(refused[0].get("message", refused[0])))
        return None if warm else answer


def _shortened(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose prompt is the beginning of ``body``'s, and whose answer does not matter."""
    *before, last = body["messages"]
    return {
        "messages": [*before, {**last, "content": last["content"][:-_REWIND_CHARS]}],
        "max_tokens": 1,
        "stream": True,
        "cache_prompt": True,
    }


def _add(answer: Answer, event: dict[str, Any]) -> None:
    for choice in event["choices"]:
        answer.text += choice.get("delta", {}).get("content") or ""
        answer.finish = choice.get("finish_reason") or answer.finish
        answer.logprobs += (choice.get("logprobs") or {}).get("content") or []
    answer.usage = event.get("usage") or answer.usage
    answer.timings = event.get("timings") or answer.timings


def _start(load: Load, worker: Worker) -> Any:
    _check_file(load.path)
    _let_threads_sleep()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(load.path)
    params.n_parallel = load.slots
    params.n_ctx = load.context * load.slots
    params.n_batch = params.n_ubatch  # nothing is faster with more, and a request can be ended only between two batches
    params.kv_unified = False  # else a slot's window, and its numbers, would depend on what the others hold
    params.cpuparams.n_threads = load.threads
    params.cpuparams_batch.n_threads = load.threads
    params.no_extra_bufts = True
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_ram_mib = _SAVED_PROMPTS_MIB
    params.slot_prompt_similarity = _SIMILARITY
    params.fit_params = False
    params.warmup = False
    params.verbosity = -1
    params.endpoint_slots = False
    params.ui = False
    params.n_threads_http = 1
    # The library always opens an HTTP server too. It gets a key that nobody knows, no other origin, and a socket file
    # that is deleted at once, so that nothing can connect.
    params.api_keys = [secrets.token_hex(32)]
    params.cors_origins = "null"
    params.cors_credentials = False
    folder = tempfile.mkdtemp(prefix="rb-dspy-")
    remove = weakref.finalize(worker, shutil.rmtree, folder, ignore_errors=True)  # also when Python ends meanwhile
    try:
        socket = os.path.join(folder, "s.sock")
        if os.name == "posix" and len(socket) < _SOCKET_PATH_LIMIT:
            params.hostnames = [socket]
        with worker.in_native_code():
            return xllamacpp.Server(params)
    except RuntimeError as error:
        raise ModelFileError(
            f"{load.path} cannot be loaded with {load.slots} slots of {load.context:,} tokens: it is damaged, of a kind"
            " this llama.cpp does not know, or memory is short; fetch it again, or lower context or slots"
        ) from error
    finally:
        remove()


def _let_threads_sleep() -> None:
    """How long the engine's OpenMP threads spin while they wait for each other, unless that is set already.

    Those that spin on take the core away from the one that they wait for: on a busy machine that means 1 token a
    second. Those that sleep at once are woken some hundred times a token: on a quiet one that takes longer than
    computing a small model. The library reads the variables once, when it is imported. (Measured by
    ``experiments/local_speed``.)
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise MissingDependency(f"{path}: {error.strerror}; expected a .gguf model file") from error
    if magic != _MAGIC:
        raise ModelFileError(f"{path} is not a GGUF file (it starts with {magic!r}); give the path of a model file")


_pool: dict[tuple[int, Load], Runtime] = {}
_pool_lock = threading.Lock()


def shared(load: Load) -> Runtime:
    """This process's runtime for ``load``; made, but not loaded, at the first call."""
    # The process id is part of the key because a forked child inherits the model but not the threads that run it.
    with _pool_lock:
        key = os.getpid(), load
        if key not in _pool:
            _pool[key] = Runtime(load)
        return _pool[key]


def _unload_all() -> None:
    """Begin to free what is loaded and, unless there is no other way, not at work: that would wait for its batch."""
    stop_all()
    for (process, _), runtime in list(_pool.items()):
        busy = runtime.computing or runtime.perhaps_begins
        if process == os.getpid() and not (busy and leave_native_threads()):
            runtime.unload()


atexit.register(_unload_all)
