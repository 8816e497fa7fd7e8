"""Tracked streams, read back with MLflow's own client."""

from __future__ import annotations

import json
import shutil
import sqlite3
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import mlflow
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rb_dspy import MaTTS, MemoryBank, TaskResult, TaskStream, Tracker, TrackingConfig, run_stream
from rb_dspy.errors import ConfigError, InfrastructureError, InputError
from rb_dspy.testing import scripted_program
from tests.tracking.helpers import locks


def tracked(tracker: Tracker, bank: MemoryBank, run_id: str, **kwargs: Any) -> str:
    program, stream = scripted_program(), locks()
    with tracker.stream_run(program, stream, bank, run_id=run_id, **kwargs) as run:
        run_stream(program, stream, bank, run_id=run_id, on_result=run.on_result)
    assert run.id is not None
    return run.id


def history(client: Any, run_id: str, metric: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in client.get_metric_history(run_id, metric)]


def artifacts(client: Any, run_id: str) -> set[str]:
    return {each.path for each in client.list_artifacts(run_id)}


def test_a_stream_is_logged_with_about_ten_numbers_and_its_files(
    tracker: Tracker, client: Any, bank: MemoryBank, tmp_path: Path
) -> None:
    run_id = tracked(tracker, bank, "plain", params={"why": "a test"})
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["rb.kind"] == "stream"
    assert run.data.tags["mlflow.runName"] == "plain: locks"
    params = {"program": "ReasoningBank", "stream": "locks", "stream.tasks": "3", "run_id": "plain", "why": "a test"}
    assert params.items() <= run.data.params.items()
    assert run.data.params["lm.agent"] == "scripted/lm"
    assert not [name for name in run.data.params if name.startswith(("act.", "judge."))]  # all are the default
    metrics = {name: value for name, value in run.data.metrics.items() if name not in ("tokens", "seconds")}
    assert metrics == {
        "task.solved": 1,
        "solved": 1,
        "success_rate": pytest.approx(1 / 3),
        "judge_agreement": 1,
        "judge_base_rate": pytest.approx(2 / 3),
        "errors": 0,
        "mean_steps": 1,
        "lessons": 3,
    }  # and no cost: nobody knows the price of scripted/lm
    assert run.data.metrics["tokens"] > 1000
    assert run.data.metrics["seconds"] > 0
    assert history(client, run_id, "task.solved") == [(1, 0), (2, 0), (3, 1)]
    third = pytest.approx(1 / 3)
    assert history(client, run_id, "success_rate") == [(1, 0), (2, 0), (3, third), (3, third)]

    # Its files are the table, the curve, the prompts and the bank.
    assert artifacts(client, run_id) == {"results.json", "learning_curve.svg", "prompts.json", "bank.jsonl"}
    table = mlflow.load_table("results.json", run_ids=[run_id])
    assert list(table["task"]) == ["lock/acme/0", "lock/acme/1", "lock/acme/2"]
    assert list(table["solved"]) == [False, False, True]
    assert list(table["position"]) == [1, 2, 3]
    prompts = mlflow.artifacts.load_dict(f"runs:/{run_id}/prompts.json")
    assert "judge.predict" in prompts
    file = mlflow.artifacts.download_artifacts(f"runs:/{run_id}/bank.jsonl", dst_path=str(tmp_path))
    with MemoryBank.open(None, scope="copy", embedder=bank.embedder) as copy:
        copy.import_jsonl(file, own=True)
        assert {item.title for item in copy.items()} == {item.title for item in bank.items()}
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("locks", locks().digest)


def test_settings_that_are_not_the_default_are_parameters(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = MaTTS(scripted_program(model="openai/gpt-4o-mini"), k=2)
    with tracker.stream_run(program, locks(1), bank, run_id="matts") as run:
        run_stream(program, locks(1), bank, run_id="matts", on_result=run.on_result)
    data = client.get_run(run.id).data
    assert {"program": "MaTTS", "mode": "parallel", "k": "2"}.items() <= data.params.items()
    assert data.metrics["cost"] > 0


def test_an_interrupted_run_keeps_what_it_has(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program, stream = scripted_program(), locks()
    ids: list[str] = []

    def cut() -> None:
        with tracker.stream_run(program, stream, bank, run_id="cut") as run:
            ids.append(run.id or "")

            def stop(result: TaskResult) -> None:
                run.on_result(result)
                raise KeyboardInterrupt

            run_stream(program, stream, bank, run_id="cut", on_result=stop)

    with pytest.raises(KeyboardInterrupt):
        cut()
    found = client.get_run(ids[0])
    assert found.info.status == "KILLED"
    assert found.data.metrics["solved"] == 0
    assert "results.json" in artifacts(client, ids[0])


def test_a_run_without_results_is_a_warning(
    tracker: Tracker, client: Any, bank: MemoryBank, caplog: pytest.LogCaptureFixture
) -> None:
    with tracker.stream_run(scripted_program(), locks(1), bank, run_id="none") as run:
        run_stream(scripted_program(), locks(1), bank, run_id="none")
    assert "on_result" in caplog.text
    assert client.get_run(run.id).data.metrics == {}


def test_an_active_run_and_its_experiment_are_used(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    mine = client.create_experiment("mine", (Path.cwd() / "mine").as_uri())
    with mlflow.start_run(experiment_id=mine) as parent:
        run_id = tracked(Tracker(), bank, "nested")
        assert mlflow.active_run().info.run_id == parent.info.run_id
    run = client.get_run(run_id)
    assert run.info.experiment_id == mine
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert {trace.info.experiment_id for trace in mlflow.search_traces(locations=[mine], return_type="list")} == {mine}


def test_without_settings_mlflow_decides(store: str, client: Any, bank: MemoryBank) -> None:
    mlflow.set_tracking_uri(store)
    theirs = mlflow.set_experiment("theirs").experiment_id
    assert client.get_run(tracked(Tracker(), bank, "theirs")).info.experiment_id == theirs


def test_tracking_that_is_off_does_nothing(bank: MemoryBank) -> None:
    tracker = Tracker(TrackingConfig(enabled=False))
    program = scripted_program()
    with tracker.stream_run(program, locks(1), bank, run_id="off") as run:
        run_stream(program, locks(1), bank, run_id="off", on_result=run.on_result)
    assert run.id is None
    assert not list(Path.cwd().iterdir())
    with pytest.raises(ConfigError, match="tracking"):
        tracker.programs()


def test_what_is_no_stream_is_refused(tracker: Tracker, bank: MemoryBank) -> None:
    with pytest.raises(InputError), tracker.stream_run(scripted_program(), "mail.jsonl", bank, run_id="none"):
        pass


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "nonsense://x", "sqlite:///folder", "sqlite:///text.db"])
def test_a_store_that_cannot_be_used_is_one_line_at_once(uri: str) -> None:
    Path("folder").mkdir()
    Path("text.db").write_text("no database at all\n" * 100)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"tracking\.uri") as caught:
        Tracker(uri)
    assert time.monotonic() - began < 60  # MLflow would try for longer
    assert "\n" not in str(caught.value)


