"""Streams of tasks, and running a program over them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspy import lm15
from hypothesis import given, settings, strategies as st

from rb_dspy import MemoryBank, ReasoningBank, RunReport, StreamProgram, Task, TaskResult, TaskStream, run_stream
from rb_dspy.config import MattsMode, ProgramConfig, RetrieveConfig
from rb_dspy.errors import BackboneError, InfrastructureError, InputError, InvalidTask
from rb_dspy.matts import MaTTS
from rb_dspy.protocols import Vectors
from rb_dspy.schema import MemoryDraft, Step, Trajectory, Verdict
from rb_dspy.steps import as_task
from rb_dspy.steps.events import Appended, listening
from rb_dspy.stream import SHARES, split_templates, stream_names
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply
from tests.worlds import answers, backbones, item, lock, prompts


@pytest.mark.parametrize("name", ["reasoning-gym", "reasoning-gym-small", "twc", "cookingworld"])
def test_named_streams_are_the_same_for_a_seed_and_differ_between_seeds(name: str) -> None:
    one, same, other = (TaskStream.named(name, n=6, seed=seed) for seed in (3, 3, 4))
    assert one == same
    assert len(one) == 6
    assert len({task.id for task in one}) == 6
    assert {task.id for task in one} != {task.id for task in other}


def test_no_templates_are_none_and_not_all() -> None:
    assert len(TaskStream.named("reasoning-gym-small", n=3, templates=[])) == 0


def test_a_stream_goes_on_after_the_tasks_that_are_done() -> None:
    whole = TaskStream.named("reasoning-gym-small", n=10)
    rest = TaskStream.named("reasoning-gym-small", n=6, skip={task.id for task in whole.tasks[:4]})
    assert rest.tasks == whole.tasks[4:]


def test_splits_share_no_template_and_miss_none() -> None:
    parts = {split: {t.template for t in TaskStream.named("reasoning-gym", n=120, split=split)} for split in SHARES}  # type: ignore[arg-type]
    assert all(parts.values())
    assert sum(len(part) for part in parts.values()) == len(set().union(*parts.values()))


@given(st.lists(st.text(min_size=1), unique=True, max_size=60))
def test_splits_are_a_partition_in_order(templates: list[str]) -> None:
    parts = [split_templates(templates, split) for split in SHARES]  # type: ignore[arg-type]
    assert sorted(itertools.chain.from_iterable(parts)) == sorted(templates)
    for part in parts:
        assert all(templates.index(a) < templates.index(b) for a, b in itertools.pairwise(part))


def test_unknown_names_say_what_is_known() -> None:
    with pytest.raises(InputError, match=r"unknown stream 'chess'.*twc"):
        TaskStream.named("chess", n=1)
    with pytest.raises(InputError, match="nonsense"):
        TaskStream.named("reasoning-gym", n=1, templates=["nonsense"])
    assert {"reasoning-gym", "reasoning-gym-small", "twc", "cookingworld"} <= set(stream_names())


def test_tasks_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"instruction": "One"}\n\n{"id": "b", "instruction": "Two", "env_args": {"answer": "2"}}\n')
    stream = TaskStream.from_jsonl(file)
    one, b = (task.id for task in stream)
    assert b == "b"
    assert one.startswith("mine/")
    assert [task.id for task in TaskStream.from_jsonl(file, skip={"b"})] == [one]
    assert stream.name == "mine"


def test_tasks_of_a_file_keep_their_ids_when_others_come_and_never_have_those_of_others(tmp_path: Path) -> None:
    def ids(folder: str, *lines: dict[str, Any]) -> list[str]:
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "tasks.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
        return [task.id for task in TaskStream.from_jsonl(file)]

    add, spain = {"instruction": "What is 2+2?", "env_args": {"answer": "4"}}, {"instruction": "The capital of Spain?"}
    (first,) = ids("a", add)
    assert ids("b", spain, {**add, "template": "sums"}, add) == [*ids("c", spain), first, f"{first}-2"]
    assert ids("d", {**add, "env_args": {"answer": "5"}}) != [first]
    made = TaskStream.from_jsonl(tmp_path / "b" / "tasks.jsonl")
    assert TaskStream.from_dataset(made.to_dataset().remove_columns("id"), name="tasks").tasks == made.tasks


def test_a_file_whose_name_is_no_name_of_a_task_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a\u200bb.jsonl"
    file.write_text('{"instruction": "x"}')
    with pytest.raises(InvalidTask, match="expected 1 to 500 visible characters"):
        TaskStream.from_jsonl(file)


@pytest.mark.parametrize("n", [-1, "2", 1.5, True])
def test_a_number_of_tasks_that_is_none_is_refused(tmp_path: Path, n: Any) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"instruction": "x"}')
    for call in (lambda: TaskStream.from_jsonl(file, n=n), lambda: TaskStream.named("reasoning-gym-small", n=n)):
        with pytest.raises(InputError, match=r"expected a number of tasks, 0 or more$"):
            call()
    assert len(TaskStream.from_jsonl(file, n=np.int64(1))) == 1


def test_a_stream_is_not_written_over_a_bank(tmp_path: Path) -> None:
    with MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=HashEmbedder()):
        pass
    stream = TaskStream("s", (Task(id="a", instruction="x"),))
    for write in (stream.to_jsonl, stream.to_parquet):
        with pytest.raises(InputError, match=r"bank\.sqlite: a database, perhaps a bank, or a file of one"):
            write(tmp_path / "bank.sqlite")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", InputError, ":1: the file is empty; expected a JSON object with 'instruction'"),
        (b"{oops\n", InputError, ":1: not JSON"),
        (b"[1]\n", InputError, ":1: list instead of an object; expected a JSON object"),
        (b'{"instruction": "x"}\n{"instruction": ""}\n', InvalidTask, ":2: the instruction is empty"),
        (b'{"instruction": "a\\u200bb"}\n', InvalidTask, "invisible"),
        (b'{"instruction": "' + b"x" * 1_000_000 + b'"}\n', InvalidTask, "1,000,000 characters"),
        (b'{"instruktion": "x"}\n', InvalidTask, ":1: instruction: field required"),
        (b'{"instruction": "x", "wat": 1}\n', InvalidTask, "wat"),
        (b'{"id": "a", "instruction": "x"}\n{"id": "a", "instruction": "y"}\n', InputError, "'a' stands 2 times"),
        (b"\xff\xfe", InputError, "not UTF-8"),
        (None, InputError, "no such file"),
    ],
)
def test_bad_files_are_named_with_their_line(
    tmp_path: Path, content: bytes | None, error: type[Exception], message: str
) -> None:
    file = tmp_path / "tasks.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(error) as caught:
        TaskStream.from_jsonl(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_reports_ground_truth_beside_the_verdict(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    tasks = [lock("Abus", n, code="0000" if n == 2 else "4711") for n in range(4)]
    report = run_stream(program, tasks, bank, run_id="r")
    summary = report.summary()
    assert [result.outcome.success for result in report.results if result.outcome] == [False, False, True, False]
    assert (summary.solved, summary.scored, summary.success_rate) == (1, 4, 0.25)
    assert (summary.agreements, summary.judge_agreement) == (4, 1.0)
    assert summary.usage["agent"].calls == 4
    assert summary.mean_steps == 1


def test_a_task_that_breaks_is_recorded_apart_and_the_run_goes_on(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "serial 1." in prompt.text and "action" in prompt.wants:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    report = run_stream(program, [lock("Abus", n) for n in range(3)], bank, run_id="r")
    assert ["overloaded" in result.error for result in report.results] == [False, True, False]
    assert report.summary().scored == 2
    assert report.summary().infrastructure_errors == 1
    assert bank.seen_tasks() == {"lock/Abus/0", "lock/Abus/2"}


def test_a_run_as_rows_for_a_table(bank: MemoryBank) -> None:
    class Breaks(Lock):
        def step(self, action: str) -> tuple[str, bool]:
            raise OSError("gone")

    def made(task: Task, rollout_id: str) -> Lock:
        return (Breaks if task.id == "t2" else Lock).make(task, rollout_id)

    tasks = [lock("Abus", 1), lock("Abus", 2).model_copy(update={"id": "t2", "template": "locks"}), lock("Abus", 3)]
    program = ReasoningBank(backbones=backbones(), environments=made)
    report = run_stream(program, tasks, bank, run_id="r")
    rows = report.rows()
    assert [row["position"] for row in rows] == [1, 2, 3]
    assert [row["task"] for row in rows] == [task.id for task in tasks]
    assert [row["solved"] for row in rows] == [r.outcome.success if r.outcome else None for r in report.results]
    assert [row["verdict"] for row in rows] == [result.label for result in report.results]
    assert (rows[1]["template"], rows[1]["steps"], rows[1]["rollouts"]) == ("locks", None, 0)
    assert "gone" in rows[1]["error"]
    assert sum(len(row["learned"]) for row in rows) == report.summary().items > 0
    assert rows[2]["recalled"]
    used = report.summary().usage.values()
    assert sum(row["tokens"] for row in rows) == sum(each.prompt_tokens + each.completion_tokens for each in used)
    assert json.loads(json.dumps(rows)) == rows


def test_rows_of_all_parts_of_a_run_that_was_stopped_have_its_name_and_their_places(bank: MemoryBank) -> None:
    tasks, written = [lock("Abus", n) for n in range(5)], []

    def note(result: TaskResult) -> None:
        written.append(result.row())
        if len(written) == 2:
            raise KeyboardInterrupt

    program = ReasoningBank(backbones=backbones(), environments=Lock.make)

    def part() -> list[dict[str, Any]]:
        return run_stream(
            program, tasks, bank, run_id="monday", on_result=note, skip=lambda task: task == tasks[3]
        ).rows()

    with pytest.raises(KeyboardInterrupt):
        part()
    rows = part()
    assert rows == written[2:]
    assert [(row["run_id"], row["position"], row["task"]) for row in written] == [
        ("monday", number + 1, tasks[number].id) for number in (0, 1, 2, 4)
    ]


def test_rows_of_results_made_by_hand_count_them() -> None:
    report = RunReport("mine", [TaskResult(lock("Abus", n)) for n in range(2)])
    assert [(row["run_id"], row["position"]) for row in report.rows()] == [("mine", 1), ("mine", 2)]
    assert report.results[0].row()["position"] is None


def test_rows_of_a_stream_that_an_optimizer_runs_have_their_places(bank: MemoryBank) -> None:
    program = StreamProgram(ReasoningBank(backbones=backbones(), environments=Lock.make))
    done = program(stream=TaskStream("locks", tuple(lock("Abus", n) for n in range(3))), bank=bank)
    assert [row["position"] for row in done.report.rows()] == [1, 2, 3]


def test_a_refused_key_ends_the_run_and_keeps_what_was_done(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "serial 1." in prompt.text:
            raise lm15.BillingError("no credit")
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    with pytest.raises(BackboneError, match="no credit"):
        run_stream(program, [lock("Abus", n) for n in range(3)], bank, run_id="r")
    assert bank.seen_tasks() == {"lock/Abus/0"}


def test_a_verdict_that_is_wrong_lowers_the_agreement(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        return {"reasons": "Sure.", "label": "success"} if "label" in prompt.wants else answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    summary = run_stream(program, [lock("Abus", 0, code="4711")], bank, run_id="r").summary()
    assert (summary.agreements, summary.judged) == (0, 1)
    json.dumps(summary.model_dump())


def test_a_server_that_is_down_ends_the_run_before_it_uses_up_the_stream(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.TransportError("connection refused")

    results: list[TaskResult] = []
    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    with pytest.raises(InfrastructureError, match=r"3 tasks in a row broke; the last one:.*connection refused"):
        run_stream(program, [lock("Abus", n) for n in range(9)], bank, run_id="r", on_result=results.append)
    assert len(results) == 3
    assert bank.seen_tasks() == set()


def test_a_rollout_of_an_earlier_run_is_learned_from_and_not_done_again(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants and "serial 1." in prompt.text:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    tasks = [lock("Abus", n) for n in range(3)]
    first = run_stream(ReasoningBank(backbones=backbones(script), environments=Lock.make), tasks, bank, run_id="r")
    assert [bool(result.error) for result in first.results] == [False, True, False]
    assert [ingest.task.id for ingest in bank.pending()] == ["lock/Abus/1"]
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    again = run_stream(program, [tasks[1]], bank, run_id="s", resume="all")
    (result,) = again.results
    assert (result.resumed, result.error, result.outcome) == (True, "", None)
    assert "agent" not in result.usage, "which was counted with the task that broke"
    assert bank.seen_tasks() == {task.id for task in tasks}
    assert (again.summary().scored, again.summary().tasks) == (0, 1)
    assert [item.title for item in result.prediction.memory.items] == [
        item.title for item in first.results[2].prediction.memory.items
    ]
    assert result.prediction.memory.items


def test_what_a_rollout_had_used_is_told_once_however_often_learning_from_it_is_tried(bank: MemoryBank) -> None:
    """Broken at the judge, which tells it; then judged and stopped at the distiller; then learned from."""

    def judge_down(prompt: Prompt) -> Reply:
        if "label" in prompt.wants:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    def stopped(prompt: Prompt) -> Reply:
        if "memory_items" in prompt.wants:
            raise KeyboardInterrupt
        return answers(prompt)

    def run(script: Callable[[Prompt], Reply]) -> Counter[str]:
        report = run_stream(
            ReasoningBank(backbones=backbones(script), environments=Lock.make), [lock("Abus", 1)], bank, run_id="r"
        )
        return Counter({role: used.calls for role, used in report.summary().usage.items()})

    first = run(judge_down)
    with pytest.raises(KeyboardInterrupt):
        run(stopped)
    last = run(answers)
    assert first["agent"] == len(bank.experiences()[0].trajectories[0].steps) == 1
    assert last == {"distiller": 1}


@pytest.mark.parametrize("scale", [False, True])
def test_a_run_that_learns_nothing_does_every_task_with_what_there_is(bank: MemoryBank, scale: bool) -> None:
    alone = ReasoningBank(backbones=backbones(), environments=Lock.make)
    program = MaTTS(alone, k=2) if scale else alone
    tasks = [lock("Abus", n) for n in range(3)]
    run_stream(alone, tasks[:1], bank, run_id="r")
    taught = bank.experiences()
    for _ in range(2):
        report = run_stream(program, tasks, bank, run_id="r", learn=False)
        summary = report.summary()
        assert (summary.tasks, summary.scored, summary.skipped) == (3, 3, 0)
        assert (summary.judged, summary.unknown_verdicts, summary.items) == (0, 0, 0)
        assert set(summary.usage) <= {"agent", "selector"}
        assert [bool(result.prediction.memory.items) for result in report.results] == [False, True, True]
    assert bank.experiences() == taught


def test_what_a_run_had_done_before_is_counted_as_skipped(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    tasks = [lock("Abus", n) for n in range(3)]
    run_stream(program, tasks[:2], bank, run_id="monday")
    summary = run_stream(program, tasks, bank, run_id="monday").summary()
    assert (summary.tasks, summary.skipped) == (1, 2)


def test_a_run_without_a_name_is_refused_before_anything_is_asked(bank: MemoryBank) -> None:
    bones = backbones()
    with pytest.raises(InputError, match="run_id is empty"):
        run_stream(ReasoningBank(backbones=bones, environments=Lock.make), [lock("Abus", 1)], bank, run_id="")
    assert prompts(bones) == []


@pytest.mark.parametrize("unit", ["experience", "item"])
def test_a_task_is_not_shown_its_own_lesson_by_way_of_another_that_repeats_it(bank: MemoryBank, unit: Any) -> None:
    ours, others = (MemoryDraft(title=title, description="d", content="c") for title in ("ours", "others"))
    won = Verdict(label="success")
    tasks = [lock("Abus", n) for n in range(3)]
    for task, drafts in zip(tasks, ([ours], [ours, others], [ours]), strict=True):
        bank.append(task, Trajectory(task_id=task.id), won, drafts)
    program = ReasoningBank(ProgramConfig(retrieve=RetrieveConfig(k=3, unit=unit)), backbones=backbones())
    assert [item.title for item in program.recall(tasks[0], bank).items] == ["others"]
    assert {item.title for item in program.recall(lock("Yale", 1), bank).items} == {"ours", "others"}
    assert {item.title for item in program.recall(tasks[0].instruction, bank).items} == {"ours", "others"}


@pytest.mark.parametrize("scale", [False, True])
def test_what_a_rollout_had_used_before_it_was_stopped_is_counted_when_it_is_learned_from(
    bank: MemoryBank, scale: bool
) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants and "serial 1." in prompt.text:
            raise KeyboardInterrupt
        return answers(prompt)

    def made(script: Callable[[Prompt], Reply]) -> ReasoningBank | MaTTS:
        alone = ReasoningBank(backbones=backbones(script), environments=Lock.make)
        return MaTTS(alone, k=2, mode="vanilla") if scale else alone

    tasks = [lock("Abus", n) for n in range(2)]
    results: list[TaskResult] = []
    with pytest.raises(KeyboardInterrupt):
        run_stream(made(script), tasks, bank, run_id="r", on_result=results.append)
    assert len(results) == 1
    (again,) = run_stream(made(answers), tasks, bank, run_id="r").results
    assert again.resumed
    rollouts = again.prediction.experience.trajectories
    used = [rollout.usage["agent"] for rollout in rollouts]
    assert again.usage["agent"].calls == sum(each.calls for each in used) == len(rollouts) > 0
    assert again.usage["agent"].prompt_tokens == sum(each.prompt_tokens for each in used) > 0
    assert again.prediction.memory.items == results[0].prediction.memory_items
    assert again.prediction.memory.items[0].title in again.prediction.memory.block


@pytest.mark.parametrize(
    ("mode", "asked", "groundless"), [(None, 1, {}), ("vanilla", 2, {}), ("parallel", 1, {"groundless": 1})]
)
def test_lessons_that_were_dropped_are_counted_and_evidence_is_not(
    bank: MemoryBank, mode: MattsMode | None, asked: int, groundless: dict[str, int]
) -> None:
    """The experience's note tells of both."""

    def script(prompt: Prompt) -> Reply:
        if "memory_items" not in prompt.wants:
            return answers(prompt)
        evidence = [1] if "attempts" in prompt else []
        drafts = [item("Look first", "Look at the lock before you touch it.", evidence=evidence)]
        if "12345" in prompt["task"]:
            drafts += [
                item("Mind the serial", "Lock 12345 is stiff.", evidence=evidence),
                item("look FIRST", "Then think.", evidence=evidence),
            ]
            drafts += [{**item("Turn around", "What nobody did."), "evidence": []}] if evidence else []
        return {"analysis": "Hm.", "memory_items": drafts}

    alone = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    program = alone if mode is None else MaTTS(alone, k=2, mode=mode)
    heard: list[object] = []
    with listening(heard.append):
        report = run_stream(program, [lock("Abus", 12345), lock("Yale", 7)], bank, run_id="r")
    first, second = report.results
    dropped = {"quote": asked, "overlap": asked, **groundless}
    assert (first.proposed, first.dropped) == (3 * asked + len(groundless), dropped)
    assert (second.proposed, second.dropped) == (asked, {})
    summary = report.summary()
    assert (summary.proposed_items, summary.dropped_items) == (first.proposed + second.proposed, dropped)
    assert any(isinstance(event, Appended) for event in heard), "whoever listens outside goes on hearing"


