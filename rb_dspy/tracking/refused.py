"""What MLflow refuses, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rb_dspy.errors import InfrastructureError, InputError, RBError, StorageError
from rb_dspy.tracking.said import of_database, said
from rb_dspy.tracking.where import load_mlflow

_AWAY = (429, 503, 504)
"""What says that a server may answer another time: it has too much to do, is not there, or took too long."""
_BROKEN = 500
"""What says that a server broke. MLflow gives it to whatever it has no number for, so alone it says nothing."""
_ASKED = "API request to"
"""How MLflow begins what it says of a server that gave no answer, or none that it could read."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """For a block that asks MLflow, and runs no code of the caller's but what ``rebuilt.named`` and ``made_by`` run,
    which tell of its errors themselves. Raises ``StorageError`` where its database or the disk refuses,
    ``InfrastructureError`` where its server breaks or does not answer, and ``InputError`` for the rest."""
    mlflow = load_mlflow()
    from requests import RequestException  # which MLflow brings, and lets through where it sends or gets a file

    try:
        yield
    except mlflow.MlflowException as exc:
        if of_database(exc):
            raise StorageError(
                f"{what}: MLflow's database refused: {said(exc)}; see that tracking.uri can be written and that nobody"
                " locks it, then try again"
            ) from exc
        asked = isinstance(exc, mlflow.exceptions.RestException) or str(exc).startswith(_ASKED)
        raise _of_server(what, exc, exc.get_http_status_code(), asked=asked) from exc
    except RequestException as exc:
        raise _of_server(what, exc, exc.response.status_code if exc.response is not None else _BROKEN) from exc
    except (ConnectionError, TimeoutError) as exc:
        raise InfrastructureError(f"{what}: {said(exc)}; see that what it asks runs, then try again") from exc
    except OSError as exc:  # MLflow's, which lie beside the database or where its server keeps them, or made on the way
        raise StorageError(
            f"{what}: {exc.filename or 'a file'}: {exc.strerror or said(exc)}; see that it can be read and written,"
            " then try again"
        ) from exc


def _of_server(what: str, exc: Exception, status: int, *, asked: bool = True) -> RBError:
    """``asked``: whether it is known that a server was."""
    if status in _AWAY or (asked and status >= _BROKEN):
        return InfrastructureError(
            f"{what}: MLflow's server broke, or did not answer: {said(exc)}; see that it runs, then try again"
        )
    return InputError(f"{what}: MLflow refused: {said(exc)}")
