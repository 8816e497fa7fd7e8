"""A trace for each task of a run: what was retrieved, every prompt and answer, what was judged and learned.

MLflow's own tracing of dspy is not used; where it is on, it is off inside a run. It patches dspy's optimizers for good,
changes settings of the whole process, writes every object that a step is given, banks and environments among them,
makes several traces of a task that is resumed, and costs 18 CPU-ms a call against 2 (``experiments/tracking``). This
one lives in a context, knows what the values are, and leaves what needs no span without one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from rb_dspy.backbones.usage import usage_of
from rb_dspy.errors import RBError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank, as_task
from rb_dspy.schema import RoleUsage, Task
from rb_dspy.steps import Act, Contrast, Distill, Judge, Refine, Retrieve, Select
from rb_dspy.stream import TaskResult
from rb_dspy.tracking.guard import Guard
from rb_dspy.tracking.hidden import Hidden
from rb_dspy.tracking.recording import Recorded, RecordedTrace, SpanKind, current, enter, leave
from rb_dspy.tracking.shown import coming_out, going_in, handed_in
from rb_dspy.tracking.writing import TraceWriter

_KINDS: dict[type, SpanKind] = {
    Retrieve: "RETRIEVER",
    Act: "AGENT",
    Refine: "AGENT",
    Judge: "EVALUATOR",
    Select: "EVALUATOR",
    Distill: "MEMORY",
    Contrast: "MEMORY",
}
_SAMPLING = ("temperature", "max_tokens", "rollout_id")

_predictor: ContextVar[str] = ContextVar("rb_dspy_predictor", default="")
"""Name of the predictor that asks."""

_Opened = tuple[Recorded, Token[Recorded | None]]


class Traces(BaseCallback):
    """A dspy callback that records the traces of one run.

    A trace is open from the first step of a task until ``done``, so that what is known only then is in it: the ground
    truth. It belongs to the context that the task is done in, so that several may be done side by side.
    """

    def __init__(self, writer: TraceWriter, guard: Guard, program: Any, hidden: Hidden) -> None:
        """``hidden``: what errors are passed through."""
        self._writer = writer
        self._guard = guard
        self._hidden = hidden
        self._names = {id(predict): name for name, predict in program.named_predictors()}
        self._several = isinstance(program, MaTTS) and program.config.mode != "sequential" and program.config.k > 1
        self._traces: dict[RecordedTrace, Token[Recorded | None]] = {}
        """Those that are open, in the order in which they began."""
        self._position = 0
        self._lock = threading.Lock()
        """Of the two above: tasks begin and end in any thread."""
        self._spans: dict[str, _Opened] = {}
        self._usage: dict[str, tuple[Any, RoleUsage]] = {}
        """Of calls of language models that are under way: dspy's tracker, and what it had counted before."""
        self._asking: dict[str, Token[str]] = {}
        self._calls: dict[str, RecordedTrace] = {}
        """Of the program itself, that are under way."""
        self._unsaid = 0

    @property
    def unsaid(self) -> int:
        """Tasks that the program did, and of which nobody said what came of them."""
        return self._unsaid + sum(trace.given is not None for trace in self._opened())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Trace what happens inside the block; all of it is written when the block is left."""
        # Nor another run's around this one: its tasks are not these.
        others = [
            each
            for each in dspy.settings.callbacks
            if type(each).__name__ != "MlflowCallback" and not isinstance(each, Traces)
        ]
        try:
            with dspy.context(callbacks=[*others, self]):
                yield
        finally:
            for trace in self._opened():
                self._guard("ending a trace", self._end_trace, trace, None)
            self._writer.close()

    def done(self, result: TaskResult) -> None:
        """A task is over, and so is its trace."""
        self._guard("ending a trace", self._end_task, result.task.id, result)

    # What dspy calls

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self._guard("tracing", self._module_started, call_id, instance, inputs)

    def on_module_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        self._guard("tracing", self._ended, call_id, coming_out, outputs, exception)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self._guard("tracing", self._lm_started, call_id, instance, inputs)

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        self._guard("tracing", self._ended, call_id, _said, outputs, exception)

    def _module_started(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        if isinstance(instance, ReasoningBank | MaTTS):
            self._calls[call_id] = self._begin_trace(inputs)
        elif isinstance(instance, dspy.Predict):
            # A span of its own would repeat what its language model's has; its name is what is wanted.
            self._asking[call_id] = _predictor.set(self._names.get(id(instance), type(instance).__name__))
        elif type(instance) in _KINDS:
            if self._trace() is None:  # a rollout that had waited in the bank is learned from
                self._begin_trace(inputs)
            shown = going_in(inputs)
            self._begin(call_id, self._step_name(instance, inputs, shown), _KINDS[type(instance)], shown)

    def _step_name(self, instance: Any, inputs: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
        name = type(instance).__name__.lower()
        number = next((arg for arg in inputs.get("args", ()) if type(arg) is int), None)
        if "rollout" in shown:
            number = shown["rollout"]["rollout"]
        return f"{name}, rollout {number}" if self._several and number is not None else name

    def _lm_started(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        if self._trace() is None:
            return
        model = str(instance.model)
        messages = inputs.get("messages") or [{"role": "user", "content": str(inputs.get("prompt"))}]
        span = self._begin(call_id, _predictor.get() or model, "CHAT_MODEL", {"messages": messages})
        given = {**instance.kwargs, **inputs.get("kwargs", {})}
        span.attributes = {name: given[name] for name in _SAMPLING if given.get(name) is not None}
        span.model = model
        tracker = dspy.settings.usage_tracker
        if tracker is not None:
            self._usage[call_id] = tracker, usage_of(tracker, 0.0)

    def _begin(self, call_id: str, name: str, kind: SpanKind, inputs: Any) -> Recorded:
        trace, parent = self._trace(), current()
        assert trace is not None
        assert parent is not None
        span = Recorded(name, kind, parent.id, inputs, trace=trace)
        trace.spans.append(span)
        self._spans[call_id] = span, enter(span)
        return span

    def _ended(self, call_id: str, show: Callable[[Any], Any], outputs: Any, exception: BaseException | None) -> None:
        if call_id in self._asking:
            _predictor.reset(self._asking.pop(call_id))
        if call_id in self._calls:
            trace = self._calls.pop(call_id)
            trace.given, trace.over = outputs, time.time_ns()
            if exception is not None:
                trace.broke = f"{type(exception).__name__}: {exception}"
        if call_id not in self._spans:
            return
        span, token = self._spans.pop(call_id)
        if call_id in self._usage:
            tracker, before = self._usage.pop(call_id)
            now = usage_of(tracker, 0.0)
            span.tokens = now.prompt_tokens - before.prompt_tokens, now.completion_tokens - before.completion_tokens
        if exception is not None:
            span.error = self._hidden(f"{type(exception).__name__}: {exception}")
        else:
            span.outputs = show(outputs)
        leave(span, token)

    # The trace of a task

    def _trace(self) -> RecordedTrace | None:
        """The one that is open in this context."""
        span = current()
        return span.trace if span is not None and span.trace in self._traces else None

    def _begin_trace(self, inputs: Mapping[str, Any]) -> RecordedTrace:
        given = (*inputs.get("args", ()), *inputs.get("kwargs", {}).values())
        task = next((value for value in given if isinstance(value, Task)), None)
        with self._lock:
            self._position += 1
            position = self._position
        root = Recorded(f"task {task.id}" if task is not None else f"task {position}", "TASK", None)
        if task is not None:
            root.inputs = {"task": task.instruction}
            root.attributes = {"env": task.env, "template": task.template}
        root.attributes["position"] = position
        root.trace = RecordedTrace([root], task.id if task is not None else _id_of_text(inputs))
        self._end_task(root.trace.task, None)  # if it is tried again: nobody said what came of the first time
        with self._lock:
            self._traces[root.trace] = enter(root)
        return root.trace

    def _opened(self) -> list[RecordedTrace]:
        with self._lock:
            return list(self._traces)

    def _end_task(self, id: str, result: TaskResult | None) -> None:
        """End the trace of a task, if one is open."""
        trace = next((each for each in self._opened() if each.task == id), None)
        if trace is not None:
            self._end_trace(trace, result)

    def _end_trace(self, trace: RecordedTrace, result: TaskResult | None) -> None:
        with self._lock:
            token = self._traces.pop(trace, None)
        if token is None:  # another thread has just ended it
            return
        root, trace.result = trace.root, result
        try:
            if result is not None:
                root.error = self._hidden(result.error)
                root.attributes["resumed"] = result.resumed
                root.outputs = handed_in(result.prediction) if result.prediction is not None else None
            elif trace.given is not None:
                with self._lock:
                    self._unsaid += 1
                root.outputs = handed_in(trace.given)
            else:
                root.error = self._hidden(trace.broke) or "the run ended before the task did"
        finally:  # what cannot be shown costs the rest nothing
            leave(root, token)
            if result is None and trace.over:
                root.ended = trace.over
            self._writer.put(trace)


def _id_of_text(inputs: Mapping[str, Any]) -> str:
    """The id of a task that is given as a text; empty where there is none, or none can be made of it."""
    given = inputs.get("kwargs", {}).get("task", next(iter(inputs.get("args", ())), None))
    with suppress(RBError):  # the program says so itself
        return as_task(given).id
    return ""


def _said(outputs: Any) -> dict[str, Any]:
    """What a language model answered, in the form that MLflow shows as a conversation."""
    texts = [each if isinstance(each, str) else str((each or {}).get("text", each)) for each in outputs or ()]
    return {"choices": [{"message": {"role": "assistant", "content": text}} for text in texts]}