@pytest.mark.parametrize("mode", [None, "parallel", "sequential"])
def test_answers_that_nobody_could_read_are_counted_by_role(bank: MemoryBank, mode: MattsMode | None) -> None:
    """Every step goes on without them, so that nothing else would tell."""

    def script(prompt: Prompt) -> Reply:
        if {"choice", "decision", "memory_items"} & {*prompt.wants} or (
            "label" in prompt.wants and "serial 0." in prompt.text
        ):
            return "so-so"
        return answers(prompt)

    alone = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    program = alone if mode is None else MaTTS(alone, k=2, mode=mode)
    report = run_stream(program, [lock("Abus", n) for n in range(2)], bank, run_id="r")
    first, second = report.results
    rollouts = 2 if mode == "parallel" else 1
    distiller = {"contraster" if mode == "parallel" else "distiller": 1}
    checks = {"agent": 1} if mode == "sequential" else {}
    chooses = {"selector": 1} if mode == "parallel" else {}
    assert second.unreadable == {**distiller, **checks, **chooses}
    unknown = distiller if mode == "parallel" else {}  # else nothing is distilled of an unknown verdict
    assert first.unreadable == {"judge": rollouts, **checks, **chooses, **unknown}
    summed = Counter(first.unreadable) + Counter(second.unreadable)
    assert report.summary().unreadable_answers == dict(summed)
    assert not [result.error for result in report.results if result.error]