def test_a_password_is_not_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Tracker("http://me:hunter2@127.0.0.1:9")
    assert "hunter2" not in str(caught.value)


@contextmanager
def mlflow_server(certificate: Path | None = None) -> Iterator[str]:
    """A server that has no programs and answers no question about a version; yields its host and port.

    ``certificate``: of its HTTPS; None: it speaks HTTP.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "model-versions/get" in self.path:
                return  # without an answer
            body = b'{"experiment": {"experiment_id": "0", "name": "Default", "lifecycle_stage": "active"}}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_port}"
        server.shutdown()


def self_signed(path: Path) -> Path:
    """Write a new certificate of localhost, with its key, to ``path``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    plain = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM) + key.private_bytes(*plain))
    return path


def test_a_certificate_that_mlflow_accepts_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "localhost.pem")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with mlflow_server(certificate) as place:
        with pytest.raises(ConfigError):
            Tracker(f"https://{place}")
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
        assert Tracker(f"https://{place}").programs() == []


def test_a_password_is_in_no_error_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with mlflow_server() as place:
        tracker = Tracker(f"http://me:hunter2@{place}")
        with pytest.raises(InputError) as missing:
            tracker.load("mail")
        assert place in str(missing.value)
        with pytest.raises(InfrastructureError) as failed:
            tracker.promote("mail", 1)
    assert "hunter2" not in f"{missing.value} {failed.value}"


def test_a_run_in_another_store_is_not_a_parent(tracker: Tracker, tmp_path: Path) -> None:
    with mlflow.start_run(), pytest.raises(ConfigError, match="active"):
        Tracker(f"sqlite:///{tmp_path}/other.db")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rb_dspy"]


@pytest.fixture
def breakable(empty_store: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copy(empty_store, tmp_path / "breakable.db"))
    mlflow.flush_trace_async_logging()


@pytest.mark.parametrize("back", [pytest.param(False, marks=pytest.mark.stress), True])
def test_a_store_that_breaks_in_the_middle_costs_one_warning(
    breakable: Path, bank: MemoryBank, caplog: pytest.LogCaptureFixture, back: bool
) -> None:
    """It is left alone then, and tried again at the end."""
    program, stream = scripted_program(), locks(4)
    tracker = Tracker(f"sqlite:///{breakable}")
    renames = [f"ALTER TABLE {table} RENAME TO gone_{table}" for table in ("metrics", "latest_metrics")]
    returns = [f"ALTER TABLE gone_{table} RENAME TO {table}" for table in ("metrics", "latest_metrics")]
    after = {1: renames, 2: returns if back else []}
    with tracker.stream_run(program, stream, bank, run_id="broken") as run:
        done: list[TaskResult] = []

        def on_result(result: TaskResult) -> None:
            run.on_result(result)
            done.append(result)
            with sqlite3.connect(breakable) as database:
                for statement in after.get(len(done), []):
                    database.execute(statement)

        report = run_stream(program, stream, bank, run_id="broken", on_result=on_result)
    assert [result.solved for result in report.results] == [False, False, False, True]
    (line,) = lines(caplog)
    assert "incomplete" in line
    if back:
        client = mlflow.MlflowClient()
        assert history(client, run.id or "", "task.solved") == [(1, 0)]
        assert client.get_run(run.id).data.metrics["solved"] == 1


def test_rows_of_a_thousand_results_are_not_quadratic(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    """The numbers so far are kept, not counted anew: a stand-in for time, which is not deterministic."""
    looked: list[int] = []

    class Counted(TaskResult):
        @property
        def solved(self) -> bool | None:
            looked.append(1)
            return super().solved

    program = scripted_program()
    (done,) = run_stream(program, locks(1), bank, run_id="one").results
    with Tracker(tracker.config.model_copy(update={"traces": False})).stream_run(
        program, TaskStream("one", [done.task]), bank, run_id="many"
    ) as run:
        for number in range(20):
            run.on_result(Counted(task=done.task, prediction=done.prediction, outcome=done.outcome, position=number))
    assert len(looked) <= 20 * 20
    logged = client.get_run(run.id)
    assert json.loads(json.dumps(logged.data.metrics))["solved"] == 20
    mlflow.flush_trace_async_logging()
    assert not client.search_traces(locations=[logged.info.experiment_id], run_id=run.id), "traces can be left out"
