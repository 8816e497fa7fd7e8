"""A run in MLflow: numbers and traces, and no ground truth in any of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MaTTS, MemoryBank, RunReport, TaskStream, Tracker, TrackingConfig, run_stream
from rb_dspy.testing import HashEmbedder
from tests.scenarios.world import keypad, program

CANARY = "zq7canary"
TASKS = [keypad(0), keypad(1, code=CANARY), keypad(2, hint=CANARY)]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('tracking') / 'store.db'}"


@pytest.fixture(scope="module")
def client(uri: str) -> Any:
    import mlflow

    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def tracked(uri: str, run: Any, run_id: str) -> RunReport:
    tracker = Tracker(TrackingConfig(uri=uri, experiment="scenarios"))
    stream = TaskStream("doors", tuple(TASKS))
    with (
        MemoryBank.open(None, scope="scenarios", embedder=HashEmbedder()) as bank,
        tracker.stream_run(run, stream, bank, run_id=run_id) as kept,
    ):
        return run_stream(run, stream, bank, run_id=run_id, on_result=kept.on_result)


@pytest.fixture(scope="module", autouse=True)
def _from_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        yield


@pytest.fixture(scope="module")
def report(uri: str, _from_a_folder_of_its_own: None) -> RunReport:
    return tracked(uri, program(), "monday")


@pytest.fixture(scope="module")
def scaled(uri: str, report: RunReport) -> RunReport:
    return tracked(uri, MaTTS(program(), k=2), "tuesday")


def run_of(client: Any, run_id: str) -> Any:
    experiment = client.get_experiment_by_name("scenarios")
    runs = client.search_runs([experiment.experiment_id])
    (found,) = [run for run in runs if run_id in run.info.run_name]
    return found


def traces_of(client: Any, run: Any) -> list[Any]:
    found = client.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id, max_results=100)
    return sorted(found, key=lambda trace: trace.data.spans[0].start_time_ns)


def test_a_stream_is_one_finished_run_with_its_success_rate(client: Any, report: RunReport) -> None:
    run = run_of(client, "monday")
    assert run.info.status == "FINISHED"
    summary = report.summary()
    assert summary.success_rate == pytest.approx(2 / 3)
    metrics = {name.rpartition("/")[2]: value for name, value in run.data.metrics.items()}
    assert metrics["success_rate"] == pytest.approx(summary.success_rate)
    assert metrics["judge_agreement"] == pytest.approx(summary.judge_agreement)


def test_every_task_is_a_trace_with_the_calls_of_all_roles(client: Any, report: RunReport) -> None:
    traces = traces_of(client, run_of(client, "monday"))
    assert len(traces) == len(TASKS)
    for trace, task in zip(traces, TASKS, strict=True):
        told = json.dumps([span.to_dict() for span in trace.data.spans], default=str)
        assert task.instruction in told
        assert sum(span.span_type == "CHAT_MODEL" for span in trace.data.spans) >= 3


@pytest.mark.parametrize("run_id", ["monday", "tuesday"])
def test_no_trace_no_parameter_and_no_file_holds_ground_truth(
    client: Any, scaled: RunReport, run_id: str, tmp_path: Path
) -> None:
    run = run_of(client, run_id)
    traces = traces_of(client, run)
    assert len(traces) == len(TASKS)
    told = [json.dumps(span.to_dict(), default=str) for trace in traces for span in trace.data.spans]
    told += [json.dumps(trace.info.to_dict(), default=str) for trace in traces]
    assert not [text for text in told if CANARY in text]
    assert CANARY not in json.dumps([run.data.params, run.data.tags, run.data.metrics])


def test_a_scaled_run_has_pass_at_k(client: Any, scaled: RunReport) -> None:
    summary = scaled.summary().scaling
    assert summary is not None
    metrics = run_of(client, "tuesday").data.metrics
    last = [value for name, value in metrics.items() if "pass" in name and "2" in name]
    assert last, sorted(metrics)
    assert last[0] == pytest.approx(summary.pass_at[-1].rate)
