"""Streams as MLflow knows data: a name, a digest, columns, and how much there is of it."""

from __future__ import annotations

import json
from typing import Any

from rb_dspy.stream import TaskStream
from rb_dspy.tracking.where import load_mlflow

_COLUMNS = ("id", "instruction", "env", "env_args", "domain", "template")


def dataset_input(stream: TaskStream, context: str) -> Any:
    """``stream`` as an input of a run. The digest is the stream's own, so equal data is seen to be equal."""
    load_mlflow()
    from mlflow.entities import Dataset, DatasetInput, InputTag

    templates = {task.template for task in stream if task.template is not None}
    dataset = Dataset(
        name=stream.name,
        digest=stream.digest,
        source_type="rb_dspy.TaskStream",
        source=json.dumps({"stream": stream.name}),
        schema=json.dumps(
            {"mlflow_colspec": [{"type": "string", "name": name, "required": True} for name in _COLUMNS]}
        ),
        profile=json.dumps({"num_rows": len(stream), "templates": len(templates)}),
    )
    return DatasetInput(dataset=dataset, tags=[InputTag(key="mlflow.data.context", value=context)])
