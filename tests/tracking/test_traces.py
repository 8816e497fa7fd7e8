"""One trace a task, of all its steps, without ground truth."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import mlflow
import pytest
from dspy import lm15

from rb_dspy import (
    Backbones,
    MaTTS,
    MemoryBank,
    Outcome,
    ReasoningBank,
    Task,
    TaskResult,
    Tracker,
    TrackingConfig,
    run_stream,
)
from rb_dspy.testing import HashEmbedder, Lock, locksmith, scripted_lm, scripted_program
from rb_dspy.tracking.traces import hide_ground_truth
from tests.served import Served, serving
from tests.tracking.helpers import MARKER, locks


@pytest.fixture
def place(store: str) -> Path:
    return Path(store.removeprefix("sqlite:///"))


@pytest.fixture
def tracer(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> Tracker:
    """An experiment of the test's own."""
    return Tracker(TrackingConfig(uri=store, experiment=request.node.name))


def traces() -> dict[str, Any]:
    """Task -> trace."""
    mlflow.flush_trace_async_logging()
    return {trace.info.tags["rb.task"]: trace for trace in mlflow.search_traces(return_type="list")}


def dump(place: Path) -> str:
    """The whole database as text."""
    with sqlite3.connect(place) as database:
        return "\n".join(database.iterdump())


@pytest.mark.parametrize("scaled", [False, True])
def test_each_task_is_a_trace_without_ground_truth(
    tracer: Tracker, place: Path, bank: MemoryBank, scaled: bool
) -> None:
    program = MaTTS(scripted_program(), k=2) if scaled else scripted_program()
    with tracer.stream_run(program, locks(2), bank, run_id="monday") as run:
        run_stream(program, locks(2), bank, run_id="monday", on_result=run.on_result)
    found = traces()
    assert found.keys() == {"lock/acme/0", "lock/acme/1"}
    trace = found["lock/acme/1"]
    assert trace.info.trace_metadata["mlflow.trace.session"] == "monday"
    assert trace.info.trace_metadata["mlflow.sourceRun"] == run.id
    assert trace.info.request_preview == "Open the lock that acme made, serial 1."
    assert trace.data.spans[0].outputs == {
        "answer": "0000",
        "verdict": "success",
        "learned": ["Use what worked"],
    }
    names = [span.name for span in trace.data.spans]
    assert names.count("Act.forward") == names.count("Judge.forward") == (2 if scaled else 1)
    assert {"Retrieve.forward", "ScriptedLM.__call__"} <= set(names)
    assert {name: value.value for name, value in _feedback(trace).items()} == {"solved": True}
    assert _feedback(found["lock/acme/0"])["solved"].value is False
    text = dump(place)
    assert "Open the lock that acme made" in text
    assert MARKER not in text
    assert "MemoryBank(" not in text
    files = [
        path for path in place.parent.rglob("*") if path.is_file() and "traces" in path.relative_to(place.parent).parts
    ]
    assert not [path for path in files if MARKER.encode() in path.read_bytes()]


def _feedback(trace: Any) -> dict[str, Any]:
    return {each.name: each for each in trace.info.assessments}


def test_no_trace_has_a_key(tracer: Tracker, place: Path, bank: MemoryBank) -> None:
    with serving(Served(play=locksmith)) as provider:
        headers = {"X-Key": f"header-{MARKER}"}
        secrets = {"api_key": f"key-{MARKER}", "aws_secret_access_key": f"aws-{MARKER}", "extra_headers": headers}
        lm = dspy.LM("openai/x", api_base=provider.address, **secrets, cache=False)
        program = ReasoningBank(backbones=Backbones(agent=lm), environments=Lock.make)
        with tracer.stream_run(program, locks(1), bank, run_id="keys") as run:
            run_stream(program, locks(1), bank, run_id="keys", on_result=run.on_result)
    assert len(traces()) == 1
    assert MARKER not in dump(place)


@pytest.mark.parametrize("own", [False, True])
def test_no_trace_has_a_key_that_an_error_repeats(
    tracer: Tracker, place: Path, bank: MemoryBank, own: bool, request: pytest.FixtureRequest
) -> None:
    if own:
        request.getfixturevalue("own_autolog")
    secret = "AIza" + f"SyD-{MARKER}-567890abcdefghijklmnopqrstu"[:35]

    def refuses(prompt: Any) -> Any:
        raise lm15.ServerError(f"not allowed: {secret}")

    program = scripted_program(refuses)
    with tracer.stream_run(program, locks(1), bank, run_id="echo") as run:
        report = run_stream(program, locks(1), bank, run_id="echo", on_result=run.on_result)
    assert "not allowed: [redacted]" in report.results[0].error
    assert len(traces()) == 1
    assert "not allowed: [redacted]" in dump(place)
    assert MARKER not in dump(place)


