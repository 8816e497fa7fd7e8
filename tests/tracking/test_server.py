"""A tracking server by its address keeps what a file does: runs, artifacts, traces, prompts, models."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, ReasoningBank, TaskStream, run_stream
from rb_dspy.compile.result import Compiled
from rb_dspy.config import TrackingConfig
from rb_dspy.errors import InputError
from rb_dspy.stream import Streams
from rb_dspy.testing import HashEmbedder, Lock
from rb_dspy.tracking import Tracker
from tests.tracking.made import BETTER, capitals, compiled, known, locks, questions
from tests.tracking.servers import tracking_server
from tests.worlds import backbones

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server(empty_store: Path, folder: Path) -> Iterator[str]:
    with tracking_server(folder, empty_store) as (uri, _):
        yield uri


@pytest.fixture(scope="module")
def tracker(server: str) -> Tracker:
    return Tracker(TrackingConfig(uri=server, experiment="remote"))


@pytest.fixture(autouse=True)
def _nothing_is_lost_or_printed(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, "rb_dspy"):
        yield
    assert capsys.readouterr().out == ""
    assert [record.getMessage() for record in caplog.records if record.name == "rb_dspy"] == []


def test_a_stream_with_its_traces(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(2), bank, run_id="remote-1") as going:
        going.finish(run_stream(program, locks(2), bank, run_id="remote-1", on_result=going.on_result), bank)
    run = client.get_run(going.id)
    assert (run.info.status, run.data.metrics["total/solved"]) == ("FINISHED", 1)
    assert run.inputs.dataset_inputs[0].dataset.digest == locks(2).digest
    assert {file.path for file in client.list_artifacts(going.id)} == {
        "bank.jsonl",
        "plots",
        "prompts.json",
        "tasks.json",
    }
    traces = client.search_traces(locations=[run.info.experiment_id], run_id=going.id)
    assert sorted(len(trace.data.spans) for trace in traces) == [8, 8]
    assert {trace.info.trace_metadata["mlflow.trace.session"] for trace in traces} == {"remote-1"}
    assert [(trace.info.token_usage["total_tokens"] > 0, trace.info.cost) for trace in traces] == [(True, None)] * 2


def test_a_compile_with_its_candidates_and_prompts(tracker: Tracker, client: Any, tmp_path: Path) -> None:
    program = ReasoningBank(backbones=backbones(questions))
    tasks = capitals(3).tasks
    parts = [TaskStream(name, tasks[n : n + 1]) for n, name in enumerate(("compile", "dev", "held-out"))]
    with tracker.compile_run("far", program, Streams(*parts, check=False)) as going:
        going.log_compiled(compiled(program))
    run = client.get_run(going.id)
    assert (run.data.metrics["held_out/after"], run.data.tags["rb.clean"]) == (0.7, "true")
    children = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{going.id}'")
    assert {child.info.run_name: child.info.status for child in children} == {
        "candidate 0": "FINISHED",
        "candidate 1": "FINISHED",
    }
    again = Compiled.load(client.download_artifacts(going.id, "compiled.json", str(tmp_path)))
    assert again.prompts_after["judge.predict"]["instructions"] == BETTER
    assert client.search_prompt_versions("far.judge.predict")[0].template == BETTER


def test_a_model_is_registered_and_loaded(tracker: Tracker, client: Any, folder: Path, tmp_path: Path) -> None:
    """Nothing of it holds a path of the machine that registered it."""
    program = ReasoningBank(backbones=backbones(questions))
    result = compiled(program)
    with MemoryBank.open(None, scope="capitals", embedder=HashEmbedder()) as lessons:
        run_stream(program, capitals(2), lessons, run_id="before")
        tracker.register(
            result,
            program,
            "atlas",
            backbones="tests.tracking.made:known",
            bank=lessons,
            embedder="rb_dspy.testing:HashEmbedder",
        )
    version = client.get_model_version_by_alias("atlas", "champion")
    (answer,) = tracker.load("atlas").predict([{"instruction": "What is the capital of Peru?"}])
    assert (answer.answer, answer.error) == ("Lima", "")
    assert len(answer.lessons) == 1
    (answer,) = tracker.load("atlas", backbones=known()).predict([{"instruction": "What is the capital of Kenya?"}])
    assert answer.answer == "Nairobi"
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    said = json.dumps([dict(model.tags), dict(model.params), dict(version.tags)])
    files = [file for file in (folder / "artifacts").rglob("*") if file.is_file() and model.model_id in str(file)]
    assert {"MLmodel", "state.json", "bank.jsonl", "entry.py"} <= {file.name for file in files}
    for path in (ROOT, folder, tmp_path, Path.cwd()):
        assert str(path) not in said
        assert [file.name for file in files if str(path).encode() in file.read_bytes()] == []


def test_what_is_registered_already_gets_another_version(tracker: Tracker, client: Any) -> None:
    program, embedder = ReasoningBank(backbones=backbones(questions)), "rb_dspy.testing:HashEmbedder"
    assert [tracker.register(None, program, "twice", embedder=embedder) for _ in range(2)] == [1, 2]
    client.register_prompt("greeting", "Say hello.")
    with pytest.raises(InputError, match=r"^registering greeting: .*already taken by a prompt"):
        tracker.register(None, program, "greeting", embedder=embedder)
