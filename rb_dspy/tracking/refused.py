"""What MLflow refuses, as errors of ours: on one line, and without the SQL that its database was given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rb_dspy.errors import InputError, StorageError
from rb_dspy.tracking.where import load_mlflow

_MOST = 300
"""Characters of what MLflow says."""
# SQLAlchemy's: (driver.Error) what is wrong [SQL: statement] [parameters: values] (Background on this error at: URL)
_ERROR = re.compile(r"\((?:\w+\.)+\w*(?:Error|Exception|Violation|Warning)\w*\)\s*")
_STATEMENT = re.compile(r"\s*(?:\[SQL:|\[parameters:|\(Background on this error at:).*", re.DOTALL)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """For a block that asks MLflow. Raises ``StorageError`` where its database refuses, ``InputError`` for the rest."""
    try:
        yield
    except load_mlflow().MlflowException as exc:
        text = str(exc)
        if _of_database(exc, text):
            said = _line(_STATEMENT.sub("", _ERROR.split(text)[-1]))
            raise StorageError(
                f"{what}: MLflow's database refused: {said}; see that tracking.uri can be written and that nobody locks"
                " it, then try again"
            ) from exc
        raise InputError(f"{what}: MLflow refused: {_line(text)}") from exc


def _of_database(exc: BaseException, text: str) -> bool:
    """Whether a database says so: one here, or that of a server, which hands on no more than the text."""
    return _STATEMENT.search(text) is not None or type(exc.__cause__).__module__.startswith("sqlalchemy.")


def _line(text: str) -> str:
    return " ".join(text.split())[:_MOST]
