"""The language models of a compile: bound by role, drawn anew on request, and remembered so that it can be resumed.

A compile that was killed is resumed by running it again with the answers that it had got: every optimizer is a
function of them and of its seed. So one file of answers serves all optimizers; gepa's own checkpoint, which is a pickle
and forgets the state of its sampler, is not used. Where something else than the answers decides, such as a clock in an
environment, the prompts differ from some point on, and models are asked again from there: it costs more, no less right.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dspy
import pydantic

from rb_dspy.backbones import Backbones
from rb_dspy.backbones.errors import explain
from rb_dspy.backbones.usage import report, usage_of
from rb_dspy.compile.identity import left_out, sampling
from rb_dspy.errors import BackboneError, RBError
from rb_dspy.schema import RoleUsage

log = logging.getLogger("rb_dspy")

REFLECTION = "reflection"
"""The role of whoever proposes prompts."""

_PROBE = "Reply with the word: ready"

_APART = 100_000
"""How far the rollout ids of two draws are apart; no program has as many rollouts of a task."""


class _Entry(pydantic.BaseModel):
    """A line of the file."""

    key: str
    outputs: Any
    calls: int
    tokens: tuple[int, int]
    at: float


class Answers:
    """What language models answered, kept in a file in the order in which it came; in memory only without one.

    A prompt that is asked n times has n answers. They are found by a hash of prompt and settings, so neither is in the
    file, and no key or address counts in the hash.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raises ``RBError`` for a file that cannot be read, or mended where its last line was cut."""
        self._path = path
        self._lock = threading.Lock()
        self._kept: dict[str, deque[_Entry]] = {}
        self._earlier = 0.0
        self._started = time.monotonic()
        self._failed: RBError | None = None
        self.replayed = 0
        if path is not None:
            self._read(path)

    @property
    def seconds(self) -> float:
        """Wall seconds of the whole compile, earlier sittings included."""
        return self._earlier + time.monotonic() - self._started

    def take(self, key: str) -> _Entry | None:
        """The next answer to what ``key`` names that is not used up."""
        with self._lock:
            kept = self._kept.get(key)
            if not kept:
                return None
            self.replayed += 1
            return kept.popleft()

    def keep(self, key: str, outputs: Any, used: RoleUsage) -> None:
        """Keep an answer. What JSON has no word for is asked again by who resumes."""
        if self._path is None:
            return
        entry = {
            "key": key,
            "outputs": outputs,
            "calls": used.calls - used.cached_calls,
            "tokens": [used.prompt_tokens, used.completion_tokens],
            "at": round(self.seconds, 3),
        }
        try:
            line = json.dumps(entry)
        except (TypeError, ValueError):
            return
        with self._lock:
            self._write(self._path, f"{line}\n".encode())

    def check(self) -> None:
        """Raise what kept an answer from being kept: whoever asked may have taken it for a fault of its own."""
        if self._failed is not None:
            raise self._failed

    def _write(self, path: Path, line: bytes) -> None:
        """Append ``line`` whole, or not at all."""
        self.check()
        try:
            with path.open("ab", buffering=0) as file:
                before = file.tell()
                try:
                    while line:
                        line = line[file.write(line) :]
                except OSError:
                    with suppress(OSError):
                        file.truncate(before)
                    raise
        except OSError as exc:
            self._failed = RBError(
                f"{path}: cannot be written: {exc.strerror}; make room, and the same compile goes on from there"
            )
            raise self._failed from exc

    def _read(self, path: Path) -> None:
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as exc:
            raise RBError(f"{path}: cannot be read: {exc.strerror}; let it be read, or give another folder") from exc
        whole = raw[: raw.rfind(b"\n") + 1]  # the last line may have been cut when the process was killed
        if len(whole) < len(raw):
            try:
                os.truncate(path, len(whole))  # in one step: a crash here must cost no answer
            except OSError as exc:
                raise RBError(
                    f"{path}: cannot be written: {exc.strerror}; let it be written, and the same compile goes on from"
                    " there, or give another folder"
                ) from exc
        torn = 0
        for line in whole.splitlines():
            try:
                entry = _Entry.model_validate_json(line)
            except pydantic.ValidationError:
                torn += 1  # what it held is asked again
                continue
            self._kept.setdefault(entry.key, deque()).append(entry)
            self._earlier = max(self._earlier, entry.at)
        if torn:
            log.warning("%s: %d of its lines cannot be read; what they held is asked again", path, torn)


class Cast:
    """The language models of a compile by role, with one more for who proposes prompts."""

    def __init__(self, backbones: Backbones, answers: Answers, reflection: Any = None) -> None:
        """``reflection``: an LM, a ``BackboneConfig`` or a model's name; None: the agent's."""
        watched: dict[int, Any] = {}
        self._roles = {role: watched.setdefault(id(lm), _watched(lm, answers)) for role, lm in backbones.lms().items()}
        proposer = Backbones(agent=reflection).lm("agent") if reflection is not None else backbones.lm("agent")
        self._answers = answers
        self._failed: list[int] = []
        self.unreadable: list[str] = []
        """How those proposals began that could not be read."""
        self.reflection = _watched(proposer, answers, role=REFLECTION)
        self.reflection._rb_failed = self._failed
        self._drawn: dict[tuple[int, float | None], tuple[Backbones, Any]] = {}
        self._lock = threading.Lock()

    @property
    def agent(self) -> Any:
        """The agent's LM."""
        return self._roles["agent"]

    @property
    def proposals_failed(self) -> int:
        """How often the LM that proposes prompts gave no answer, or nothing but the prompt that there was."""
        return len(self._failed)

    def nothing_new(self) -> None:
        """Count a proposal that was none."""
        self._failed.append(0)

    def not_read(self, answer: str) -> None:
        """Keep how a proposal began that could not be read; it is counted as one that was none."""
        self.unreadable.append(answer)

    def check(self) -> None:
        """Raise what kept an answer from being kept, if anything did."""
        self._answers.check()

    def probe(self) -> None:
        """Ask the LM that proposes prompts for a word. Raises ``BackboneError`` where it gives none."""
        try:
            self.reflection(_PROBE)
        except RBError:
            raise
        except Exception as exc:
            why = explain(exc)
            raise BackboneError(
                f"who proposes prompts ({self.reflection.model}) does not answer: {why}; nothing was spent"
            ) from exc

    @contextmanager
    def playing(self, draw: int = 0, temperature: float | None = None) -> Iterator[None]:
        """Bind the roles inside the block.

        Another ``draw`` gives other samples of the same prompts, and the same one the same where an LM samples by
        rollout id; ``temperature`` goes before any that is configured.
        """
        with self._lock:
            if (draw, temperature) not in self._drawn:
                lms = {role: _drawn(lm, draw, temperature) for role, lm in self._roles.items()}
                self._drawn[draw, temperature] = Backbones(**lms), lms["agent"]
            backbones, agent = self._drawn[draw, temperature]
        with backbones.use(), dspy.context(lm=agent):
            yield


