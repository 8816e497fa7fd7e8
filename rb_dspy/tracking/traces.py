"""A trace of each task, by MLflow's callback for DSPy: without ground truth, banks, keys and passwords.

The callback belongs to the context of a tracked run; autologging, a switch for the whole process, stays as it is.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy
import mlflow
from mlflow.dspy.callback import MlflowCallback
from mlflow.tracing.config import get_config

from rb_dspy.learner import as_task
from rb_dspy.redaction import SECRET_NAME, redact
from rb_dspy.stream import TaskResult
from rb_dspy.text import summary_line
from rb_dspy.tracking.connection import RunLog

log = logging.getLogger("rb_dspy")

_HIDDEN = {"env_args", "bank", "environments", "outcome", "outcomes", "extra_headers", "headers"}
"""Keys removed from traces: ground truth (``Task.env_args``, ``Outcome``), objects that can reveal it, and headers,
which may contain API keys."""
_OUTCOME = {"reward", "success", "info"}


def hide_ground_truth(span: Any) -> None:
    """An MLflow span processor that removes ground truth, banks, headers and what ``redact`` finds from a span.

    Use it if you switch autologging on yourself: ``mlflow.tracing.configure(span_processors=[hide_ground_truth])``.
    """
    try:
        inputs, outputs = _cleaned(span.inputs), _cleaned(span.outputs)
        # autologging records the settings of language models, which may contain API keys
        secrets = [name for name in span.attributes if "headers" in name.lower() or SECRET_NAME.search(name)]
        secrets += [name for name in span.attributes if name in _HIDDEN]
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
        processors = get_config().span_processors
        if _process not in processors:
            mlflow.tracing.configure(span_processors=[*processors, _process])
        others = [each for each in dspy.settings.callbacks if not isinstance(each, MlflowCallback)]
        with dspy.context(callbacks=[*others, _Callback(self)], track_usage=True):
            yield

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
    unchecked = inspect.unwrap(end)

    def call(self: Any, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        if exception is not None:
            kind = type(type(exception).__name__, (Exception,), {})
            exception = kind(summary_line(exception)).with_traceback(exception.__traceback__)
        unchecked(self, call_id, outputs, exception)

    return call


class _Callback(MlflowCallback):
    """MLflow's own, which stores the message and the stack of every exception; here without keys.

    Its hooks do nothing while autologging is off; unwrapped, they do not ask.
    """

    def __init__(self, traces: TaskTraces) -> None:
        super().__init__()
        self.traces = traces

    on_module_start = inspect.unwrap(MlflowCallback.on_module_start)
    on_module_end = _without_keys(MlflowCallback.on_module_end)
    on_lm_start = inspect.unwrap(MlflowCallback.on_lm_start)
    on_lm_end = _without_keys(MlflowCallback.on_lm_end)
    on_adapter_format_start = inspect.unwrap(MlflowCallback.on_adapter_format_start)
    on_adapter_format_end = _without_keys(MlflowCallback.on_adapter_format_end)
    on_adapter_parse_start = inspect.unwrap(MlflowCallback.on_adapter_parse_start)
    on_adapter_parse_end = _without_keys(MlflowCallback.on_adapter_parse_end)
    on_tool_start = inspect.unwrap(MlflowCallback.on_tool_start)
    on_tool_end = _without_keys(MlflowCallback.on_tool_end)


def _process(span: Any) -> None:
    """A span processor that does nothing outside tracked runs, so it can stay."""
    ours = next((each for each in dspy.settings.callbacks if isinstance(each, _Callback)), None)
    if ours is not None:
        hide_ground_truth(span)
        if span.parent_id is None:
            ours.traces.name_root(span)


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == _OUTCOME:
            return {}
        return {name: _cleaned(each) for name, each in value.items() if name not in _HIDDEN}
    if isinstance(value, list | tuple):
        return [_cleaned(each) for each in value if not _is_object(each)]
    return redact(value) if isinstance(value, str) else value


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
