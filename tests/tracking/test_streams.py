"""A stream as a run: what is logged of it, and that nothing which must not be is."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
import sys
import threading
import time
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import MemoryBank, ReasoningBank, RunReport, TaskStream, run_stream
from rb_dspy.backbones import Backbones
from rb_dspy.config import ActConfig, ProgramConfig
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Task
from rb_dspy.stream import TaskResult
from rb_dspy.testing import Corridor, HashEmbedder, Lock, Prompt, Reply
from rb_dspy.tracking import Tracker
from rb_dspy.tracking.guard import Guard
from rb_dspy.tracking.recording import Recorded, RecordedTrace
from rb_dspy.tracking.writing import TraceWriter
from tests.tracking.made import locks, provider, secretive
from tests.worlds import Doors, answers, backbones, corridor, hall, openers

CANARY = "canary4f1e"


def tracked(tracker: Tracker, program: Any, stream: TaskStream, bank: MemoryBank, run_id: str, **kwargs: Any) -> str:
    """Run and track; MLflow's id of the run."""
    with tracker.stream_run(program, stream, bank, run_id=run_id, **kwargs) as run:
        report = run_stream(program, stream, bank, run_id=run_id, on_result=run.on_result)
        run.finish(report, bank)
    return run.id


def traces_of(client: Any, run_id: str) -> list[Any]:
    """Oldest first."""
    experiment = client.get_run(run_id).info.experiment_id
    found = client.search_traces(locations=[experiment], run_id=run_id, max_results=100)
    return sorted(found, key=lambda trace: trace.data.spans[0].start_time_ns)


def tree(trace: Any) -> list[str]:
    """Names of the spans, indented by depth, children in the order in which they began."""
    children: dict[str | None, list[Any]] = {}
    for span in sorted(trace.data.spans, key=lambda span: span.start_time_ns):
        children.setdefault(span.parent_id, []).append(span)

    def lines(parent: str | None, depth: int) -> list[str]:
        return [
            line
            for span in children.get(parent, [])
            for line in (f"{'  ' * depth}{span.name}", *lines(span.span_id, depth + 1))
        ]

    return lines(None, 0)


@pytest.fixture(scope="module")
def run(tracker: Tracker, client: Any) -> Any:
    """A tracked run of six locks, of which the codes are learned."""
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        id = tracked(tracker, program, locks(), bank, "stream-1", params={"seed": 3})
    return client.get_run(id)


def test_parameters_say_what_ran_on_what(run: Any) -> None:
    said = run.data.params
    assert (said["program"], said["stream"], said["stream.digest"]) == ("ReasoningBank", "locks", locks().digest)
    assert (said["lm.agent"], said["lm.selector"], said["seed"], said["run_id"]) == (
        "scripted/lm",
        "scripted/lm",
        "3",
        "stream-1",
    )
    assert (said["act.max_steps"], said["retrieve.k"], said["bank.items"]) == ("30", "4", "0")
    assert len(said["signatures"]) == 20
    assert (run.info.run_name, run.info.status) == ("stream-1: locks, ReasoningBank", "FINISHED")
    assert run.data.tags["rb.kind"] == "stream"


def test_runs_with_other_prompts_can_be_told_apart(tracker: Tracker, client: Any, run: Any) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    program.judge.predict.signature = program.judge.predict.signature.with_instructions("Look twice.")
    agent = program.backbones.lm("agent")  # type: ignore[union-attr]
    program.backbones = Backbones(agent=agent, judge=agent.copy(temperature=0.3, max_tokens=77))
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        other = client.get_run(tracked(tracker, program, locks(), bank, "stream-2"))
    said, before = other.data.params, run.data.params
    assert (before["prompts.changed"], said["prompts.changed"]) == ("none", "judge.predict")
    assert said["prompts"] != before["prompts"]
    assert len(said["prompts"]) == len(before["prompts"]) == 12
    assert json.loads(client_text(client, other, "prompts.json"))["judge.predict"]["instructions"] == "Look twice."
    assert (said["lm.judge.temperature"], said["lm.judge.max_tokens"]) == ("0.3", "77")
    assert "lm.agent.temperature" not in said


def test_its_page_says_what_came_of_it(run: Any) -> None:
    said = run.data.tags["mlflow.note.content"]
    assert [part for part in ("**3 of 6 solved**", "6 of 6", "6 lessons") if part not in said] == []


