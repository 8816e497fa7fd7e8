"""One LM call as every step makes it: bound to a role, sampled as configured, metered, repaired once, errors sorted.

Steps are written as generators that yield what they want done (an ``Ask``, a ``Do``, or what ``wanted`` has) and get
the result back; ``drive`` and ``adrive`` run them, so the logic of a step stands once for sync and async.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from typing import Any, Protocol, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from rb_dspy.backbones import Meter, adapter_for, report
from rb_dspy.backbones.chat import ChatAdapter
from rb_dspy.backbones.cut import CUT_OFF, Cut, is_closed, is_marked, settings_for
from rb_dspy.backbones.repair import RepairAdapter
from rb_dspy.backbones.stop import watch
from rb_dspy.backbones.trouble import MOST_SAID, complaint, meaning
from rb_dspy.backbones.worker import wait_for
from rb_dspy.errors import BackboneError, InfrastructureError, RBError, UnparseableOutput
from rb_dspy.steps.player import asks, pinned, player, sampling, takes_more
from rb_dspy.steps.threads import Lane, submit
from rb_dspy.wording import one_line

log = logging.getLogger("rb_dspy")

T = TypeVar("T")


class ContextOverflow(InfrastructureError):
    """The prompt does not fit the LM's context window; the step that asked may shorten it."""


class NoText(InfrastructureError):
    """A language model was asked twice and gave no text: its server is ill, or its budget went into thinking."""


class Stopped(InfrastructureError):
    """Whoever wanted this work has given up on it."""


class Overdue(InfrastructureError):
    """An environment has not come back in the time that it is given (``ActConfig.step_seconds``)."""


_GRACE = 5.0
"""Seconds that an environment is given to come back, and to close, once a Ctrl-C has ended the waiting for it."""

_ERRORS = {"fatal": BackboneError, "overflow": ContextOverflow, "passing": InfrastructureError}
"""By what ``meaning`` says."""


class Wanted(Protocol):
    """Something that a routine wants done."""

    def run(self) -> Any:
        """The result."""
        ...

    async def arun(self) -> Any:
        """``run`` for asyncio."""
        ...


@dataclass(frozen=True)
class Ask:
    """Wanted: one call of ``predict``, a ``dspy.Predict``, by the LM of ``role``."""

    role: str
    predict: Any
    inputs: Mapping[str, Any]
    temperature: float
    max_tokens: int
    rollout: int = 0
    """Sample number, 0 for the first. Two calls equal but for it are different samples, unless the temperature is 0:
    it is part of dspy's cache key, and becomes the seed of a local model that has none of its own.
    """

    def run(self) -> Any:
        """The prediction.

        Raises ``UnparseableOutput``, ``ContextOverflow``, ``InfrastructureError`` or ``BackboneError``.
        """
        lm = self.lm()
        with called(f"{self.role} ({lm.model})"), self._bound(lm) as call:
            try:
                return call.whole(self.predict(**call.inputs), self.predict)
            except AdapterParseError as exc:
                with call.repair(exc):
                    return self.predict(**call.inputs)

    async def arun(self) -> Any:
        """``run`` for asyncio."""
        lm = self.lm()
        with awaited(f"{self.role} ({lm.model})"), self._bound(lm) as call:
            try:
                return call.whole(await self.predict.acall(**call.inputs), self.predict)
            except AdapterParseError as exc:
                with call.repair(exc):
                    return await self.predict.acall(**call.inputs)

    def lm(self) -> Any:
        """The LM that will answer."""
        return player(self.role, self.predict)

    def _bound(self, lm: Any) -> AbstractContextManager[_Call]:
        config = sampling(lm, self.predict, self.temperature, self.max_tokens, self.rollout, role=self.role)
        if takes_more(self.predict):
            cut = Cut()
            bound = settings_for(lm, cut)
            # Said in the call, since dspy would ask an LM that is pinned first; else by the context, as dspy does.
            given = {"config": config} if pinned(self.predict) is None else {"config": config, "lm": bound["lm"]}
            return _bound(self.role, bound, {**self.inputs, **given}, cut)
        return _bound(self.role, {"lm": lm.copy(**config)}, self.inputs)


