"""What MLflow refuses, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rb_dspy.errors import InputError, StorageError
from rb_dspy.tracking.said import of_database, said
from rb_dspy.tracking.where import load_mlflow


@contextmanager
def translated(what: str) -> Iterator[None]:
    """For a block that asks MLflow. Raises ``StorageError`` where its database refuses, ``InputError`` for the rest."""
    try:
        yield
    except load_mlflow().MlflowException as exc:
        if of_database(exc):
            raise StorageError(
                f"{what}: MLflow's database refused: {said(exc)}; see that tracking.uri can be written and that nobody"
                " locks it, then try again"
            ) from exc
        raise InputError(f"{what}: MLflow refused: {said(exc)}") from exc
