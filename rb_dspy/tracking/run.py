"""One run in MLflow: what can be put into it. Nothing here raises; see ``guard``."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Literal

from rb_dspy.errors import describe_error
from rb_dspy.stream import TaskStream
from rb_dspy.tracking.data import dataset_input
from rb_dspy.tracking.guard import Guard
from rb_dspy.tracking.hidden import Hidden
from rb_dspy.tracking.where import Place, load_mlflow

Kind = Literal["stream", "compile", "candidate", "evaluation", "cell", "model"]
KIND = "rb.kind"
"""The tag that tells what a run is of."""
SOURCE = f"rb_dspy {installed('rb-dspy')}"
"""What made a run or a model. MLflow would name the file that was started, by its path."""

_PARAMS_AT_ONCE = 100
_METRICS_AT_ONCE = 1000
"""What MLflow takes in one request."""
_WAIT_SECONDS = 10.0
"""How long metrics wait for others."""
_VALUE_LIMIT = 2000
"""Characters of a parameter or a tag; MLflow refuses more than 6,000 and 8,000."""


class Run:
    """A run that is under way, in MLflow; ``id`` is empty where it could not be made."""

    def __init__(self, place: Place, guard: Guard, id: str, hidden: Hidden | None = None) -> None:
        self.place = place
        self.guard = guard
        self.id = id
        self.hidden = hidden or Hidden()
        """What errors are passed through: they may quote the address that did not answer."""
        self._tables: list[dict[str, str]] = []
        self._waiting: list[Any] = []
        self._written = 0.0

    @classmethod
    def begun(
        cls, place: Place, guard: Guard, name: str, kind: Kind, *, parent: str = "", hidden: Hidden | None = None
    ) -> Run:
        """A new run, below ``parent`` where one is given."""
        tags = {KIND: kind, "mlflow.source.name": SOURCE, "mlflow.source.type": "LOCAL"}
        if parent:
            tags["mlflow.parentRunId"] = parent
        made = guard("beginning a run", place.client.create_run, place.experiment_id, tags=tags, run_name=name)
        return cls(place, guard, made.info.run_id if made is not None else "", hidden)

    def child(self, name: str, kind: Kind) -> Run:
        """A new run below this one."""
        return Run.begun(self.place, self.guard, name, kind, parent=self.id, hidden=self.hidden)

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; those that are None are left out."""
        entities = load_mlflow().entities
        params = [entities.Param(name, _text(value)) for name, value in values.items() if value is not None]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            page = params[start : start + _PARAMS_AT_ONCE]
            self.call("logging parameters", self.place.client.log_batch, self.id, params=page)

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags; those that are None are left out."""
        entities = load_mlflow().entities
        tags = [entities.RunTag(name, _text(value)) for name, value in values.items() if value is not None]
        self.call("setting tags", self.place.client.log_batch, self.id, tags=tags)

    def rename(self, name: str) -> None:
        """Call the run ``name`` from now on."""
        self.call("renaming the run", self.place.client.update_run, self.id, name=name)

    def describe(self, text: str) -> None:
        """Say in Markdown what this run is and what came of it, on its page."""
        tag = load_mlflow().entities.RunTag("mlflow.note.content", text)
        self.call("describing the run", self.place.client.log_batch, self.id, tags=[tag])

    def metrics(self, values: Mapping[str, float | None], step: int = 0, *, later: bool = False) -> None:
        """Log numbers at ``step``; those that are None, or no numbers, are left out.

        ``later``: they may wait for others, for some seconds, since each request is a transaction of its own.
        """
        entities = load_mlflow().entities
        now = int(time.time() * 1000)
        self._waiting += [
            entities.Metric(name, float(value), now, step)
            for name, value in values.items()
            if value is not None and math.isfinite(value)
        ]
        if not later or time.monotonic() - self._written > _WAIT_SECONDS:
            self._write_metrics()

    def _write_metrics(self) -> None:
        metrics, self._waiting = self._waiting, []
        self._written = time.monotonic()
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            page = metrics[start : start + _METRICS_AT_ONCE]
            self.call("logging metrics", self.place.client.log_batch, self.id, metrics=page)

    def text(self, name: str, text: str) -> None:
        """Log ``text`` as a file."""
        self.call(f"logging {name}", self.place.client.log_text, self.id, text, name)

    def table(self, name: str, columns: Mapping[str, list[Any]]) -> None:
        """Log columns of equal length as a table, which MLflow shows as one."""
        # As MLflow's own log_table writes it, which goes by way of pandas and warns of its use of it.
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        data = {"columns": list(columns), "data": rows}
        self.call(f"logging {name}", self.place.client.log_dict, self.id, data, name)
        self._tables.append({"path": name, "type": "table"})
        self.tags({"mlflow.loggedArtifacts": json.dumps(self._tables)})

    def figure(self, name: str, draw: Callable[[], Any]) -> None:
        """Log the matplotlib figure that ``draw`` makes."""

        def drawn() -> None:
            options = {"dpi": 150, "transparent": True}
            self.place.client.log_figure(self.id, draw(), name, save_kwargs=options)

        self.call(f"drawing {name}", drawn)

    def made_file(self, name: str, write: Callable[[Path], object]) -> None:
        """Log what ``write`` writes to the path that it is given."""

        def written() -> None:
            with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder:
                file = Path(folder) / Path(name).name
                write(file)
                where = str(Path(name).parent)
                self.place.client.log_artifact(self.id, str(file), None if where == "." else where)

        self.call(f"logging {name}", written)

    def dataset(self, stream: TaskStream, context: str) -> None:
        """Log the stream as an input of this run; ``context`` says what it was used for."""
        self.call(
            f"logging the stream {stream.name}",
            lambda: self.place.client.log_inputs(self.id, datasets=[dataset_input(stream, context)]),
        )

    def call(self, what: str, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call ``function`` unless there is no run to log to."""
        if self.id:
            self.guard(what, function, *args, **kwargs)

    def end(self, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED") -> None:
        """No more is logged."""
        self._write_metrics()
        self.call("ending the run", self.place.client.set_terminated, self.id, status)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the run with the block, by how the block ended."""
        try:
            yield
        except BaseException as exc:
            interrupted = not isinstance(exc, Exception)
            said = "interrupted" if interrupted else describe_error(exc)
            self.tags({"error": self.hidden(said)})
            self.end("KILLED" if interrupted else "FAILED")
            raise
        self.end()


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= _VALUE_LIMIT else f"{text[: _VALUE_LIMIT - 1]}…"
