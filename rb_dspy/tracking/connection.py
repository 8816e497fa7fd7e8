"""Which MLflow store is used, and what happens if it fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
import requests
from mlflow.exceptions import MlflowException
from sqlalchemy import NullPool, create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from rb_dspy.config import TrackingConfig
from rb_dspy.errors import ConfigError, InfrastructureError, InputError
from rb_dspy.redaction import without_secrets
from rb_dspy.text import summary_line

log = logging.getLogger("rb_dspy")

FAILURES = (MlflowException, SQLAlchemyError, OSError)
"""Errors of a store that fails: a database, a server (``requests`` raises ``OSError``) or a full disk."""
_NOT_FOUND = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
_SECONDS = 10.0
"""Seconds to wait for a server to respond."""


def failure(exc: BaseException) -> str:
    """The message of an error of a store in one line, without the secrets of its address."""
    return f"{without_secrets(summary_line(exc)):.300}"


def connect(config: TrackingConfig) -> None:
    """Use the store and the experiment that ``config`` names, for the whole process, as MLflow's own functions do.

    Options that ``config`` does not set stay as they are in MLflow.

    Raises:
        ConfigError: The store cannot be used, or a run is active in another one.
    """
    experiment = config.experiment
    active = mlflow.active_run()
    current = mlflow.get_tracking_uri()
    if config.uri is not None and config.uri != current:
        if active is not None:
            raise ConfigError(
                f"an MLflow run is active in {without_secrets(current)}, and tracking.uri is"
                f" {without_secrets(config.uri)}; end the run first, or remove tracking.uri"
            )
        mlflow.set_tracking_uri(config.uri)
        # by name, because an experiment id belongs to the old store
        experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
    uri = mlflow.get_tracking_uri()
    with _setting_up(uri):
        _probe(uri)
        if experiment is not None:
            mlflow.set_experiment(experiment)
        else:
            mlflow.search_experiments(max_results=1)


@contextmanager
def start_run(config: TrackingConfig, kind: str, name: str) -> Iterator[RunLog]:
    """Start an MLflow run in this thread, nested in the active run, if any; its status says how the block ended."""
    connect(config)
    active = mlflow.active_run()
    with _setting_up(mlflow.get_tracking_uri()):
        run = mlflow.start_run(
            experiment_id=active.info.experiment_id if active and config.experiment is None else None,
            run_name=name,
            nested=active is not None,
            tags={"rb.kind": kind},
        )
    writer = RunLog(run.info.run_id)
    status = "FAILED"
    try:
        yield writer
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        writer.retry()
        writer.write(lambda run_id: mlflow.end_run(status))


class RunLog:
    """Writes to one run of MLflow, from any thread.

    If the store fails, it logs one warning and writes nothing more until ``retry``, because MLflow retries an
    unreachable server for minutes each time.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self._failing = self._warned = False

    def retry(self) -> None:
        self._failing = False

    def write(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call a function of MLflow that takes ``run_id``."""
        if self._failing:
            return
        try:
            function(*args, run_id=self.id, **kwargs)
        except Exception as exc:  # noqa: BLE001 (an artifact store raises errors of its own, such as botocore's)
            self._failing = True
            if not self._warned:
                log.warning("MLflow: run %s is incomplete: %s", self.id, failure(exc))
            self._warned = True

    def params(self, values: dict[str, Any]) -> None:
        """Log parameters; a long value is cut at MLflow's limit."""
        self.write(mlflow.log_params, {name: f"{value}"[:6000] for name, value in values.items()})

    def metrics(self, values: dict[str, float | None], step: int | None = None) -> None:
        """Log numbers; None is left out."""
        self.write(mlflow.log_metrics, {name: value for name, value in values.items() if value is not None}, step=step)

    def tags(self, values: dict[str, Any]) -> None:
        client = mlflow.MlflowClient()
        for name, value in values.items():
            self.write(lambda run_id, name=name, value=value: client.set_tag(run_id, name, f"{value}"))

    def table(self, rows: list[dict[str, Any]], file: str) -> None:
        """Log rows as a table that MLflow's pages show."""
        if rows:
            # dtype=object, because MLflow with pandas 3 warns about text columns
            self.write(mlflow.log_table, pd.DataFrame(rows, dtype=object), file)


@contextmanager
def registry_errors(what: str) -> Iterator[None]:
    """Translate errors of MLflow's registry into rb_dspy errors.

    Raises:
        InputError: The program or version does not exist.
        InfrastructureError: The store or its server failed.
    """
    try:
        yield
    except FAILURES as exc:
        missing = isinstance(exc, MlflowException) and exc.error_code in _NOT_FOUND
        kind = InputError if missing else InfrastructureError
        raise kind(f"{what}: {failure(exc)}") from exc


def _probe(uri: str) -> None:
    """Raise at once if the store cannot be reached, because MLflow would retry for minutes."""
    if uri.startswith(("http://", "https://")):
        with suppress(requests.exceptions.SSLError):  # MLflow has its own settings for certificates
            requests.get(uri, timeout=_SECONDS, allow_redirects=False)
    elif uri.startswith(("sqlite:", "postgresql", "mysql", "mssql")):
        url = make_url(uri)
        if url.drivername != "sqlite" or Path(url.database or "").parent.exists():  # else MLflow creates the folder
            with create_engine(url, poolclass=NullPool).connect():
                pass


@contextmanager
def _setting_up(uri: str) -> Iterator[None]:
    try:
        yield
    except FAILURES as exc:
        raise ConfigError(
            f"MLflow cannot use {without_secrets(uri)}: {failure(exc)}; set tracking.uri to"
            " sqlite:///FILE or to the address of an MLflow server"
        ) from exc
