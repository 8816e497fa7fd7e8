"""Streams of tasks with one bank: order, numbers, resuming, and what ends a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from rb_dspy import (
    Backbones,
    MaTTS,
    MemoryBank,
    ReasoningBank,
    RunReport,
    Task,
    TaskResult,
    TaskStream,
    errors,
    run_stream,
    split_streams,
)
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.scenarios.world import Spy, contents, keypad, keypads, learned_tasks, play, program


def fails_on(serial: int, error: Exception, role: str = "agent") -> Spy:
    def broken(prompt: Prompt) -> Reply:
        if f"serial {serial}." in prompt.text:
            raise error
        return play(prompt)

    return Spy({role: broken})


@pytest.mark.parametrize("form", ["list", "stream", "jsonl"])
def test_tasks_are_done_in_order_whatever_they_come_as(bank: MemoryBank, tmp_path: Path, form: str) -> None:
    tasks = [keypad(number) for number in (3, 1, 2)]
    stream: Any = tasks
    if form != "list":
        stream = TaskStream("mine", tuple(tasks))
    if form == "jsonl":
        (tmp_path / "tasks.jsonl").write_text("\n".join(task.model_dump_json() for task in tasks))
        stream = TaskStream.from_jsonl(tmp_path / "tasks.jsonl")
        assert list(stream) == tasks
    told: list[TaskResult] = []
    report = run_stream(program(), stream, bank, run_id="r", on_result=told.append)

    assert isinstance(report, RunReport)
    assert [result.task for result in report.results] == tasks
    assert told == report.results
    assert learned_tasks(bank, "r") == [task.id for task in tasks]
    assert [len(result.prediction.memory.items) for result in report.results] == [0, 1, 1]


def test_a_named_stream_is_the_same_for_the_same_seed() -> None:
    one, two, other = (TaskStream.named("reasoning-gym", n=4, seed=seed) for seed in (0, 0, 1))
    assert len(one) == 4
    assert one.tasks == two.tasks != other.tasks
    assert all(task.env == "reasoning-gym" for task in one)


def test_texts_are_tasks_of_a_stream(bank: MemoryBank) -> None:
    spy = Spy({"agent": lambda prompt: {"thought": "Easy.", "action": "7"}})
    run = ReasoningBank(backbones=Backbones(agent=scripted_lm(spy)))
    report = run_stream(run, ["What is 3 and 4?", "What is 2 and 5?"], bank, run_id="r")
    assert [result.prediction.answer for result in report.results] == ["7", "7"]
    assert [result.outcome for result in report.results] == [None, None], "nobody knows what is right"
    assert report.summary().success_rate is None


def test_a_summary_counts_ground_truth_beside_the_verdict(bank: MemoryBank) -> None:
    def optimist(prompt: Prompt) -> Reply:
        return {"reasons": "Sure.", "label": "success"}

    tasks = [keypad(0), keypad(1), keypad(2, code="9999"), keypad(3, code="9999")]
    summary = run_stream(program(Spy({"judge": optimist})), tasks, bank, run_id="r").summary()
    assert (summary.tasks, summary.scored, summary.solved, summary.success_rate) == (4, 4, 2, 0.5)
    assert (summary.judged, summary.agreements, summary.judge_agreement) == (4, 2, 0.5)
    assert summary.mean_steps == 1
    assert {role: used.calls for role, used in summary.usage.items()} == {"agent": 4, "judge": 4, "distiller": 4}
    assert json.loads(summary.model_dump_json())["success_rate"] == 0.5


def test_a_report_is_rows_for_a_table(bank: MemoryBank) -> None:
    rows = run_stream(program(), [keypad(0), keypad(1, code="9999")], bank, run_id="r").rows()
    assert [(row["run_id"], row["position"], row["task"]) for row in rows] == [
        ("r", 1, "keypad/Abus/0"),
        ("r", 2, "keypad/Abus/1"),
    ]
    assert [(row["solved"], row["verdict"], row["steps"], row["error"]) for row in rows] == [
        (True, "success", 1, ""),
        (False, "failure", 1, ""),
    ]
    assert [row["learned"] for row in rows] == [["Use the code"], ["Do not guess"]]
    assert json.loads(json.dumps(rows)) == rows


def test_a_run_that_goes_on_skips_what_it_has_learned_from(bank: MemoryBank) -> None:
    tasks = keypads(4)
    run_stream(program(), tasks[:2], bank, run_id="r")
    spy = Spy()
    report = run_stream(program(spy), tasks, bank, run_id="r")
    assert [result.task for result in report.results] == tasks[2:]
    assert report.summary().skipped == 2
    assert spy.roles_asked().count("agent") == 2
    assert learned_tasks(bank) == [task.id for task in tasks]


def test_another_run_does_the_tasks_again(bank: MemoryBank) -> None:
    run_stream(program(), keypads(2), bank, run_id="monday")
    report = run_stream(program(), keypads(2), bank, run_id="tuesday")
    assert len(report.results) == 2
    assert learned_tasks(bank, "tuesday") == [task.id for task in keypads(2)]


@pytest.mark.parametrize("scale", [False, True])
def test_without_learning_every_task_is_done_and_nothing_is_written(bank: MemoryBank, scale: bool) -> None:
    run_stream(program(), keypads(1), bank, run_id="r")
    before, spy = contents(bank), Spy()
    run = MaTTS(program(spy), k=2) if scale else program(spy)
    summary = run_stream(run, keypads(3), bank, run_id="r", learn=False).summary()
    assert (summary.tasks, summary.solved, contents(bank), bank.pending()) == (3, 3, before, [])
    assert set(spy.roles_asked()) <= {"agent", "selector"}


@pytest.mark.parametrize("role", ["agent", "judge", "distiller"])
def test_an_infrastructure_error_costs_one_task_and_the_run_goes_on(bank: MemoryBank, role: str) -> None:
    report = run_stream(program(fails_on(1, lm15.ServerError("overloaded"), role)), keypads(3), bank, run_id="r")
    assert ["overloaded" in result.error for result in report.results] == [False, True, False]
    assert report.summary().infrastructure_errors == 1
    assert report.summary().scored == 2, "a task that broke is no failure"
    assert learned_tasks(bank) == ["keypad/Abus/0", "keypad/Abus/2"]
    assert [pending.task.id for pending in bank.pending()] == ([] if role == "agent" else ["keypad/Abus/1"])


@pytest.mark.parametrize("error", [lm15.AuthError("bad key"), lm15.BillingError("no credit")])
def test_a_model_that_cannot_be_used_ends_the_run(bank: MemoryBank, error: Exception) -> None:
    with pytest.raises(errors.BackboneError):
        run_stream(program(fails_on(1, error)), keypads(3), bank, run_id="r")
    assert learned_tasks(bank) == ["keypad/Abus/0"]
    assert len(run_stream(program(), keypads(3), bank, run_id="r").results) == 2


def test_a_server_that_is_down_ends_the_run_before_it_uses_up_the_stream(bank: MemoryBank) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.TransportError("connection refused")

    told: list[TaskResult] = []
    with pytest.raises(errors.InfrastructureError):
        run_stream(program(down), keypads(20), bank, run_id="r", on_result=told.append)
    assert 0 < len(told) < 10
    assert bank.experiences() == []


def test_what_is_no_stream_no_bank_or_no_name_is_refused_before_a_model_is_asked(bank: MemoryBank) -> None:
    spy = Spy()
    run: Any = program(spy)
    twice = [keypad(1), keypad(1)]
    for call in (
        lambda: run_stream(run, "tasks.jsonl", bank, run_id="r"),  # type: ignore[arg-type]
        lambda: run_stream(run, twice, bank, run_id="r"),
        lambda: run_stream(run, keypads(1), bank, run_id=""),
        lambda: run_stream(run, keypads(1), "bank.sqlite", run_id="r"),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.InputError):
            call()
    assert spy.prompts == []


@pytest.mark.parametrize(
    "content", [b"", b"{oops\n", b"[1]\n", b'{"instruction": ""}\n', b'{"instruktion": "x"}\n', b"\xff\xfe", None]
)
def test_a_bad_file_of_tasks_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tasks.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(errors.InputError):
        TaskStream.from_jsonl(file)


def test_a_split_shares_no_template() -> None:
    texts = (
        "Refund the parcel that came twice",
        "Who owns the alarm in the cellar?",
        "Translate this menu into Welsh",
        "Plan a route around the flooded bridge",
        "Which of my bees are ill?",
        "Sort these invoices by postcode",
    )
    tasks = tuple(
        Task(id=f"{kind}/{number}", instruction=f"{text}, {number}.", template=str(kind))
        for kind, text in enumerate(texts)
        for number in range(3)
    )
    parts = split_streams(TaskStream("doors", tasks))
    groups = [{task.template for task in part} for part in (parts.compile, parts.dev, parts.held_out)]
    assert all(groups)
    assert groups[0] & groups[1] == groups[0] & groups[2] == groups[1] & groups[2] == set()
    assert sum(map(len, (parts.compile, parts.dev, parts.held_out))) == len(tasks)
