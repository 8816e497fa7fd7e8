"""The place that runs are tracked in: a SQLite file with its artifacts beside it, or a tracking server."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx

from rb_dspy.config import TrackingConfig
from rb_dspy.errors import ConfigError
from rb_dspy.tracking.addresses import without_secrets
from rb_dspy.tracking.said import said

_SQLITE = "sqlite:///"
_PRAGMA = "PRAGMA busy_timeout"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SCHEMES = ("http", "https", *_DATABASES, "databricks", "databricks-uc")
_ANSWER_SECONDS = 5.0
"""How long a tracking server may take to say that it is there."""
_LIMITS = {
    # MLflow's own would keep a run waiting for minutes when its server is gone.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # Bars of MLflow's between ours.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # And its lines on standard output, two for every run that ends on a server, where scripts expect JSON.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_BUSY_SECONDS = 5.0
"""How long a SQLite file may be locked by others before a call fails, while MLflow behaves as ``limited`` says; its own
20 seconds would be waited out by call after call."""
_busy: set[str] = set()
"""The SQLite files of which that is so."""
_told = tuple(logging.getLogger(name) for name in ("mlflow.store.db.utils", "urllib3.connectionpool"))
"""Log what a database refuses, a hundred lines of it, and each time that a server is tried again, and raise it too: to
us, who say it in one."""
_limits_lock = threading.Lock()
_limits_before: dict[str, Any] = {}
"""What was there before the first of the blocks that are in ``limited`` now, and how many those are."""
_TRACKING_URI, _EXPERIMENT_ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID"


def load_mlflow() -> Any:
    """The ``mlflow`` package, imported at the first call. It takes seconds, and asks a remote server what to report
    home unless it is told not to."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    return mlflow


class Place:
    """An MLflow store and an experiment in it, made where they are not there yet."""

    def __init__(self, config: TrackingConfig) -> None:
        """Raises ``ConfigError`` for an address that cannot be used, or where nobody answers."""
        self.uri, self._artifacts = _resolved(config.uri)
        self.given = config.uri
        """As it was configured, which is how commands are offered it."""
        self.database = _scheme(self.uri) in _DATABASES
        """Whether MLflow writes to it in this process; else a server does."""
        self.experiment = config.experiment
        self._any_experiment = "experiment" not in config.model_fields_set
        mlflow = load_mlflow()
        if _scheme(self.uri) == "sqlite":
            _wait_less(self.uri)
        try:
            with quiet():
                import_module("mlflow.types.responses")  # warns of its own type hints, wherever that is first
                self.client = mlflow.MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
                with limited():
                    self.experiment_id = self._users_experiment() or self._experiment()
        except ConfigError:
            raise
        except Exception as exc:
            raise ConfigError(
                f"tracking.uri = {without_secrets(config.uri)!r}: MLflow cannot use it: {said(exc)}; correct it, or set"
                " tracking.enabled=false"
            ) from exc

    def in_active_run(self) -> tuple[Place, str]:
        """This place and the id of the run that the caller has begun in its experiment; an empty id if there is none.

        If no experiment is configured, it is that of the caller's run.
        """
        run = self._active_run()
        if run is None or (run.info.experiment_id != self.experiment_id and not self._any_experiment):
            return self, ""
        place = copy(self)
        place.experiment_id = run.info.experiment_id
        return place, run.info.run_id

    def _active_run(self) -> Any:
        """MLflow's active run of this thread, if it is in this store."""
        mlflow = load_mlflow()
        run = mlflow.active_run()
        return run if run is not None and _absolute(mlflow.get_tracking_uri()) == self.uri else None

    def _users_experiment(self) -> str:
        """The id of the experiment that MLflow's own settings name, unless one is configured; else empty."""
        if not self._any_experiment:
            return ""
        run, set_ = self._active_run(), os.environ.get(_EXPERIMENT_ID, "")
        if run is not None:
            return str(run.info.experiment_id)
        return set_ if _absolute(load_mlflow().get_tracking_uri()) == self.uri else ""

    @contextmanager
    def using(self) -> Iterator[None]:
        """What MLflow does of itself inside the block, it does here. Its own settings are as before afterwards.

        They belong to the whole process, so no two places can be used at once.
        """
        mlflow = load_mlflow()
        variables = {name: os.environ.get(name) for name in (_TRACKING_URI, _EXPERIMENT_ID)}
        before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
        mlflow.set_tracking_uri(self.uri)
        os.environ[_EXPERIMENT_ID] = self.experiment_id
        try:
            with limited():
                yield
        finally:
            mlflow.set_tracking_uri(before)
            for name, value in variables.items():
                _restore(name, value)

    def _experiment(self) -> str:
        found = self.client.get_experiment_by_name(self.experiment)
        if found is None:
            found = self._made()
        if found.lifecycle_stage != "active":
            raise ConfigError(
                f"tracking.experiment = {self.experiment!r}: it was deleted; restore it with `mlflow experiments"
                " restore`, or choose another name"
            )
        return str(found.experiment_id)

    def _made(self) -> Any:
        mlflow = load_mlflow()
        where = None if self._artifacts is None else f"{self._artifacts.as_uri()}/{_file_name(self.experiment)}"
        try:
            made = self.client.create_experiment(
                self.experiment, artifact_location=where, tags={"mlflow.experimentKind": "genai_development"}
            )
        except mlflow.MlflowException as exc:
            found = self.client.get_experiment_by_name(self.experiment)
            if found is None:  # else another process made it just now
                raise exc
            return found
        return self.client.get_experiment(made)