def test_truncated_rollouts_are_counted(tracker: Tracker, client: Any, run: Any) -> None:
    config = ProgramConfig(act=ActConfig(max_steps=2))
    program = ReasoningBank(config, backbones=backbones(), environments=Corridor.make)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        cut = client.get_run(tracked(tracker, program, TaskStream("walks", (corridor(length=9),)), bank, "cut"))
    assert (cut.data.metrics["total/truncated"], run.data.metrics["total/truncated"]) == (1, 0)
    assert json.loads(client_text(client, cut, "tasks.json"))["data"][0].count("max_steps") == 1


def test_results_of_a_run_of_another_name_are_refused(tracker: Tracker, client: Any) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        with pytest.raises(InputError), tracker.stream_run(program, locks(2), bank, run_id="a") as run:
            run_stream(program, locks(2), bank, run_id="b", on_result=run.on_result)
        assert client.get_run(run.id).data.metrics.get("total/tasks", 0) == 0
        with pytest.raises(InputError), tracker.stream_run(program, locks(2), bank, run_id="a") as run:
            run.finish(RunReport("b"))


def test_the_name_of_a_run_fits_into_mlflows_database(tracker: Tracker, client: Any) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        found = client.get_run(tracked(tracker, program, locks(1, "l" * 90), bank, "r" * 200))
    assert found.info.run_name.startswith("r" * 200 + ": lll")
    assert len(found.info.run_name) < 250


def test_metrics_are_at_their_position(run: Any, client: Any) -> None:
    def history(name: str) -> list[tuple[int, float]]:
        return sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, name))

    assert history("success/solved") == [(1, 1.0), (2, 0.0), (3, 1.0), (4, 0.0), (5, 1.0), (6, 0.0)]
    assert [round(value, 3) for _, value in history("success/rate")] == [1.0, 0.5, 0.667, 0.5, 0.6, 0.5]
    assert [step for step, _ in history("tokens/agent")] == [1, 2, 3, 4, 5, 6]
    totals = run.data.metrics
    assert (totals["total/tasks"], totals["total/solved"], totals["total/success_rate"]) == (6, 3, 0.5)
    assert totals["total/judge_agreement"] == 1.0
    assert (totals["total/judge_base_rate"], totals["total/judge_balanced"], totals["total/judged"]) == (0.5, 1.0, 6)
    assert (totals["total/false_successes"], totals["total/unknown_verdicts"]) == (0, 0)
    assert [round(value, 3) for _, value in history("success/judge_base_rate")] == [1.0, 0.5, 0.667, 0.5, 0.6, 0.5]
    assert totals["total/tokens"] == sum(
        value for name in ("agent", "judge", "distiller") for _, value in history(f"tokens/{name}")
    )
    assert totals["usage/agent.calls"] == 6
    assert (totals["total/tasks_shown_lessons"], totals["total/lessons_learned"], totals["total/mean_steps"]) == (
        5,
        6,
        1,
    )


def test_money_is_logged_where_a_price_is_known(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(model="openai/gpt-4o-mini"), environments=Lock.make)
    id = tracked(tracker, program, locks(1), bank, "priced")
    found = client.get_run(id).data.metrics
    into, out = found["usage/agent.prompt_tokens"], found["usage/agent.completion_tokens"]
    assert found["usage/agent.usd"] == pytest.approx(into * 0.15e-6 + out * 0.6e-6)
    assert found["total/usd"] > found["usage/agent.usd"]
    (trace,) = traces_of(client, id)
    assert trace.info.cost["total_cost"] == pytest.approx(found["total/usd"])
    assert not any("rb.no_price" in tags for tags in (trace.info.tags, client.get_run(id).data.tags))