async def test_texts_and_tasks_done_side_by_side_have_a_trace_each(tracer: Tracker, bank: MemoryBank) -> None:
    program, stream = scripted_program(), locks(3)

    async def one(task: Any, run: Any) -> None:
        prediction = await program.acall(task=task, bank=bank, run_id="async")
        run.on_result(TaskResult(task, prediction, outcome=Outcome(reward=1.0, success=True)))

    with tracer.stream_run(program, stream, bank, run_id="async") as run:
        await asyncio.gather(*[one(task, run) for task in stream])
    found = traces()
    assert found.keys() == {task.id for task in stream}
    assert {trace.info.trace_metadata["mlflow.sourceRun"] for trace in found.values()} == {run.id}
    assert {_feedback(trace)["solved"].value for trace in found.values()} == {True}


def test_a_task_that_breaks_has_a_trace_without_ground_truth(tracer: Tracker, place: Path, bank: MemoryBank) -> None:
    def breaks(prompt: Any) -> Any:
        raise KeyboardInterrupt

    program = scripted_program(breaks)
    with pytest.raises(KeyboardInterrupt), tracer.stream_run(program, locks(2), bank, run_id="cut") as run:
        run_stream(program, locks(2), bank, run_id="cut", on_result=run.on_result)
    mlflow.flush_trace_async_logging()
    assert MARKER not in dump(place)


def test_two_runs_at_the_same_time_keep_their_traces_apart(tracer: Tracker, place: Path, bank: MemoryBank) -> None:
    """The second one begins inside the first and ends after it."""
    first_ended, second_begun = threading.Event(), threading.Event()
    ids: dict[str, str] = {}
    errors: list[Exception] = []

    def second() -> None:
        try:
            program, stream = scripted_program(), locks(1, maker="bolt")
            with tracer.stream_run(program, stream, bank, run_id="second") as run:
                second_begun.set()
                first_ended.wait(60)
                run_stream(program, stream, bank, run_id="second", on_result=run.on_result)
            ids["second"] = run.id
        except Exception as exc:  # noqa: BLE001
            errors.append(exc)
            second_begun.set()

    program = scripted_program()
    thread = threading.Thread(target=second)
    with tracer.stream_run(program, locks(2), bank, run_id="first") as run:
        thread.start()
        assert second_begun.wait(60)
        run_stream(program, locks(2), bank, run_id="first", on_result=run.on_result)
    ids["first"] = run.id
    first_ended.set()
    thread.join()
    assert not errors
    runs = {task: trace.info.trace_metadata["mlflow.sourceRun"] for task, trace in traces().items()}
    assert runs == {"lock/acme/0": ids["first"], "lock/acme/1": ids["first"], "lock/bolt/0": ids["second"]}
    assert MARKER not in dump(place)
    scripted_program()(task=locks(1)[0], bank=bank, learn=False)
    assert len(traces()) == 3  # tracing is off again


@pytest.fixture
def own_autolog() -> Iterator[list[str]]:
    """The caller's own autologging, with a span processor."""
    names: list[str] = []

    def note(span: Any) -> None:
        names.append(span.name)

    before = dspy.settings.track_usage
    mlflow.dspy.autolog(silent=True, log_evals=True)
    with mlflow.tracing.configure(span_processors=[note]):
        yield names
    mlflow.dspy.autolog(disable=True, silent=True)
    dspy.configure(track_usage=before)


def test_autologging_that_is_on_stays_on(tracer: Tracker, bank: MemoryBank, own_autolog: list[str]) -> None:
    program = scripted_program()
    callbacks = list(dspy.settings.callbacks)
    with tracer.stream_run(program, locks(1), bank, run_id="own") as run:
        run_stream(program, locks(1), bank, run_id="own", on_result=run.on_result)
    assert dspy.settings.callbacks == callbacks
    assert "ReasoningBank.forward" in own_autolog
    own_autolog.clear()
    program(task=locks(1)[0], bank=bank, learn=False)
    assert "ReasoningBank.forward" in own_autolog


def test_a_thread_that_does_not_own_the_settings_of_dspy_is_traced(tracer: Tracker, bank: MemoryBank) -> None:
    dspy.configure(track_usage=False)  # from now on they belong to this thread

    def elsewhere() -> None:
        program = scripted_program()
        with tracer.stream_run(program, locks(1), bank, run_id="thread") as run:
            run_stream(program, locks(1), bank, run_id="thread", on_result=run.on_result)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(traces()) == 1
    scripted_program()(task=locks(1)[0], bank=bank, learn=False)
    assert len(traces()) == 1


