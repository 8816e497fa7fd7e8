"""Under MLflow, one call is one trace, and everything that a rollout did hangs under it."""

from __future__ import annotations

import inspect
import os
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsMode
from tests.matts.helpers import House, Script, booth_of, booth_task, called, role_of, scaled, slow_lm


@pytest.fixture(scope="module")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the module: its first use takes seconds."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def mlflow(_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with automatic logging, and an experiment of the test's own; leaves nothing switched on."""
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        with warnings.catch_warnings(action="ignore"):  # theirs, at import and at the store's first use
            import mlflow

            mlflow.set_tracking_uri(f"sqlite:///{_store / 'mlflow.db'}")
            monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", mlflow.create_experiment(uuid.uuid4().hex))
            mlflow.dspy.autolog()
        yield mlflow
    finally:
        from mlflow.utils.autologging_utils.safety import revert_patches

        mlflow.dspy.autolog(disable=True, silent=True)
        revert_patches("dspy")  # of Evaluate and the optimizers, which switching off leaves
        mlflow.set_tracking_uri(None)


def _delay(prompt: Any) -> float:
    return 0.004 * (4 - int(booth_of(prompt.text))) if role_of(prompt) in ("agent", "judge") else 0.0


@pytest.mark.parametrize(
    ("mode", "asynchronous", "calls"),
    [("parallel", False, 2), ("parallel", True, 1), ("sequential", False, 1)],
    ids=["threads", "asyncio", "sequential"],
)
async def test_every_rollout_hangs_under_the_call_that_began_it(
    mlflow: Any, bank: MemoryBank, mode: MattsMode, asynchronous: bool, calls: int
) -> None:
    run = scaled(slow_lm(Script({"1": "right"}), _delay), House(steps=2, reopens=True), k=3, mode=mode)
    for number in range(calls):
        await called(run, asynchronous, task=booth_task(number), bank=bank)
    found = mlflow.search_traces(return_type="list")
    assert len(found) == calls  # each with one root
    for trace in found:
        spans = {span.span_id: span for span in trace.data.spans}
        names = [span.name for span in spans.values()]
        (root,) = [span for span in spans.values() if span.parent_id is None]
        assert root.name == "MaTTS.forward"
        assert all(span.parent_id in spans for span in spans.values() if span is not root)
        assert {span.status.status_code.value for span in spans.values()} == {"OK"}
        if mode == "sequential":
            assert (names.count("Refine.forward"), names.count("Predict.forward")) == (1, 2 + 2 + 1 + 1)
            continue
        acts = [span for span in spans.values() if span.name == "Act.forward"]
        assert len(acts) == 3
        assert {act.parent_id for act in acts} == {root.span_id}
        for act in acts:
            turns = [span for span in spans.values() if span.parent_id == act.span_id and "Predict" in span.name]
            assert len(turns) == 2
            assert {booth_of(str(turn.inputs["observation"])) for turn in turns} == {str(act.inputs["args"][3])}
        judges = [span for span in spans.values() if span.name == "Judge.forward"]
        assert (len(judges), {judge.parent_id for judge in judges}) == (3, {root.span_id})


def test_nothing_of_it_is_left_switched_on() -> None:
    """Last in this module, to see what the others leave; it must hold wherever it runs."""
    assert dspy.settings.callbacks == []
    assert not dspy.settings.track_usage
    assert "MLFLOW_TRACKING_URI" not in os.environ
    for patched in (dspy.Evaluate.__call__, dspy.BootstrapFewShot.compile):
        assert (
            "mlflow"
            not in inspect.unwrap(patched, stop=lambda f: "mlflow" in f.__code__.co_filename).__code__.co_filename
        )
