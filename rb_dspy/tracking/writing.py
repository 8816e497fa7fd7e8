"""Writing recorded traces to MLflow, from a thread of their own, several at once where they wait together."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from copy import copy
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from rb_dspy.tracking.guard import Guard
from rb_dspy.tracking.prices import cost
from rb_dspy.tracking.recording import Recorded, RecordedTrace
from rb_dspy.tracking.where import Place, load_mlflow

_CLOSE_SECONDS = 30.0
"""How long the end of a run waits for its traces."""
_GATHER_SECONDS = 10.0
"""How long a trace waits for others to be written with: alone it costs more than twice as much."""
_MOST = 64
"""Traces written at once."""
_PREVIEW = 500
"""Characters of what a list of traces shows of a request and of its response."""
_COST = "mlflow.llm.cost"

_Queue = SimpleQueue[RecordedTrace | None]
"""What waits for a worker; None ends it."""


class TraceWriter:
    """Takes traces at once and writes them when it can. ``metadata`` is that of all of them."""

    def __init__(self, place: Place, guard: Guard, metadata: Mapping[str, str]) -> None:
        self._place = place
        self._guard = guard
        self._metadata = metadata
        self._worker: tuple[Thread, _Queue] | None = None
        self._lock = Lock()

    def put(self, trace: RecordedTrace) -> None:
        """Write ``trace`` soon. From any thread."""
        with self._lock:  # of two workers at one queue the one that is not told to end would be waited for
            if self._worker is None:
                queue = _Queue()
                thread = Thread(target=self._work, args=(queue,), name="rb-dspy-traces", daemon=True)
                thread.start()
                self._worker = thread, queue
            self._worker[1].put(trace)

    def close(self) -> None:
        """Wait until all is written, but not for long: the server may be gone."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is None:
            return
        thread, queue = worker
        queue.put(None)
        thread.join(_CLOSE_SECONDS)
        if thread.is_alive():
            self._guard.warn(f"traces are not written after {_CLOSE_SECONDS:.0f} seconds")

    def _work(self, queue: _Queue) -> None:
        going_on = True
        while going_on:
            waiting = [queue.get()]
            until = time.monotonic() + _GATHER_SECONDS
            while waiting[-1] is not None and len(waiting) < _MOST:
                try:
                    waiting.append(queue.get(timeout=max(0.0, until - time.monotonic())))
                except Empty:
                    break
            going_on = waiting[-1] is not None
            traces = [trace for trace in waiting if trace is not None]
            if traces:
                self._guard("writing traces", self._write, traces)

    def _write(self, traces: list[RecordedTrace]) -> None:
        """Together; where one of several is refused, each by itself, so that it costs the others nothing."""
        load_mlflow()
        from mlflow.tracing.client import TracingClient

        store = copy(TracingClient(self._place.uri).store)
        # A store of SQL looks the experiment up again for every trace: a fifth of what writing one costs.
        store.get_experiment = cache(store.get_experiment)

        def begin(trace: RecordedTrace) -> bool:
            store.start_trace(self._information(trace))
            return True

        def add_spans(traces: list[RecordedTrace]) -> None:
            spans = [_span(trace, span, self._place.database) for trace in traces for span in trace.spans]
            store.log_spans(self._place.experiment_id, spans)

        # Before their spans: a trace that is there already is merged value by value, ten times as slowly.
        begun = [trace for trace in traces if self._guard("writing a trace", begin, trace)]
        try:
            add_spans(begun)
        except Exception:
            if len(begun) == 1:
                raise
            for trace in begun:
                self._guard("writing a trace", add_spans, [trace])

    def _information(self, trace: RecordedTrace) -> Any:
        from mlflow.entities import TraceInfo, TraceLocation, TraceState

        root = trace.root
        outputs = root.outputs or {}
        return TraceInfo(
            trace_id=_trace_id(trace),
            trace_location=TraceLocation.from_experiment_id(self._place.experiment_id),
            request_time=root.began // 1_000_000,
            execution_duration=(root.ended - root.began) // 1_000_000,
            state=TraceState.ERROR if root.error else TraceState.OK,
            request_preview=_preview((root.inputs or {}).get("task", "")),
            response_preview=_preview(root.error or outputs.get("answer") or outputs.get("verdict", "")),
            trace_metadata={"mlflow.trace_schema.version": "3", **self._metadata, **_sums(trace)},
            tags={"mlflow.traceName": root.name, "mlflow.trace.spansLocation": "TRACKING_STORE", **_no_price(trace)},
            assessments=_assessments(trace),
        )