def _waiting(bank: MemoryBank, task: Task, run_id: str) -> None:
    """A rollout of a run, which is not learned from yet."""
    steps = (Step(action="0000", observation="It stays shut."),)
    bank.ingest(task, Trajectory(task_id=task.id, steps=steps), run_id=run_id)


def test_what_a_run_that_lives_is_at_is_left_to_it(bank: MemoryBank) -> None:
    own, others = lock("Abus", 1), lock("Abus", 2)
    _waiting(bank, own, "mine")
    _waiting(bank, others, "night")
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    report = run_stream(program, [own, others], bank, run_id="mine")
    assert [result.resumed for result in report.results] == [True, False]
    assert ["agent" in result.usage for result in report.results] == [False, True]
    assert [(ingest.task.id, ingest.state.run_id) for ingest in bank.pending()] == [(others.id, "night")]


def test_what_has_waited_for_long_is_nobodys_any_more(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [lock("Abus", n) for n in range(2)]
    for task, hours in zip(tasks, (0.5, 2), strict=True):
        then = datetime.now(UTC) - timedelta(hours=hours)
        monkeypatch.setattr("rb_dspy.bank.ingest.now", lambda then=then: then.isoformat(timespec="seconds"))
        _waiting(bank, task, "night")
    monkeypatch.undo()
    report = run_stream(ReasoningBank(backbones=backbones(), environments=Lock.make), tasks, bank, run_id="s")
    assert [result.resumed for result in report.results] == [False, True]


def test_what_came_to_wait_during_the_run_is_seen(bank: MemoryBank) -> None:
    tasks = [lock("Abus", n) for n in range(2)]
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    report = run_stream(
        program, tasks, bank, run_id="r", on_result=lambda result: _waiting(bank, tasks[1], "s"), resume="all"
    )
    assert [result.resumed for result in report.results] == [False, True]
    assert bank.pending() == []


def test_a_run_that_goes_on_asks_no_model_about_what_it_has_learned(bank: MemoryBank) -> None:
    tasks = [lock("Abus", n) for n in range(3)]
    bones = backbones()
    program = ReasoningBank(backbones=bones, environments=Lock.make)
    run_stream(program, tasks[:2], bank, run_id="r")
    program(task=tasks[0], bank=bank, run_id="another, which is the newest")
    asked, known, seen = len(prompts(bones)), bank.experiences(), list[TaskResult]()
    assert run_stream(program, tasks[:2], bank, run_id="r", on_result=seen.append).results == seen == []
    assert (len(prompts(bones)), bank.experiences()) == (asked, known)
    assert [result.task for result in run_stream(program, tasks, bank, run_id="r").results] == [tasks[2]]
    assert len(run_stream(program, tasks, bank, run_id="new").results) == 3


def test_lessons_that_were_learned_once_more_are_counted_apart(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    summary = run_stream(program, [lock("Abus", n) for n in range(3)], bank, run_id="r").summary()
    assert summary.items - summary.known_items == len(bank.items()) < summary.items
    again = run_stream(program, [lock("Abus", n) for n in range(3)], bank, run_id="again").summary()
    assert summary.items - summary.known_items + again.items - again.known_items == len(bank.items())


def test_what_was_removed_while_it_was_learned_from_is_recorded_and_the_run_goes_on(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants and "serial 1." in prompt.text:
            bank.delete(bank.pending()[0].state.id)
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    report = run_stream(program, [lock("Abus", n) for n in range(3)], bank, run_id="r")
    assert ["do not wait any more" in result.error for result in report.results] == [False, True, False]
    assert (bank.pending(), bank.seen_tasks()) == ([], {"lock/Abus/0", "lock/Abus/2"})


def test_a_vector_that_cannot_be_used_is_recorded_and_the_run_goes_on() -> None:
    class Odd(HashEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            made = super().embed(texts).copy()
            if len(texts) > 1 and "serial 1." in texts[0]:  # the lessons' texts are embedded with the task's
                made[1] = np.nan
            return made

    with MemoryBank.open(scope="s", embedder=Odd()) as bank:
        program = ReasoningBank(backbones=backbones(), environments=Lock.make)
        for ids in ([False, True, False], [True]):  # a run that goes on meets it again
            report = run_stream(program, [lock("Abus", n) for n in range(3)], bank, run_id="r")
            assert [bool(result.error) for result in report.results] == ids
        (waits,) = bank.pending()
        assert (waits.task.id, waits.state.stage) == ("lock/Abus/1", "distilled")
        assert "not learned from" in waits.state.error


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("step", ["action", "label", "memory_items"])
def test_a_run_that_was_stopped_anywhere_ends_as_if_it_had_not_been(tmp_path: Path, step: str, number: int) -> None:
    tasks = [lock("Abus", n, code="0000" if n == 1 else "4711") for n in range(3)]

    def run(path: Path, script: Any, run_id: str = "r") -> None:
        with MemoryBank.open(path, scope="s", embedder=HashEmbedder()) as bank:
            todo = [task for task in tasks if task.id not in bank.seen_tasks()]
            run_stream(ReasoningBank(backbones=backbones(script), environments=Lock.make), todo, bank, run_id=run_id)

    def learned(path: Path) -> list[object]:
        with MemoryBank.open(path, scope="s", embedder=HashEmbedder(), create=False) as bank:
            assert (bank.pending(), bank.doctor()) == ([], [])
            return [
                (e.task.id, e.verdicts, e.trajectories[0].steps, [(i.id, i.content) for i in e.items], e.shown)
                for e in bank.experiences()
            ]

    def stop(prompt: Prompt) -> Reply:
        if step in prompt.wants and f"serial {number}." in prompt.text:
            raise KeyboardInterrupt
        return answers(prompt)

    run(tmp_path / "whole.sqlite", answers)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped.sqlite", stop)
    run(tmp_path / "stopped.sqlite", answers)
    assert learned(tmp_path / "stopped.sqlite") == learned(tmp_path / "whole.sqlite")


def _said(prompt: Prompt) -> Reply:
    """Every task teaches a lesson of its own."""
    if "action" in prompt.wants:
        return {"thought": "I know.", "action": "blue"}
    if "label" in prompt.wants:
        return {"reasons": "So it is.", "label": "success"}
    if "choice" in prompt.wants:
        return {"analysis": "Alike.", "choice": 1}
    told = prompt["attempts"] if "attempts" in prompt else prompt["trajectory"]
    return {"analysis": "a", "memory_items": [item("Blue", f"Of {prompt['task']}: {told[:20]}", evidence=[1])]}


HOWS: dict[str, Callable[[ReasoningBank, Sequence[Task], MemoryBank], Sequence[TaskResult]]] = {
    "ReasoningBank": lambda run, tasks, bank: run_stream(run, tasks, bank, run_id="r").results,
    "MaTTS": lambda run, tasks, bank: run_stream(MaTTS(run, k=2), tasks, bank, run_id="r").results,
    "StreamProgram": lambda run, tasks, bank: (
        StreamProgram(run, bank)(stream=TaskStream("s", tuple(tasks))).report.results
    ),
}
SAID = ["Which colour has the sky?", "Which colour has the sea?", "Which colour has a rose?"]
KNOWN = [*map(as_task, SAID), *(Task(id=f"q/{n}", instruction=text) for n, text in enumerate(SAID))]


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    before=st.lists(st.sampled_from(KNOWN), max_size=6),
    tasks=st.lists(st.sampled_from(KNOWN), min_size=1, max_size=6, unique_by=lambda task: task.id),
)
def test_no_task_of_a_stream_is_shown_what_was_learned_from_itself(
    how: str, before: list[Task], tasks: list[Task]
) -> None:
    """Whatever its id looks like: one that is a bank's text taken out of the bank is scored as any other."""
    config = ProgramConfig(retrieve=RetrieveConfig(k=20))
    run = ReasoningBank(config, backbones=backbones(_said))
    with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
        for number, task in enumerate(before):
            known = Trajectory(task_id=task.id, steps=(Step(action="blue"),), answer="blue")
            draft = MemoryDraft(title="Blue", description="d", content=f"Of {task.id}, {number}")
            bank.append(task, known, Verdict(label="success"), [draft], run_id=f"before {number}")
        taught = {task.id for task in before}
        results = HOWS[how](run, tasks, bank)
    for result in results:
        assert result.prediction is not None
        memory = result.prediction.memory
        assert {match.task_id for match in memory.retrieved} == taught - {result.task.id}
        assert not any(from_.task_id == result.task.id for item in memory.items for from_ in item.provenances)
        taught.add(result.task.id)


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ("tasks.jsonl", "got str for a stream"),
        (Path("tasks.jsonl"), f"got {type(Path()).__name__} for a stream"),
        (7, "got int for a stream"),
        (iter(()), "got tuple_iterator for a stream"),
        ([lock("Abus", 1), {"id": "1", "instruction": "Open it."}], "task 2 of the stream: got dict for a task"),
    ],
)
@pytest.mark.parametrize("bank_", [None, "lessons.sqlite"])
def test_what_is_no_stream_or_no_bank_is_said_in_one_line(
    stream: Any, said: str, bank_: str | None, bank: MemoryBank
) -> None:
    run: Any = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with pytest.raises(InputError, match=rf"^{said}; expected a [^\n]+$"):
        run_stream(run, stream, bank, run_id="r")
    wrong: Any = bank_
    with pytest.raises(InputError, match=rf"^got {type(bank_).__name__} for a bank; expected a MemoryBank[^\n]+$"):
        run_stream(run, [lock("Abus", 1)], wrong, run_id="r")
    assert prompts(run.backbones) == []
    assert bank.pending() == []


def test_a_text_in_a_stream_is_another_occasion(bank: MemoryBank) -> None:
    """As in a call of the program; its ``Task``, taken out of the bank, is not shown what it taught."""
    run = ReasoningBank(backbones=backbones())
    shown = []
    for number in range(3):
        text = "What is one and one?"
        given = text if number < 2 else bank.experiences()[0].task
        (result,) = run_stream(run, [given], bank, run_id=f"r{number}").results
        assert result.prediction is not None
        assert result.task.instruction == text
        shown.append(len(result.prediction.memory.items))
    assert shown == [0, 1, 0]
    with pytest.raises(InputError, match="task 2 of the stream: the instruction is empty"):
        run_stream(run, ["What is two and two?", " "], bank, run_id="r")
    with pytest.raises(InputError, match="stands 2 times"):
        run_stream(run, ["What is it?", "What is it?"], bank, run_id="r")


def test_two_tasks_with_one_id_are_refused(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with pytest.raises(InputError, match="stands 2 times"):
        run_stream(program, [lock("Abus", 1), lock("Abus", 1)], bank, run_id="r")


def test_a_task_that_cannot_be_used_is_recorded_and_the_run_goes_on(bank: MemoryBank) -> None:
    bad = Task(id="bad", instruction="Solve it.", env="reasoning-gym", env_args={"nonsense": 1})
    good = Task(id="good", instruction="What is 1 + 1?", env_args={"answer": "2"})
    report = run_stream(ReasoningBank(backbones=backbones()), [bad, good], bank, run_id="r")
    assert "env_args" in report.results[0].error
    assert report.results[1].outcome is not None


def test_usage_counts_what_a_broken_task_cost(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    summary = run_stream(program, [lock("Abus", 1)], bank, run_id="r").summary()
    assert summary.usage["agent"].calls == 1
    assert (summary.scored, summary.infrastructure_errors) == (0, 1)


def test_an_answer_that_nobody_can_check_is_not_counted_as_wrong(bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones())
    report = run_stream(program, [Task(id="q", instruction="What is beauty?")], bank, run_id="r")
    assert report.results[0].outcome is None
    assert (report.summary().scored, report.summary().success_rate) == (0, None)


def test_broken_tasks_that_do_not_follow_each_other_do_not_end_a_run(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and any(f"serial {n}." in prompt["task"] for n in (0, 1, 3, 5)):
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    report = run_stream(program, [lock("Abus", n) for n in range(7)], bank, run_id="r")
    assert report.summary().infrastructure_errors == 4
