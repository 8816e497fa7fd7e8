"""A trace of each task: MLflow's autologging of DSPy, without ground truth and without banks.

Autologging and span processors are global to the process. They are on while at least one tracked run traces; then the
previous state is restored. MLflow's wrappers around optimizers cannot be removed, but do nothing then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import dspy
import mlflow
from mlflow.dspy.callback import MlflowCallback
from mlflow.tracing.config import get_config
from mlflow.utils.autologging_utils import autologging_is_disabled

from rb_dspy.program import as_task
from rb_dspy.redaction import SECRET_NAME
from rb_dspy.stream import TaskResult
from rb_dspy.text import summary_line
from rb_dspy.tracking.connection import RunLog

log = logging.getLogger("rb_dspy")

_HIDDEN = {"env_args", "bank", "environments", "outcome", "outcomes", "extra_headers", "headers"}
"""Keys removed from traces: ground truth (``Task.env_args``, ``Outcome``), objects that can reveal it, and headers,
which may contain API keys."""
_OUTCOME = {"reward", "success", "info"}
_current: ContextVar[TaskTraces | None] = ContextVar("rb_dspy_traces", default=None)


def hide_ground_truth(span: Any) -> None:
    """An MLflow span processor that removes ground truth, banks and headers from a span.

    Use it if you switch autologging on yourself: ``mlflow.tracing.configure(span_processors=[hide_ground_truth])``.
    """
    try:
        inputs, outputs = _cleaned(span.inputs), _cleaned(span.outputs)
        secrets = [name for name in span.attributes if name in _HIDDEN or _is_secret(name)]
    except Exception:  # MLflow would store the span as it is
        inputs = outputs = {"hidden": "could not be read"}
        secrets = []
        log.warning("MLflow: a span could not be read, and is stored empty", exc_info=True)
    span.set_inputs(inputs)
    span.set_outputs(outputs)
    span.set_attributes(dict.fromkeys(secrets, "hidden"))


class TaskTraces:
    """The traces of one tracked stream: each belongs to the run, to the stream's session, and to a task."""

    def __init__(self, run: RunLog, session: str) -> None:
        self._run = run
        self._session = session
        self._ids: dict[str, str] = {}

    @contextmanager
    def record(self) -> Iterator[None]:
        """Trace what DSPy does inside the block, in this context."""
        with _autologging():
            token = _current.set(self)
            try:
                yield
            finally:
                _current.reset(token)

    def name_root(self, span: Any) -> None:
        """Tag a trace with its task, and shorten its root span."""
        inputs, outputs = span.inputs, span.outputs
        task = _task_in(inputs)
        tags = {}
        if task:
            tags = {"rb.task": task["id"], "mlflow.traceName": f"task {task['id']}"}
            self._ids[task["id"]] = span.trace_id
            if "task" in inputs:  # a program; its steps record the rest
                span.set_inputs({"messages": [{"role": "user", "content": task["instruction"]}]})
                if isinstance(outputs, Mapping) and "trajectory" in outputs:
                    span.set_outputs(_in_short(outputs))
        metadata = {"mlflow.sourceRun": self._run.id}
        mlflow.update_current_trace(tags=tags, metadata=metadata, session_id=self._session)

    def log_results(self, results: Iterable[TaskResult]) -> None:
        """Add to the trace of each task whether it was solved. Waits until the traces are stored."""
        self._run.write(lambda run_id: mlflow.flush_trace_async_logging())
        for result in results:
            trace = self._ids.get(result.task.id)
            if trace is not None and result.solved is not None:
                feedback = {"trace_id": trace, "name": "solved", "value": result.solved}
                self._run.write(lambda run_id, feedback=feedback: mlflow.log_feedback(**feedback))