class _Watching:
    """Comes before an LM's class: shifts rollout ids, answers from what is kept, and keeps what is answered."""

    _rb_answers: Answers
    _rb_role: str | None = None
    _rb_failed: list[int] | None = None
    _rb_draw = 0

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        kwargs = self._rb_shifted(kwargs)
        started = time.perf_counter()
        key = _key(self, prompt, messages, kwargs)
        kept = self._rb_answers.take(key)
        tracker = None
        try:
            with dspy.track_usage() as tracker:
                if kept is None:
                    outputs = super().__call__(prompt, messages=messages, **kwargs)  # type: ignore[misc]
                    self._rb_answers.keep(key, outputs, usage_of(tracker, 0.0))
                else:
                    outputs = kept.outputs
                    if kept.calls:  # what it cost then is part of what the compile cost
                        used = dict(zip(("prompt_tokens", "completion_tokens"), kept.tokens, strict=True))
                        tracker.add_usage(self.model, used)  # type: ignore[attr-defined]
        except Exception:
            tracker = None  # a call that failed came from no cache
            if self._rb_failed is not None:
                self._rb_failed.append(1)
            raise
        finally:
            if self._rb_role is not None:
                report(self._rb_role, tracker, time.perf_counter() - started)
        return outputs

    def _rb_shifted(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        fixed = self.kwargs  # type: ignore[attr-defined]
        if not self._rb_draw or kwargs.get("temperature", fixed.get("temperature")) == 0:
            return kwargs  # at temperature 0 there is one sample, and dspy warns
        rollout = kwargs.get("rollout_id", fixed.get("rollout_id")) or 0
        return {**kwargs, "rollout_id": rollout + self._rb_draw * _APART if isinstance(rollout, int) else rollout}


def _watched(lm: Any, answers: Answers, role: str | None = None) -> Any:
    watched = lm.copy()
    watched.__class__ = _watching(type(lm))
    watched._rb_answers = answers
    watched._rb_role = role
    return watched


def _drawn(lm: Any, draw: int, temperature: float | None) -> Any:
    if not draw and temperature is None:
        return lm
    drawn = lm.copy() if temperature is None else lm.copy(temperature=temperature)
    drawn._rb_draw = draw
    return drawn


def _watching(kind: type) -> type:
    return type(kind.__name__, (_Watching, kind), {"__deepcopy__": lambda self, memo: self})


def _key(lm: Any, prompt: Any, messages: Any, kwargs: Mapping[str, Any]) -> str:
    """A hash of everything that decides an answer."""
    settings = {**lm.kwargs, **kwargs}
    asked = {
        "model": [lm.model, lm.model_type],
        "prompt": prompt,
        "messages": messages,
        "settings": sampling(settings) | left_out(lm),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=_named).encode()).hexdigest()


def _named(value: Any) -> str:
    """What stands for a value that JSON has no word for, such as the class of a response format."""
    said = repr(value)
    return (
        said
        if " at 0x" not in said
        else f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    )