@dataclass(frozen=True)
class Do:
    """Wanted: the result of a function that may block, such as a step of an environment or a look into the bank."""

    what: str
    function: Callable[[], Any]
    lane: Lane | None = None
    """The thread for it under asyncio; None: any. One whose jobs have a time limit is so without asyncio, too."""

    def run(self) -> Any:
        """The function's result; anything it raises that is not ours becomes an ``InfrastructureError``.

        ``Overdue`` where it is not there in the time of its lane, now and after.
        """
        if self.lane is None or self.lane.seconds is None:
            return self._called()
        job = self._submitted(self.lane)
        try:
            in_time = wait_for([job], self.lane.seconds)
        except BaseException:
            if not job.done():  # a Ctrl-C, which ends the waiting and not the job
                self.lane.hurry(_GRACE)
            raise
        if not in_time:
            raise self._overdue(self.lane)
        return job.result()

    async def arun(self) -> Any:
        """``run`` in a thread that keeps this context. When cancelled, waits for it: nothing may be closed under it."""
        if self.lane is not None and self.lane.seconds is not None:
            return await self._in_time(self.lane, self.lane.seconds)
        if self.lane is not None and self.lane.here:
            await asyncio.sleep(0)  # else an agent that waits for nothing would let nobody else in for a whole rollout
            return self.run()
        job = asyncio.wrap_future((submit if self.lane is None else self.lane.submit)(self._called))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            while not job.done():  # cancelled once more, it waits all the same
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([job])
            if job.exception() is None:
                never_awaited(job.result())
            raise

    async def _in_time(self, lane: Lane, seconds: float) -> Any:
        """``arun`` in a lane that has a time limit; it holds for who is cancelled, too."""
        job = asyncio.wrap_future(self._submitted(lane))
        end = time.monotonic() + seconds
        given_up: asyncio.CancelledError | None = None
        while not job.done() and time.monotonic() < end:
            try:
                await asyncio.wait([job], timeout=end - time.monotonic())
            except asyncio.CancelledError as exc:
                given_up = exc
        if not job.done():
            job.cancel()  # only that which waits: the thread goes on
            overdue = self._overdue(lane)
            raise given_up or overdue
        if given_up is not None:
            if job.exception() is None:
                never_awaited(job.result())
            raise given_up
        return job.result()

    def _called(self) -> Any:
        with called(self.what):
            return self.function()

    def _submitted(self, lane: Lane) -> Future[Any]:
        if lane.lost:
            raise Overdue(f"{self.what} was not begun: an earlier call of the same environment has not come back")
        return lane.submit(self._called)

    def _overdue(self, lane: Lane) -> Overdue:
        late = f"{self.what} took more than {lane.seconds:g} s (act.step_seconds)"
        log.warning("%s; the thread %r waits for it on its own", late, lane.lose())
        return Overdue(late)


def never_awaited(given: object) -> None:
    """Close ``given`` if it is a coroutine: nobody will await it, and Python would warn of that."""
    if iscoroutine(given):
        given.close()


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Anything raised inside the block that is not ours becomes an ``InfrastructureError``: ``what`` broke."""
    try:
        yield
    except RBError:
        raise
    except Exception as exc:
        raise _broken(what, exc) from exc


@contextmanager
def called(what: str) -> Iterator[None]:
    """``translated``, also of a cancel: it is of an event loop of the function's own; none of ours waits inside."""
    try:
        with translated(what):
            yield
    except asyncio.CancelledError as exc:
        raise _broken(what, exc) from exc


@contextmanager
def awaited(what: str) -> Iterator[None]:
    """``translated``, also of a cancel that nobody asked for. Passed on, it would end the caller as if somebody had,
    and task groups and streams would go on without a word of it.
    """
    try:
        with translated(what):
            yield
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _broken(what, exc) from exc


def _broken(what: str, exc: BaseException) -> InfrastructureError:
    return InfrastructureError(f"{what} broke: {one_line(exc, MOST_SAID, kind=True)}")