def _trace_id(trace: RecordedTrace) -> str:
    return f"tr-{trace.id:032x}"


def _sums(trace: RecordedTrace) -> dict[str, str]:
    """Tokens and money of the whole trace, summed as MLflow sums: it would else read all spans again to do so.

    Money only of what has a known price; none, rather than 0, where nothing has. MLflow would sum the calls that have
    one all the same, so where others have none a tag names their models: see ``_no_price``.
    """
    calls = [(span.model, *span.tokens) for span in trace.spans if span.tokens is not None]
    into, out = sum(call[1] for call in calls), sum(call[2] for call in calls)
    if not (into or out):
        return {}
    found = {"mlflow.trace.tokenUsage": _json(_usage(into, out))}
    prices = [price for call in calls if (price := cost(*call)) is not None]
    if prices:
        found["mlflow.trace.cost"] = _json(_money(sum(price[0] for price in prices), sum(price[1] for price in prices)))
    return found


def _no_price(trace: RecordedTrace) -> dict[str, str]:
    """The models whose calls are not in the money of the trace, as a tag."""
    asked = dict.fromkeys(span.model for span in trace.spans if span.tokens is not None and any(span.tokens))
    unknown = [model for model in asked if cost(model, 0, 0) is None]
    return {"rb.no_price": ", ".join(unknown)} if unknown else {}


def _usage(into: int, out: int) -> dict[str, int]:
    return {"input_tokens": into, "output_tokens": out, "total_tokens": into + out}


def _money(into: float, out: float) -> dict[str, float]:
    return {"input_cost": into, "output_cost": out, "total_cost": into + out}


def _assessments(trace: RecordedTrace) -> list[Any]:
    """What the environment and the judge say of the task, as MLflow's feedback."""
    from mlflow.entities import AssessmentSource, Feedback

    found: list[Any] = []
    result = trace.result
    if result is not None and result.outcome is not None:
        source = AssessmentSource(source_type="CODE", source_id="environment")
        metadata = {"reward": str(result.outcome.reward)}
        found.append(Feedback(name="solved", value=result.outcome.success, source=source, metadata=metadata))
    verdict = result.prediction.verdict if result is not None and result.prediction is not None else None
    if verdict is not None:
        source = AssessmentSource(source_type="LLM_JUDGE", source_id="judge")
        found.append(Feedback(name="verdict", value=verdict.label, source=source, rationale=verdict.reasons or None))
    return found


def _span(trace: RecordedTrace, span: Recorded, database: bool) -> Any:
    from mlflow.entities import Span
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(id: int) -> Any:
        return SpanContext(trace.id, id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    attributes = {name: _json(value) for name, value in _attributes(trace, span).items() if value is not None}
    if database and span.tokens is not None and _COST not in attributes:
        # Else MLflow would import litellm, for seconds, to look for a price. To a database no text at all is no price;
        # an empty object would be a price of 0, and to a server no text is an error. That looks by itself, as for every
        # client.
        attributes[_COST] = ""
    events = []
    if span.error:
        events.append(Event("exception", {"exception.message": span.error}, span.ended or span.began))
    return Span(
        ReadableSpan(
            name=span.name,
            context=context(span.id),
            parent=context(span.parent) if span.parent is not None else None,
            resource=Resource.get_empty(),
            attributes=attributes,
            events=events,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
            start_time=span.began,
            end_time=span.ended or time.time_ns(),
        )
    )


def _attributes(trace: RecordedTrace, span: Recorded) -> dict[str, Any]:
    found = {
        "mlflow.traceRequestId": _trace_id(trace),
        "mlflow.spanType": span.kind,
        "mlflow.spanInputs": span.inputs,
        "mlflow.spanOutputs": span.outputs,
        **span.attributes,
    }
    if span.model:
        found |= {"mlflow.llm.model": span.model, "mlflow.llm.provider": span.model.partition("/")[0]}
    if span.tokens is not None:
        into, out = span.tokens
        found["mlflow.chat.tokenUsage"] = _usage(into, out)
        price = cost(span.model, into, out)
        found[_COST] = _money(*price) if price is not None else None
    return found


def _json(value: Any) -> str:
    return _storable(json.dumps(value, ensure_ascii=False, default=str))


def _storable(text: str) -> str:
    """``text`` with ``?`` for half characters, which a language model's tokens may end in and no database takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _preview(text: Any) -> str:
    text = _storable(str(text))
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…"