@contextmanager
def limited() -> Iterator[None]:
    """How MLflow behaves inside the block, unless the environment says otherwise.

    That belongs to the whole process: of blocks at the same time the first begins it, and the last ends it.
    """
    with _limits_lock:
        if not _limits_before:
            levels = [logger.level for logger in _told]
            _limits_before.update({name: os.environ.get(name) for name in _LIMITS}, blocks=0, levels=levels)
            for name, value in _LIMITS.items():
                os.environ.setdefault(name, value)
            for logger in _told:
                logger.setLevel(logging.CRITICAL)
        _limits_before["blocks"] += 1
    try:
        yield
    finally:
        with _limits_lock:
            _limits_before["blocks"] -= 1
            if not _limits_before["blocks"]:
                for logger, level in zip(_told, _limits_before["levels"], strict=True):
                    logger.setLevel(level)
                for name in _LIMITS:
                    _restore(name, _limits_before[name])
                _limits_before.clear()


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _wait_less(uri: str) -> None:
    """From now on, inside of ``limited``, for a SQLite file."""
    from sqlalchemy import Engine, event  # which MLflow brings

    _busy.add(uri.removeprefix(_SQLITE))
    if not event.contains(Engine, "before_cursor_execute", _shorter):
        event.listen(Engine, "before_cursor_execute", _shorter, retval=True)


def _shorter(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
    """MLflow says in every session how long to wait: what it says is what there is to change."""
    if statement.startswith(_PRAGMA) and _limits_before and connection.engine.url.database in _busy:
        statement = f"{_PRAGMA} = {_BUSY_SECONDS * 1000:.0f}"
    return statement, parameters


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0]


def _resolved(uri: str) -> tuple[str, Path | None]:
    """``uri`` as MLflow is given it, and the folder for artifacts where that is for us to say."""
    scheme = _scheme(uri)
    if scheme not in _SCHEMES or "://" not in uri:
        raise ConfigError(
            f"tracking.uri = {without_secrets(uri)!r}: expected sqlite:///FILE.db, or the address of a tracking server"
            " (http://HOST:PORT); set tracking.uri, which goes before MLFLOW_TRACKING_URI"
        )
    if scheme == "sqlite":
        if not uri.startswith(_SQLITE) or uri == _SQLITE:
            raise ConfigError(
                f"tracking.uri = {without_secrets(uri)!r}: expected sqlite:///FILE.db (four slashes: from the root)"
            )
        file = Path(_absolute(uri).removeprefix(_SQLITE))
        if file.is_dir() or not file.parent.is_dir():
            shown, name = without_secrets(uri), without_secrets(file.name)
            raise ConfigError(f"tracking.uri = {shown!r}: {file.parent} is no folder, or {name} is one; make it")
        return f"{_SQLITE}{file}", file.with_name(f"{file.stem}-artifacts")
    if scheme in ("http", "https"):
        _check_answers(uri)
    return uri, None


def _absolute(uri: str) -> str:
    """``uri`` with the whole path of a SQLite file, so that two can be compared."""
    file = uri.removeprefix(_SQLITE)
    return f"{_SQLITE}{Path(file).absolute()}" if uri.startswith(_SQLITE) else uri


def _check_answers(uri: str) -> None:
    try:
        httpx.get(f"{uri.rstrip('/')}/health", timeout=_ANSWER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        shown = without_secrets(uri)
        wrong = isinstance(exc, httpx.InvalidURL)  # then it says what, which may be a part of a password
        why = "it is no address" if wrong else without_secrets(str(exc)) or type(exc).__name__
        raise ConfigError(
            f"tracking.uri = {shown!r}: no tracking server answers there ({why}); start one"
            " (`mlflow server`; without a network it hangs unless MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false), correct"
            " the address, or set tracking.enabled=false"
        ) from None


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what MLflow and its parts announce: a new database in a hundred steps, what of SQLAlchemy is deprecated,
    its opinion of type hints."""
    levels = {"alembic": logging.WARNING, "mlflow": logging.WARNING, "mlflow.types.type_hints": logging.ERROR}
    loggers = [logging.getLogger(name) for name in levels]
    before = [logger.level for logger in loggers]
    for logger, level in zip(loggers, levels.values(), strict=True):
        logger.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message=".*Any type hint", category=UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
