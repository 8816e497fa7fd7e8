"""Tracked compiles and evaluations, read back with MLflow's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pytest

from rb_dspy import Compiled, MemoryBank, Streams, Tracker, TrackingConfig
from rb_dspy.compile.progress import Progress
from rb_dspy.evaluation import evaluate
from rb_dspy.evaluation.report import Report
from rb_dspy.testing import scripted_program
from rb_dspy.testing.embedder import HashEmbedder
from tests.tracking.helpers import BETTER, MARKER, compiled, locks


@pytest.fixture
def streams() -> Streams:
    return Streams(locks(2, "a", "acme"), locks(2, "b", "bolt"), locks(2, "c", "chubb"), check=False)


def test_a_compile_is_logged(tracker: Tracker, client: Any, streams: Streams, tmp_path: Path) -> None:
    program = scripted_program(model="openai/gpt-4o-mini")
    result = compiled(program)
    with tracker.compile_run("mail", program, streams, params={"why": "a test"}) as run:
        for calls, best in ((0, None), (1, 0.5), (2, 0.5), (9, 0.8)):
            run.on_progress(Progress(metric_calls=calls, budget=40, best=best))
        run.log_compiled(result)
    logged = client.get_run(run.id)
    assert logged.data.tags["mlflow.runName"] == "compile mail"
    params = {"optimizer": "gepa", "step": "judge", "budget": "40", "orders": "8", "why": "a test"}
    assert params.items() <= logged.data.params.items()
    assert logged.data.params["held_out.digest"] == streams.held_out.digest
    assert [(each.step, each.value) for each in client.get_metric_history(run.id, "best")] == [(1, 0.5), (9, 0.8)]
    metrics = logged.data.metrics
    assert (metrics["held_out.before"], metrics["held_out.difference.low"]) == (0.5, 0.1)
    assert (metrics["metric_calls"], metrics["tokens"]) == (38, 10900)
    assert metrics["cost"] == pytest.approx((9000 * 0.15 + 800 * 0.6) / 1e6 + (1000 * 2.5 + 100 * 10) / 1e6)
    assert logged.data.tags["improved"] == "True"
    assert logged.data.tags["changed"] == "judge.predict"
    assert {used.dataset.name for used in logged.inputs.dataset_inputs} == {"a", "b", "c"}
    table = mlflow.load_table("candidates.json", run_ids=[run.id])
    assert list(zip(table["candidate"], table["score"], table["instructions"], strict=True)) == [(1, 0.8, BETTER)]
    assert BETTER in mlflow.artifacts.load_text(f"runs:/{run.id}/prompts_diff.txt")
    file = mlflow.artifacts.download_artifacts(f"runs:/{run.id}/compiled.json", dst_path=str(tmp_path))
    assert Compiled.load(file).held_out == result.held_out
    assert not client.search_traces(locations=[logged.info.experiment_id], run_id=run.id)
    assert mlflow.genai.search_prompts() == []


@pytest.fixture(scope="module")
def report() -> Report:
    program = scripted_program()
    return evaluate({"off": "none", "a=b?": "bank"}, locks(3), program=program, orders=2, embedder=HashEmbedder())


def test_an_evaluation_is_logged(tracker: Tracker, client: Any, report: Report, tmp_path: Path) -> None:
    with tracker.evaluation_run("mail", locks(3)) as run:
        run.log_report(report)
    logged = client.get_run(run.id)
    assert logged.data.tags["mlflow.runName"] == "evaluate mail"
    assert {"orders": "2", "baseline": "off", "arms": "off, a=b?"}.items() <= logged.data.params.items()
    metrics = logged.data.metrics
    assert metrics["success.off"] == pytest.approx(1 / 3)
    assert metrics["difference.a_b_"] == report.comparisons["a=b?"].difference.mean
    assert {"difference.a_b_.low", "tokens", "errors", "seconds"} <= metrics.keys()
    assert logged.data.tags["verdict.a_b_"] == "UNRESOLVED"
    assert list(mlflow.load_table("arms.json", run_ids=[run.id])["arm"]) == ["off", "a=b?"]
    files = {each.path for each in client.list_artifacts(run.id)}
    assert {"report.json", "report.html", "report.md", "learning_curve.svg", "arms.json"} <= files
    file = mlflow.artifacts.download_artifacts(f"runs:/{run.id}/report.json", dst_path=str(tmp_path))
    assert Report.load(file) == report


def test_an_evaluation_that_is_tracked_while_it_runs(tracker: Tracker, client: Any) -> None:
    with tracker.evaluation_run("live", locks(2)) as run:
        evaluate(
            ["none", "bank"],
            locks(2),
            program=scripted_program(),
            orders=1,
            embedder=HashEmbedder(),
            on_progress=run.on_progress,
        )
    assert client.get_run(run.id).data.metrics["done"] > 0
    assert MARKER not in str(client.get_run(run.id).inputs)


class _Broken(Compiled):
    def diff(self) -> str:
        return 7  # type: ignore[return-value]


def test_whatever_fails_after_the_start_costs_one_warning(
    tracker: Tracker, client: Any, streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    """An artifact store raises errors of its own library, and MLflow's own may be anything."""
    program = scripted_program()
    broken = _Broken(**dict(compiled(program)))
    with tracker.compile_run("bug", program, streams) as run:
        run.log_compiled(broken)
        run.log_compiled(broken)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"MLflow: run {run.id} is incomplete: ")
    assert client.get_run(run.id).info.status == "FINISHED"


def test_an_error_inside_ends_the_run_as_failed(tracker: Tracker, client: Any, streams: Streams) -> None:
    ids = []

    def broken() -> None:
        with tracker.compile_run("broken", scripted_program(), streams) as run:
            ids.append(run.id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert client.get_run(ids[0]).info.status == "FAILED"


def test_tracking_that_is_off_takes_every_report(streams: Streams, report: Report, bank: MemoryBank) -> None:
    tracker = Tracker(TrackingConfig(enabled=False))
    with tracker.compile_run("off", scripted_program(), streams) as run:
        run.on_progress(Progress(metric_calls=1, budget=2, best=0.5))
        run.log_compiled(compiled(scripted_program()))
    with tracker.evaluation_run("off", locks(2)) as other:
        other.log_report(report)
    assert (run.id, other.id) == (None, None)