def test_an_unknown_price_is_unknown_and_not_0(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    """On the trace, on its calls, and in the columns that MLflow sums; and nobody imports litellm to look for it."""
    before = "litellm" in sys.modules
    program = ReasoningBank(backbones=backbones(model="unheard/of"), environments=Lock.make)
    id = tracked(tracker, program, locks(1), bank, "unpriced")
    (trace,) = traces_of(client, id)
    assert trace.info.token_usage["total_tokens"] > 0
    assert trace.info.cost is None
    calls = [span for span in trace.data.spans if span.span_type == "CHAT_MODEL"]
    assert {(span.model_name, span.llm_cost) for span in calls} == {("unheard/of", None)}
    with sqlite3.connect(tracker.config.uri.removeprefix("sqlite:///")) as connection:
        query = "SELECT DISTINCT model_name, total_cost FROM spans WHERE trace_id = ? AND model_name IS NOT NULL"
        assert connection.execute(query, (trace.info.trace_id,)).fetchall() == [("unheard/of", None)]
    assert {name for name in client.get_run(id).data.metrics if name.endswith("usd")} == set()
    assert ("litellm" in sys.modules) == before


def test_a_sum_of_some_models_is_no_total_and_the_others_are_named(
    tracker: Tracker, client: Any, bank: MemoryBank
) -> None:
    bones = Backbones(
        agent=backbones(model="unheard/of").lm("agent"), judge=backbones(model="openai/gpt-4o-mini").lm("judge")
    )
    id = tracked(tracker, ReasoningBank(backbones=bones, environments=Lock.make), locks(1), bank, "some-priced")
    said = client.get_run(id).data
    assert {name for name in said.metrics if name.endswith("usd")} == {"usage/judge.usd"}
    assert said.tags["rb.no_price"] == "agent, distiller"
    (trace,) = traces_of(client, id)
    assert trace.info.cost["total_cost"] == pytest.approx(said.metrics["usage/judge.usd"])  # MLflow's own sum
    assert trace.info.tags["rb.no_price"] == "unheard/of"


def test_a_local_model_costs_0(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(model="local/small"), environments=Lock.make)
    (trace,) = traces_of(client, tracked(tracker, program, locks(1), bank, "local"))
    assert trace.info.cost["total_cost"] == 0


def test_artifacts_are_there_beside_the_database(run: Any, client: Any, folder: Path) -> None:
    paths = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert paths == {"bank.jsonl", "plots", "prompts.json", "tasks.json"}
    plots = {file.path for file in client.list_artifacts(run.info.run_id, "plots") if file.file_size > 5000}
    assert plots == {"plots/judge.png", "plots/learning_curve.png", "plots/lessons.png"}
    assert run.info.artifact_uri.startswith((folder / "store-artifacts").as_uri())
    table = json.loads(client_text(client, run, "tasks.json"))
    assert table["columns"][:4] == ["position", "task", "template", "solved"]
    assert [row[3] for row in table["data"]] == ["yes", "no"] * 3


def test_the_bank_that_was_learned_can_be_opened_again(run: Any, client: Any, tmp_path: Path) -> None:
    file = client.download_artifacts(run.info.run_id, "bank.jsonl", str(tmp_path))
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as again:
        again.import_jsonl(file)
        assert run.data.metrics["bank/items"] == len(again)


def test_the_stream_is_an_input_by_its_digest(run: Any) -> None:
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("locks", locks().digest)
    assert json.loads(given.dataset.profile)["num_rows"] == 6
    assert {tag.key: tag.value for tag in given.tags} == {"mlflow.data.context": "stream"}


def test_every_task_is_one_trace_of_the_session(run: Any, client: Any) -> None:
    traces = traces_of(client, run.info.run_id)
    assert [trace.info.tags["mlflow.traceName"] for trace in traces] == [f"task {task.id}" for task in locks()]
    assert {trace.info.trace_metadata["mlflow.trace.session"] for trace in traces} == {"stream-1"}
    assert {trace.info.tags["mlflow.trace.spansLocation"] for trace in traces} == {"TRACKING_STORE"}
    assert tree(traces[0]) == [
        "task lock/acme/0",
        "  retrieve",
        "  act",
        "    act.predict",
        "  judge",
        "    judge.predict",
        "  distill",
        "    distill.success",
    ]
    solved = [{each.name: each.feedback.value for each in trace.info.assessments} for trace in traces[:2]]
    assert solved == [{"solved": True, "verdict": "success"}, {"solved": False, "verdict": "failure"}]


def test_a_span_of_a_call_holds_prompt_answer_and_tokens(run: Any, client: Any) -> None:
    first = traces_of(client, run.info.run_id)[0]
    (span,) = [span for span in first.data.spans if span.name == "judge.predict"]
    assert span.span_type == "CHAT_MODEL"
    assert "lock" in span.inputs["messages"][-1]["content"]
    assert "success" in span.outputs["choices"][0]["message"]["content"]
    used = span.attributes["mlflow.chat.tokenUsage"]
    assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"] > 100
    asked = [span.attributes["mlflow.chat.tokenUsage"] for span in first.data.spans if span.span_type == "CHAT_MODEL"]
    assert len(asked) == 3
    assert first.info.token_usage == {name: sum(each[name] for each in asked) for name in used}
    assert span.attributes["mlflow.llm.model"] == "scripted/lm"


def test_a_trace_is_there_before_the_run_is_over(
    tracker: Tracker, client: Any, bank: MemoryBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rb_dspy.tracking.writing._GATHER_SECONDS", 0.5)
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(2), bank, run_id="going on") as going:
        run_stream(program, locks(2), bank, run_id="going on", on_result=going.on_result)
        until = time.monotonic() + 60
        while len(traces_of(client, going.id)) < 2:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_rollouts_are_nested_with_their_own_calls(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = MaTTS(ReasoningBank(backbones=backbones(openers), environments=Doors.make), k=3)
    id = tracked(tracker, program, TaskStream("halls", (hall("acme", 1),)), bank, "nested")
    (trace,) = traces_of(client, id)
    spans = {span.span_id: span for span in trace.data.spans}
    parents = [(span.name, spans[span.parent_id].name) for span in trace.data.spans if span.parent_id is not None]
    for number in range(3):
        assert (f"act, rollout {number}", "task hall/acme/1") in parents
        assert parents.count(("act.predict", f"act, rollout {number}")) == 2
        assert ("judge.predict", f"judge, rollout {number}") in parents
    assert ("contrast.predict", "contrast") in parents
    assert ("select.predict", "select") in parents
    said = client.get_run(id).data
    assert (said.params["mode"], said.params["k"], said.metrics["scaling/launched"]) == ("parallel", "3", 3)


def test_pass_at_j_is_logged_with_its_tasks_and_with_what_was_lost_and_chosen_by_nobody(
    tracker: Tracker, client: Any, bank: MemoryBank
) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and prompt.seed and "number 1." in prompt["task"]:
            raise dspy.LMServerError("overloaded")
        if "choice" in prompt.wants:
            raise dspy.LMServerError("the selector is down")
        return openers(prompt)

    program = MaTTS(ReasoningBank(backbones=backbones(script), environments=Doors.make), k=2)
    halls = (hall("acme", 0), hall("bolt", 1, right="red"))
    found = client.get_run(tracked(tracker, program, TaskStream("halls", halls), bank, "lossy")).data.metrics
    assert (found["scaling/launched"], found["scaling/lost"], found["scaling/fallbacks"]) == (4, 1, 1)
    ended = [(found[f"scaling/pass_at_{j}"], found[f"scaling/pass_at_{j}.tasks"]) for j in (1, 2)]
    assert ended == [(0.75, 2), (1.0, 1)]


def test_passes_are_logged_and_nothing_that_only_rollouts_side_by_side_have(
    tracker: Tracker, client: Any, bank: MemoryBank
) -> None:
    program = MaTTS(ReasoningBank(backbones=backbones(openers), environments=Doors.make), k=2, mode="sequential")
    stream = TaskStream("halls", (hall("acme", 1, right="yellow"), hall("bolt", 2, right="red")))
    found = client.get_run(tracked(tracker, program, stream, bank, "passes")).data.metrics
    passes = {"tasks": 2, "after_first": 1, "after_last": 1}
    assert {name: found[f"scaling/passes.{name}"] for name in passes} == passes
    others = {"compared", "handed_in", "solvable", "fallbacks"}
    assert not {f"scaling/{name}" for name in others} & {*found}


def test_a_resumed_rollout_is_one_trace_too(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    broken = True

    def script(prompt: Prompt) -> Reply:
        if broken and "label" in prompt.wants:
            raise dspy.LMServerError("down")
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    (error,) = run_stream(program, locks(1), bank, run_id="resumed").results
    assert error.error
    broken = False
    (trace,) = traces_of(client, tracked(tracker, program, locks(1), bank, "resumed"))
    assert tree(trace) == ["task lock/acme/0", "  judge", "    judge.predict", "  distill", "    distill.success"]


@pytest.mark.parametrize("way", ["wait_for", "gather", "text", "thread"])
def test_tasks_done_in_contexts_of_their_own_have_their_traces(
    tracker: Tracker, client: Any, bank: MemoryBank, way: str
) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    stream = locks(3)
    texts = ReasoningBank(backbones=backbones())

    async def one_by_one() -> None:
        for task in stream:
            prediction = await asyncio.wait_for(program.acall(task=task, bank=bank, run_id=way), 60)
            run.on_result(TaskResult(task, prediction))

    async def at_once() -> None:
        found = await asyncio.gather(*[program.acall(task=task, bank=bank, run_id=way) for task in stream])
        for task, prediction in reversed(list(zip(stream, found, strict=True))):  # in any order
            run.on_result(TaskResult(task, prediction))

    played = texts if way == "text" else program
    with tracker.stream_run(played, stream, bank, run_id=way) as run:
        if way == "wait_for":
            asyncio.run(one_by_one())
        elif way == "gather":
            asyncio.run(at_once())
        elif way == "text":
            run_stream(texts, ["What is 1?", "What is 2?", "What is 3?"], bank, run_id=way, on_result=run.on_result)
        else:
            go = partial(run_stream, program, stream, bank, run_id=way, on_result=run.on_result)
            thread = threading.Thread(target=copy_context().run, args=(go,))
            thread.start()
            thread.join()
    traces = traces_of(client, run.id)
    assert [trace.info.state.value for trace in traces] == ["OK"] * 3
    for trace in traces:
        assert [line.strip() for line in tree(trace)[1:]] == [
            "retrieve",
            "act",
            "act.predict",
            "judge",
            "judge.predict",
            "distill",
            f"distill.{next(each.feedback.value for each in trace.info.assessments if each.name == 'verdict')}",
        ]
    if way != "text":
        assert {trace.info.tags["mlflow.traceName"] for trace in traces} == {f"task {task.id}" for task in stream}
        for trace in traces:  # its own result, not another's
            name = trace.info.tags["mlflow.traceName"].removeprefix("task ")
            task = next(task for task in stream if task.id == name)
            (answer,) = [span.outputs for span in trace.data.spans if span.name == "act"]
            root = trace.data.spans[0]
            assert root.inputs["task"] == task.instruction
            assert str(root.outputs["answer"]) in json.dumps(answer)


def test_a_task_that_begins_while_another_ends_costs_neither_its_trace(
    tracker: Tracker, client: Any, bank: MemoryBank
) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    first, second, third = locks(3)

    class Meanwhile(str):
        """An id: while it is looked for, another thread begins a task, once."""

        begun = False

        def __eq__(self, other: object) -> bool:
            if not Meanwhile.begun:
                Meanwhile.begun = True
                go = partial(program, task=third, bank=bank, run_id="meanwhile")
                thread = threading.Thread(target=copy_context().run, args=(go,))
                thread.start()
                thread.join()
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    with tracker.stream_run(program, locks(3), bank, run_id="meanwhile") as run:
        for task in (first, second):
            program(task=task, bank=bank, run_id="meanwhile")
        run.on_result(TaskResult(Task.model_construct(**{**dict(second), "id": Meanwhile(second.id)})))
        assert Meanwhile.begun
        for task in (first, third):
            run.on_result(TaskResult(task))
    assert [trace.info.state.value for trace in traces_of(client, run.id)] == ["OK"] * 3


def test_traces_that_end_at_the_same_time_are_written_by_one_worker(
    tracker: Tracker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two at one queue only one is told to end, and the end of the run waits for the other."""
    both = threading.Barrier(2)

    class AtOnce(threading.Thread):
        """A worker, which is made when two traces have come that find none; where the second waits, a little later."""

        def __init__(self, **given: Any) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
            super().__init__(**given)

    monkeypatch.setattr("rb_dspy.tracking.writing.Thread", AtOnce)
    run_id = client.create_run(client.get_experiment_by_name("tests").experiment_id).info.run_id
    guard = Guard()
    writer = TraceWriter(tracker._place, guard, {"mlflow.sourceRun": run_id})
    traces = [RecordedTrace([Recorded(f"task {number}", "TASK", None)]) for number in range(2)]
    ending = [threading.Thread(target=writer.put, args=(trace,)) for trace in traces]
    for thread in ending:
        thread.start()
    for thread in ending:
        thread.join()
    assert [isinstance(thread, AtOnce) for thread in threading.enumerate()].count(True) == 1
    writer.close()
    assert len(traces_of(client, run_id)) == 2
    assert guard.failures == 0


@pytest.mark.parametrize("way", ["acall", "run_stream"])
def test_tasks_of_which_nobody_hands_over_what_came_are_done_and_not_counted(
    tracker: Tracker, client: Any, bank: MemoryBank, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    stream = locks(3)

    async def at_once() -> None:
        await asyncio.gather(*[program.acall(task=task, bank=bank, run_id=way) for task in stream])

    with tracker.stream_run(program, stream, bank, run_id=f"unsaid-{way}") as run:
        if way == "acall":
            asyncio.run(at_once())
        else:
            run_stream(program, stream, bank, run_id=way)
    traces = traces_of(client, run.id)
    assert [trace.info.state.value for trace in traces] == ["OK"] * 3
    assert all("answer" in trace.data.spans[0].outputs for trace in traces)
    found = client.get_run(run.id)
    assert [name for name in found.data.metrics if name.startswith("total/")] == []
    said = found.data.tags["mlflow.note.content"]
    assert said.startswith("3 tasks done, and no result handed over, so nothing was counted; give run_stream on_result")
    assert found.data.tags["rb.no_results"] == "3"
    assert [record.getMessage() for record in caplog.records if "handed over" in record.message] == [
        f"tracking: {said}"
    ]
    assert "bank.jsonl" in {file.path for file in client.list_artifacts(run.id)}


def test_a_call_that_breaks_unseen_says_so_itself(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        raise dspy.LMServerError("down for good")

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    with tracker.stream_run(program, locks(1), bank, run_id="unseen") as run, suppress(InfrastructureError):
        program(task=locks(1).tasks[0], bank=bank)
    (trace,) = traces_of(client, run.id)
    assert trace.info.state == "ERROR"
    assert "down for good" in trace.info.response_preview


def test_a_run_in_which_all_was_done_before_still_says_so(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    run_stream(program, locks(2), bank, run_id="before")
    found = client.get_run(tracked(tracker, program, locks(2), bank, "before")).data
    assert (found.metrics["total/tasks"], found.metrics["total/skipped"]) == (0, 2)
    assert "rb.no_results" not in found.tags


def test_a_task_that_breaks_is_a_trace_with_its_error(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        raise dspy.LMServerError("down for good")

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    id = tracked(tracker, program, locks(1), bank, "broken")
    (trace,) = traces_of(client, id)
    assert trace.info.state == "ERROR"
    assert "down for good" in trace.info.response_preview
    assert client.get_run(id).data.metrics["total/infrastructure_errors"] == 1


def test_a_run_that_is_ended_by_an_error_keeps_what_it_has(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "serial 0" not in prompt.text:
            raise dspy.LMServerError("down")
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    with pytest.raises(InfrastructureError), tracker.stream_run(program, locks(), bank, run_id="ended") as run:
        run_stream(program, locks(), bank, run_id="ended", on_result=run.on_result)
    found = client.get_run(run.id)
    assert found.info.status == "FAILED"
    assert found.data.tags["error"]
    assert found.data.metrics["total/tasks"] == 5
    assert "tasks.json" in {file.path for file in client.list_artifacts(run.id)}


def test_no_key_and_no_address_is_anywhere(tracker: Tracker, client: Any, folder: Path, bank: MemoryBank) -> None:
    """Neither where all goes well nor where an error quotes the address that did not answer."""
    with provider() as port:
        program = ReasoningBank(backbones=secretive(port, CANARY), environments=Lock.make)
        good = tracked(tracker, program, locks(2), bank, "secretive")
    assert client.get_run(good).data.metrics["total/solved"] == 1
    lost = ReasoningBank(backbones=secretive(1, CANARY), environments=Lock.make)
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:1"):
        tracked(tracker, lost, locks(), bank, "lost")
    with sqlite3.connect(folder / "store.db") as database:
        written = "\n".join(database.iterdump())
    database.close()
    assert "failed to connect to [hidden]" in written
    for secret in (CANARY, "127.0.0.1"):
        assert secret not in written
        files = [file for file in folder.rglob("*") if file.is_file()]
        assert len(files) > 5
        assert not [file for file in files if secret.encode() in file.read_bytes()]


def test_without_traces_there_are_none(folder: Path, tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    quiet = Tracker(tracker.config.model_copy(update={"traces": False}))
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    id = tracked(quiet, program, locks(1), bank, "no-traces")
    assert client.get_run(id).data.metrics["total/tasks"] == 1
    assert traces_of(client, id) == []


def test_a_store_that_breaks_costs_the_run_nothing(
    tmp_path: Path, bank: MemoryBank, caplog: pytest.LogCaptureFixture, tracker: Tracker, empty_store: Path
) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    shutil.copy(empty_store, place / "store.db")
    breaking = Tracker(tracker.config.model_copy(update={"uri": f"sqlite:///{place / 'store.db'}"}))
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with caplog.at_level(logging.WARNING, "rb_dspy"), breaking.stream_run(program, locks(), bank, run_id="b") as run:
        with sqlite3.connect(place / "store.db") as database:
            for table in ("metrics", "trace_info", "params"):
                database.execute(f"DROP TABLE {table}")
        database.close()
        report = run_stream(program, locks(), bank, run_id="b", on_result=run.on_result)
        run.finish(report, bank)
    assert [result.error for result in report.results] == [""] * 6
    warned = [record.getMessage() for record in caplog.records if record.name == "rb_dspy"]
    assert len(warned) == 1
    assert warned[0].startswith("tracking: ")
    assert "\n" not in warned[0]


def client_text(client: Any, run: Any, name: str) -> str:
    return Path(client.download_artifacts(run.info.run_id, name)).read_text()


def test_hostile_texts_are_logged_as_they_are(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    text = 'Öffne $x^2$ <b>"lock"</b> {{name}} | \\n 🔒'
    task = Task(id="lock/é $1", instruction=text, env="lock", env_args={"code": "0000"}, template="a/b c")
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    id = tracked(tracker, program, TaskStream("odd $name", (task,)), bank, "hostile")
    assert len(client.list_artifacts(id, "plots")) == 3
    (trace,) = traces_of(client, id)
    assert trace.info.request_preview == text


def test_calls_inside_of_a_call_are_given_up_too(tracker: Tracker, bank: MemoryBank, monkeypatch: Any) -> None:
    """Each may cost a time-out: a server that does not answer must not be asked again with every task."""
    monkeypatch.setattr("rb_dspy.tracking.run._WAIT_SECONDS", 0.0)
    asked = []

    def time_out(*args: Any, **kwargs: Any) -> None:
        asked.append(kwargs)
        raise TimeoutError

    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(), bank, run_id="hangs") as run, monkeypatch.context() as patched:
        patched.setattr(tracker._place.client, "log_batch", time_out)
        run_stream(program, locks(), bank, run_id="hangs", on_result=run.on_result)
    assert len(asked) == 3


def test_half_a_character_costs_no_trace(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    """Traces are written together: what no database takes would cost all of them their spans."""

    def broken_off(prompt: Prompt) -> Reply:
        reply = answers(prompt)
        return {**reply, "thought": "Hm \ud83d"} if "action" in prompt.wants and isinstance(reply, dict) else reply

    program = ReasoningBank(backbones=backbones(broken_off), environments=Lock.make)
    id = tracked(tracker, program, locks(3), bank, "half")
    assert [len(trace.data.spans) for trace in traces_of(client, id)] == [8, 8, 8]


def test_a_trace_that_cannot_be_written_costs_the_others_nothing(
    tracker: Tracker, client: Any, bank: MemoryBank, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from rb_dspy.tracking import writing

    made = writing._span

    def span(trace: Any, *recorded: Any) -> Any:
        if trace.root.name == "task lock/bolt/0":
            raise ValueError("too large")
        return made(trace, *recorded)

    monkeypatch.setattr(writing, "_span", span)
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    id = tracked(tracker, program, locks(4), bank, "one-bad")
    told = [trace.info.tags["mlflow.traceName"] for trace in traces_of(client, id)]
    assert told == ["task lock/acme/0", "task lock/acme/1", "task lock/bolt/1"]
    assert [len(trace.info.assessments) for trace in traces_of(client, id)] == [2, 2, 2]
    assert [record.getMessage() for record in caplog.records if "too large" in record.getMessage()]


def test_a_run_inside_of_another_has_its_own_traces(tracker: Tracker, client: Any) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with (
        MemoryBank.open(None, scope="outer", embedder=HashEmbedder()) as bank,
        MemoryBank.open(None, scope="inner", embedder=HashEmbedder()) as other,
        tracker.stream_run(program, locks(1), bank, run_id="outer") as run,
    ):
        inner = tracked(tracker, program, locks(2), other, "inner")
        run_stream(program, locks(1), bank, run_id="outer", on_result=run.on_result)
    assert len(traces_of(client, inner)) == 2
    (trace,) = traces_of(client, run.id)
    assert trace.info.state.value == "OK"