Routine = Generator[Wanted, Any, T]
"""The logic of a step: yields what it wants done, returns the step's result."""


def drive(routine: Routine[T]) -> T:
    """Run a step to its end; or to its next ``Wanted`` once it has been given up (see ``stop``)."""
    stopped = watch()
    go_on: Callable[[], Wanted] = partial(next, routine)
    try:
        while True:
            try:
                wanted = go_on()
            except StopIteration as stop:  # here only: one that somebody's code raises is no end of ours
                value: T = stop.value
                return value
            if stopped():
                raise Stopped("stopped: the work that this belonged to was given up")
            try:
                result = wanted.run()
            except RBError as exc:
                go_on = partial(routine.throw, exc)
            else:
                go_on = partial(routine.send, result)
    finally:
        routine.close()  # at once, also when interrupted: it may hold an environment open


async def adrive(routine: Routine[T]) -> T:
    """Run a step to its end without blocking the event loop; cancelled, until it has closed what it holds open."""
    try:
        wanted = next(routine)
        while True:
            try:
                result = await wanted.arun()
            except (RBError, asyncio.CancelledError) as exc:  # the second: what the routine holds open takes steps, too
                wanted = routine.throw(exc)
            else:
                wanted = routine.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        routine.close()


@dataclass
class _Call:
    role: str
    inputs: Mapping[str, Any]
    adapter: Any
    cut: Cut | None = None
    attempts: int = 1

    def whole(self, said: Any, predict: Any) -> Any:
        """``said``, by ``predict``, unless an adapter of the caller's took what was cut off for whole; ours do not."""
        latest = self.cut.latest if self.cut and not isinstance(self.adapter, ChatAdapter | RepairAdapter) else []
        for text in latest:
            if not is_marked(text) and not is_closed(text):
                raise AdapterParseError(type(self.adapter).__name__, asks(predict).signature, text, CUT_OFF)
        return said

    @contextmanager
    def repair(self, first: AdapterParseError) -> Iterator[None]:
        """The one repair: ask again in another output format, which also makes it another prompt for every cache."""
        self.attempts += 1
        try:
            with dspy.context(adapter=_CHAT if isinstance(self.adapter, dspy.JSONAdapter) else _JSON):
                yield
        except AdapterParseError as exc:
            if _blank(first) and _blank(exc):  # of a server that is ill, or a budget spent on thinking: no answer
                raise NoText(
                    f"the {self.role}'s language model gave no text, twice; see whether it is well (rb-dspy backbones"
                    " check), or raise its max_tokens"
                ) from exc
            raise UnparseableOutput(
                f"the {self.role}'s answer could not be read, nor its repair: {one_line(first, MOST_SAID)}"
            ) from exc


def _blank(exc: AdapterParseError) -> bool:
    """Whether there was no text; dspy has no kind for it, only these words."""
    return not str(exc.lm_response or "").strip() or str(exc).startswith("The LM returned an empty or null response")


_CHAT, _JSON = ChatAdapter(), RepairAdapter()


@contextmanager
def _bound(
    role: str, settings: Mapping[str, Any], inputs: Mapping[str, Any], cut: Cut | None = None
) -> Iterator[_Call]:
    """Bind the LM in ``settings``, which are dspy's, meter the call, and turn dspy's errors into ours."""
    lm = settings["lm"]
    meter = Meter(outer=dspy.settings.usage_tracker)
    call = _Call(role, inputs, adapter_for(lm), cut)
    started = time.perf_counter()
    unanswered, unreadable = 1, False
    try:
        with dspy.context(**settings, adapter=call.adapter, usage_tracker=meter):
            yield call
        unanswered = 0
    except UnparseableOutput:
        unanswered, unreadable = 0, True  # what cannot be read is an answer all the same
        raise
    except LMError as exc:
        told = f"{role} ({lm.model}): {complaint(exc, lm.model)}"
        raise _ERRORS[meaning(exc)](told) from exc
    finally:
        report(role, meter.used(call.attempts, unanswered, time.perf_counter() - started), unreadable=unreadable)