def test_what_cannot_be_read_is_not_stored() -> None:
    class Span:
        attributes: dict[str, Any] = {}  # noqa: RUF012
        stored: list[Any] = []  # noqa: RUF012

        @property
        def inputs(self) -> Any:
            raise ValueError(MARKER)

        outputs = inputs

        def set_inputs(self, value: Any) -> None:
            self.stored.append(value)

        set_outputs = set_attributes = set_inputs

    span = Span()
    hide_ground_truth(span)
    assert span.stored
    assert MARKER not in str(span.stored)


A36 = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
SECRETS = {  # in parts, so that no scanner of this repository takes them for keys: what is shown -> what must not stay
    "key sk-" + "proj-ABCDEFGH12345678": "ABCDEFGH12345678",
    "AKIA" + "IOSFODNN7EXAMPLE": "IOSFODNN7EXAMPLE",
    "ghp_" + A36: A36,
    "glpat-" + A36[:20]: A36[:20],
    "xoxb-" + "1234567890-abcdefghij": "1234567890-abcdefghij",
    "AIza" + "SyD-1234567890abcdefghijklmnopqrstu": "1234567890abcdefghijk",
    "sk_" + "live_" + A36[10:34]: A36[10:34],
    "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + A36: "eyJzdWIiOiIxMjM0In0",
    "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEowQ4711\n-----END RSA " + "PRIVATE KEY-----": "MIIEowQ4711",
    "postgresql://me:hunter2secret@host/bank": "hunter2secret",
    "Authorization: Bearer " + "abcdef.ghijkl4711": "abcdef.ghijkl4711",
    "the variable is cred-of-this-shell": "cred-of-this-shell",
    "the credential is Mellon": "Mellon",
}
MISSED = {"Mellon"}
"""Nothing tells a secret in plain words from another word."""


class Leaky:
    """Shows the secrets, and whatever the agent does."""

    action_rules = "Say something."

    def reset(self, task: Any) -> str:
        return "\n".join(["The settings are:", *SECRETS])

    def step(self, action: str) -> tuple[str, bool]:
        return f"You said: {action}", True

    def valid_actions(self) -> None:
        return None

    def answer(self) -> str:
        return "\n".join(SECRETS)

    def outcome(self) -> Outcome:
        return Outcome(reward=1.0, success=True)

    def close(self) -> None:
        return None


@pytest.mark.parametrize("scaled", [False, True])
def test_no_secret_gets_into_a_prompt_a_bank_or_a_record(
    tracer: Tracker, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: bool
) -> None:
    monkeypatch.setenv("SHELL_CRED", "cred-of-this-shell")

    def script(prompt: Any) -> dict[str, Any]:
        if "action" in prompt.wants:
            return {"thought": "Repeat it.", "action": " ".join(SECRETS)}
        if "label" in prompt.wants:
            return {"reasons": "It was said.", "label": "success"}
        if "choice" in prompt.wants:
            return {"analysis": "Any.", "choice": 1}
        said = next(value for name in ("trajectory", "attempts") if name in prompt for value in [prompt[name]])
        return {"analysis": "Copy.", "memory_items": [{"title": "Settings", "description": "", "content": said}]}

    lm = scripted_lm(script)
    with MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=HashEmbedder()) as bank:
        program: Any = ReasoningBank(backbones={"agent": lm}, environments=lambda task, rollout: Leaky())
        program = MaTTS(program, k=2) if scaled else program
        tasks = [Task(id="t1", instruction="Look at the settings: " + next(iter(SECRETS)))]
        with tracer.stream_run(program, tasks, bank, run_id="leak") as run:
            report = run_stream(program, tasks, bank, run_id="leak", on_result=run.on_result)
        bank.export_jsonl(tmp_path / "export.jsonl")
        assert len(bank) >= 1
        (experience,) = bank.experiences()
    (result,) = report.results
    assert next(iter(SECRETS)) in str(result.prediction and result.prediction.answer)  # the caller gets it all
    prompts = [str(prompt) for prompt in lm.engine.prompts if "action" not in prompt.wants]
    mlflow.flush_trace_async_logging()
    stored = {
        "prompts": "\n".join(prompts),
        "bank": repr(experience) + repr(experience.items),
        "export": (tmp_path / "export.jsonl").read_text(),
        "record": str(result.row()),
        "MLflow": dump(place) + "".join(str(trace.to_json()) for trace in traces().values()),
    }
    for where, text in stored.items():
        assert {secret for secret in SECRETS.values() if secret in text} <= MISSED, where
    assert "Mellon" in stored["prompts"]