def _without_keys(end: Callable[..., None]) -> Callable[..., None]:
    """A hook of MLflow that gets, instead of an exception, one of the same name and place without keys and causes."""

    def call(self: Any, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        if exception is not None:
            kind = type(type(exception).__name__, (Exception,), {})
            exception = kind(summary_line(exception)).with_traceback(exception.__traceback__)
        end(self, call_id, outputs, exception)

    return call


class _Callback(MlflowCallback):
    """MLflow's own, which stores the message and the stack of every exception; here without keys."""

    on_module_end = _without_keys(MlflowCallback.on_module_end)
    on_lm_end = _without_keys(MlflowCallback.on_lm_end)
    on_adapter_format_end = _without_keys(MlflowCallback.on_adapter_format_end)
    on_adapter_parse_end = _without_keys(MlflowCallback.on_adapter_parse_end)
    on_tool_end = _without_keys(MlflowCallback.on_tool_end)


class _Autologging:
    """Counts the blocks that trace at the moment, in all threads."""

    lock = threading.Lock()
    blocks = 0
    undo = ExitStack()


@contextmanager
def _autologging() -> Iterator[None]:
    state = _Autologging
    callbacks = [*(each for each in dspy.settings.callbacks if not isinstance(each, MlflowCallback)), _Callback()]
    with state.lock:
        if state.blocks == 0:
            with dspy.context(callbacks=callbacks):  # so that autologging adds no callback of its own
                state.undo = _switch_on()
        state.blocks += 1
    try:
        with dspy.context(callbacks=callbacks, track_usage=True):
            yield
    finally:
        with state.lock:
            state.blocks -= 1
            if state.blocks == 0:
                state.undo.close()


def _switch_on() -> ExitStack:
    """Switch autologging and our span processors on; closing the returned stack restores both."""
    undo = ExitStack()
    if autologging_is_disabled("dspy"):  # type: ignore[no-untyped-call]
        track_usage = dspy.settings.track_usage
        with suppress(RuntimeError):  # DSPy's settings belong to another thread; the callback in the context is enough
            mlflow.dspy.autolog(silent=True)
        undo.callback(_switch_off, track_usage)
    undo.enter_context(mlflow.tracing.configure(span_processors=[*get_config().span_processors, _process]))
    return undo


def _switch_off(track_usage: bool) -> None:
    with suppress(RuntimeError):  # DSPy's settings belong to another thread; a remaining callback records nothing
        mlflow.dspy.autolog(log_traces=False, disable=True, silent=True)
        dspy.configure(track_usage=track_usage)


def _process(span: Any) -> None:
    hide_ground_truth(span)
    traces = _current.get()
    if traces is not None and span.parent_id is None:
        traces.name_root(span)


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == _OUTCOME:
            return {}
        return {name: _cleaned(each) for name, each in value.items() if name not in _HIDDEN}
    if isinstance(value, list | tuple):
        return [_cleaned(each) for each in value if not _is_object(each)]
    return value


def _is_secret(name: str) -> bool:
    """Whether an attribute may contain API keys: autologging records the settings of language models."""
    return "headers" in name.lower() or SECRET_NAME.search(name) is not None


def _is_object(value: Any) -> bool:
    """Whether a value was stored as the text of an object, such as a bank."""
    return isinstance(value, str) and value.startswith(("MemoryBank(", "<rb_dspy."))


def _in_short(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """A program's output in short: the answer, the verdict's label and the titles of learned lessons."""
    verdict = outputs.get("verdict") or {}
    return {
        "answer": outputs.get("answer"),
        "verdict": verdict.get("label"),
        "learned": [item["title"] for item in outputs.get("memory_items") or ()],
    }


def _task_in(inputs: Any) -> dict[str, str]:
    """The task in the inputs of a program or a step; empty if there is none."""
    if not isinstance(inputs, Mapping):
        return {}
    for value in (inputs.get("task"), *(inputs.get("args") or ())):
        if isinstance(value, str) and value.strip():
            return {"id": as_task(value).id, "instruction": value}
        if isinstance(value, Mapping) and {"id", "instruction"} <= value.keys():
            return {"id": str(value["id"]), "instruction": str(value["instruction"])}
    return {}
