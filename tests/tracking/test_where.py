"""Where runs are tracked: off, in a file, on a server; and what happens where that cannot be."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, ReasoningBank, run_stream
from rb_dspy.config import TrackingConfig
from rb_dspy.config_file import load_settings
from rb_dspy.errors import ConfigError, InfrastructureError
from rb_dspy.testing import Lock
from rb_dspy.tracking import NoRun, Tracker
from rb_dspy.tracking.compiles import CompileRun
from rb_dspy.tracking.guard import Guard
from rb_dspy.tracking.matrices import MatrixRun
from rb_dspy.tracking.run import Run
from rb_dspy.tracking.streams import StreamRun
from rb_dspy.tracking.where import limited
from tests.tracking.made import locks
from tests.tracking.servers import answering, kill, tracking_server
from tests.worlds import backbones

ROOT = Path(__file__).resolve().parents[2]


def test_settings_say_where() -> None:
    assert load_settings().tracking == TrackingConfig(
        enabled=None, uri="sqlite:///rb-mlflow.db", experiment="rb_dspy", traces=True
    )
    assert load_settings(None, ["tracking.enabled=false"]).tracking.enabled is False


def test_off_means_that_mlflow_is_never_imported(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from rb_dspy import MemoryBank, ReasoningBank, run_stream\n"
        "from rb_dspy.config import TrackingConfig\n"
        "from rb_dspy.errors import ConfigError\n"
        "from rb_dspy.stream import Streams\n"
        "from rb_dspy.testing import HashEmbedder, Lock\n"
        "from rb_dspy.tracking import Tracker\n"
        "from tests.tracking.made import compiled, locks\n"
        "from tests.worlds import backbones\n"
        "program = ReasoningBank(backbones=backbones(), environments=Lock.make)\n"
        "tracker = Tracker(TrackingConfig(enabled=False))\n"
        "with MemoryBank.open(None, scope='x', embedder=HashEmbedder()) as bank:\n"
        "    with tracker.stream_run(program, locks(2), bank, run_id='r') as run:\n"
        "        run.finish(run_stream(program, locks(2), bank, run_id='r', on_result=run.on_result), bank)\n"
        "streams = Streams(locks(1), locks(1), locks(1), check=False)\n"
        "with tracker.compile_run('x', program, streams) as run:\n"
        "    run.log_compiled(compiled(program))\n"
        "with tracker.evaluation('x') as run:\n"
        "    run.metrics({'a': 1.0})\n"
        "try:\n"
        "    tracker.load('x')\n"
        "except ConfigError as exc:\n"
        "    print(exc)\n"
        "print('mlflow' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "tracking is off, and models are kept in MLflow; set tracking.enabled=true",
        "False",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [Run, StreamRun, CompileRun, MatrixRun])
def test_what_stands_in_for_a_run_takes_what_the_run_takes(kind: type) -> None:
    """Only where MLflow's runs begin and end it has no part."""
    taken = {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    logs = set(taken) - {"end", "ending"}
    assert logs
    for name in logs:
        parts = [[*inspect.signature(each).parameters.values()] for each in (getattr(NoRun, name), taken[name])]
        assert parts[0] == parts[1], name


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("nonsense", "expected sqlite:///FILE.db, or the address of a tracking server"),
        ("sqlite:///", "expected sqlite:///FILE.db"),
        ("sqlite:///nowhere/at/all.db", "is no folder"),
        ("http://127.0.0.1:1", "no tracking server answers there"),
        ("http://name:secret@127.0.0.1:1", "no tracking server answers there"),
        ("http://127.0.0.1:1/x?api_key=secret&y=1", "no tracking server answers there"),
        ("http://u:sec/secret@127.0.0.1:1", "no tracking server answers there"),
        ("http://u:secret/x@127.0.0.1:1", "it is no address"),
        ("http://[", "tracking.uri"),
        ("sqlite+pysqlcipher://:secret@/x.db", "expected sqlite:///FILE.db"),
        ("sqlite:///nowhere/x.db?key=secret", "is no folder"),
        ("mysql://name:secret@127.0.0.1:1/x", "MLflow cannot use it"),
        ("mysql://127.0.0.1:1/x?user=name&password=secret", "MLflow cannot use it"),
        ("nonsense://127.0.0.1:1/x?password=secret", "expected sqlite:///FILE.db"),
    ],
)
def test_a_wrong_place_is_refused_at_the_start(uri: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        Tracker(TrackingConfig(uri=uri))
    said = str(caught.value)
    assert message in said
    assert said.startswith("tracking.uri = ")
    assert "\n" not in said
    assert "secret" not in said
    assert time.monotonic() - started < 20


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database " * 100)
    with pytest.raises(ConfigError, match=r"^(?!.*(SQL|sqlalche)).*MLflow cannot use it"):
        Tracker(TrackingConfig(uri=f"sqlite:///{file}"))
    assert file.read_text().startswith("not a database")


def test_a_deleted_experiment_is_refused(tracker: Tracker, client: Any) -> None:
    config = tracker.config.model_copy(update={"experiment": "gone"})
    Tracker(config)
    client.delete_experiment(client.get_experiment_by_name("gone").experiment_id)
    with pytest.raises(ConfigError, match="it was deleted"):
        Tracker(config)


def test_what_mlflow_was_set_to_is_as_before(tracker: Tracker, bank: MemoryBank, tmp_path: Path) -> None:
    """Also while a run is under way: it touches nothing of the process."""
    import mlflow

    mine = f"sqlite:///{tmp_path / 'mine.sqlite'}"
    before = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(mine)
    try:
        program = ReasoningBank(backbones=backbones(), environments=Lock.make)
        with tracker.stream_run(program, locks(1), bank, run_id="mine"):
            assert mlflow.get_tracking_uri() == mine
            run_stream(program, locks(1), bank, run_id="mine")
        tracker.register(None, ReasoningBank(), "mine", embedder="rb_dspy.testing:HashEmbedder")
        assert mlflow.get_tracking_uri() == os.environ["MLFLOW_TRACKING_URI"] == mine
        assert not (tmp_path / "mine.sqlite").exists()
    finally:
        mlflow.set_tracking_uri(None)
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before


def test_a_server_that_goes_away_costs_the_run_nothing(
    empty_store: Path, bank: MemoryBank, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING, "rb_dspy"), tracking_server(tmp_path, empty_store) as (uri, process):
        tracker = Tracker(TrackingConfig(uri=uri, experiment="remote"))
        program = ReasoningBank(backbones=backbones(), environments=Lock.make)
        started = time.monotonic()
        with tracker.stream_run(program, locks(), bank, run_id="remote-2") as going:
            kill(process)
            report = run_stream(program, locks(), bank, run_id="remote-2", on_result=going.on_result)
        assert [result.error for result in report.results] == [""] * 6
        assert time.monotonic() - started < 60
        with pytest.raises(InfrastructureError, match=r"^promoting x version 1: MLflow's server broke, or did not ans"):
            tracker.promote("x", 1)  # which is no part of a run
    warned = [record.getMessage() for record in caplog.records if record.name == "rb_dspy"]
    assert len(warned) == 1
    assert warned[0].endswith("its record in MLflow is incomplete")


def test_a_database_that_others_lock_costs_seconds(
    empty_store: Path, bank: MemoryBank, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: Any
) -> None:
    """Of all that is logged at the end of a run together: each call by itself would wait as long as SQLite does."""
    monkeypatch.setattr("rb_dspy.tracking.guard.MAX_SECONDS", 1.0)
    monkeypatch.setattr("rb_dspy.tracking.where._BUSY_SECONDS", 0.5)
    shutil.copy(empty_store, tmp_path / "store.sqlite")
    tracker = Tracker(TrackingConfig(uri=f"sqlite:///{tmp_path / 'store.sqlite'}"))
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as other:
        with tracker.stream_run(program, locks(), bank, run_id="locked") as going:
            report = run_stream(program, locks(), bank, run_id="locked", on_result=going.on_result)
            other.execute("BEGIN EXCLUSIVE")
            began = time.monotonic()
        assert time.monotonic() - began < 10
        other.rollback()
    assert [result.error for result in report.results] == [""] * 6
    (warned,) = [record.getMessage() for record in caplog.records if record.name == "rb_dspy"]
    assert "database is locked" in warned
    assert "SQL:" not in warned


def test_what_one_guard_loses_is_lost_to_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the same database. Calls inside of calls are not counted twice."""
    clock = [0.0]
    monkeypatch.setattr("rb_dspy.tracking.guard.time.monotonic", lambda: clock[0])
    guard = Guard()
    part = guard.part()

    def lose() -> None:
        clock[0] += 8.0
        raise TimeoutError

    def lose_within() -> None:
        part("inside", lose)
        raise TimeoutError

    guard("first", lose_within)
    assert not guard.given_up
    part("second", lose)
    assert not guard.given_up
    guard("third", lose)
    assert guard.given_up
    assert part.given_up
    assert guard.part()("never", lambda: 1) is None


def test_what_the_database_refuses_is_said_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MLflow's store logs each refusal itself, in a hundred lines."""
    tracker = Tracker(TrackingConfig(uri=f"sqlite:///{tmp_path / 'store.sqlite'}"))
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as database:
        database.execute("DROP TABLE runs")
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    its_own = logging.getLogger("mlflow.store.db.utils")
    its_own.addHandler(caplog.handler)
    try:
        with tracker.matrix_run("m", program, {"a": backbones()}, locks(1)) as run:
            assert run.id == ""
    finally:
        its_own.removeHandler(caplog.handler)
    said = [(record.name, record.getMessage()) for record in caplog.records if record.levelno >= logging.WARNING]
    assert [name for name, _ in said] == ["rb_dspy"]
    assert "no such table" in said[0][1]


def test_runs_at_the_same_time_leave_nothing_behind() -> None:
    """What one run sets for MLflow, another that ends later must not take for what was there before."""
    told = logging.getLogger("mlflow.store.db.utils")
    before = told.level, {name: value for name, value in os.environ.items() if name.startswith("MLFLOW")}
    first, second = limited(), limited()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
    assert told.level == logging.CRITICAL
    second.__exit__(None, None, None)
    assert (told.level, {name: value for name, value in os.environ.items() if name.startswith("MLFLOW")}) == before


class Failing(BaseHTTPRequestHandler):
    """Answers, but not as a tracking server."""

    def do_GET(self) -> None:
        self.send_error(500 if "/api/" in self.path else 200)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_no_password_is_said() -> None:
    """Also where MLflow says the address again, with what it was entered as."""
    with answering(Failing) as port, pytest.raises(ConfigError) as refused:
        Tracker(TrackingConfig(uri=f"http://user:s3cr@t@127.0.0.1:{port}"))
    assert "MLflow cannot use it: API request to http://…@127.0.0.1" in str(refused.value)
    assert "s3cr" not in str(refused.value)


def test_nor_is_one_of_an_address_without_its_host(caplog: pytest.LogCaptureFixture) -> None:
    Guard().warn("logging metrics: Max retries exceeded with url: /api?token=s3cr (Caused by it)")
    assert "url: /api?token=… (Caused" in caplog.text


def test_no_password_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Guard().warn("logging metrics: API request to http://user:s3cr@t@127.0.0.1:5000/api failed")
    assert "s3cr" not in caplog.text


def test_an_address_alone_is_a_place(tmp_path: Path) -> None:
    assert Tracker(f"sqlite:///{tmp_path / 'other.db'}").config == TrackingConfig(
        uri=f"sqlite:///{tmp_path / 'other.db'}"
    )
    (tmp_path / "other.db").unlink()
    for given, said in (
        ("mine.db", r"tracking\.uri = 'mine\.db': expected sqlite:///FILE\.db"),
        ("", r"^got str for a tracker; expected a TrackingConfig, or its uri$"),
        (7, r"^got int for a tracker; expected a TrackingConfig, or its uri$"),
    ):
        with pytest.raises(ConfigError, match=said):
            Tracker(given)  # type: ignore[arg-type]


def test_a_run_is_logged_where_mlflow_was_set_to_and_nested_in_the_active_run(
    empty_store: Path, bank: MemoryBank, tmp_path: Path
) -> None:
    import mlflow

    before = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID")}
    shutil.copy(empty_store, tmp_path / "mine.sqlite")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mine.sqlite'}")
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    try:
        set_, other = (mlflow.MlflowClient().create_experiment(name, tmp_path.as_uri()) for name in ("set", "other"))
        os.environ["MLFLOW_EXPERIMENT_ID"] = set_  # as mlflow.set_experiment does, which no function undoes
        with Tracker().stream_run(program, locks(1), bank, run_id="alone") as alone:
            pass
        with mlflow.start_run(experiment_id=other) as mine:
            tracker = Tracker(TrackingConfig(traces=False))
            with tracker.stream_run(program, locks(1), bank, run_id="nested") as nested:
                pass
            tracker.register(None, ReasoningBank(), "mine", embedder="rb_dspy.testing:HashEmbedder")
        runs = mlflow.search_runs(experiment_ids=[set_, other], output_format="list")
        found = {run.info.run_id: (run.info.experiment_id, run.data.tags.get("mlflow.parentRunId")) for run in runs}
        below = (other, mine.info.run_id)
        assert found.pop(alone.id) == (set_, None)
        assert found.pop(mine.info.run_id) == (other, None)
        assert found.pop(nested.id) == below
        assert list(found.values()) == [below], "that of the registered program"
        names = {experiment.name for experiment in mlflow.search_experiments()}
        assert "rb_dspy" not in names
    finally:
        mlflow.set_tracking_uri(None)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def test_a_place_that_is_configured_goes_before_mlflows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"sqlite:///{tmp_path / 'mine.sqlite'}"
    with monkeypatch.context() as patched:
        patched.setenv("MLFLOW_TRACKING_URI", place)
        assert load_settings().tracking.uri == place
        assert load_settings(None, ["tracking.uri=sqlite:///own.db"]).tracking.uri == "sqlite:///own.db"
