"""What a run says of the runs before it, and of what became of lessons: else who compares runs is misled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, ReasoningBank, TaskStream, run_stream
from rb_dspy.config import ProgramConfig, RetrieveConfig, TrackingConfig
from rb_dspy.errors import InputError
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply
from rb_dspy.tracking import Tracker
from tests.tracking.made import locks
from tests.worlds import answers, backbones

NOTE = "mlflow.note.content"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[MemoryBank]:
    with MemoryBank.open(str(tmp_path / "kept.sqlite"), scope="test", embedder=HashEmbedder()) as bank:
        yield bank


def stopped(tracker: Tracker, bank: MemoryBank, run_id: str, after: int) -> str:
    """A run of six locks that is interrupted when the judge is asked once more than ``after`` times; its id."""
    asked = 0

    def script(prompt: Prompt) -> Reply:
        nonlocal asked
        asked += "label" in prompt.wants
        if asked > after:
            raise KeyboardInterrupt
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    with pytest.raises(KeyboardInterrupt), tracker.stream_run(program, locks(), bank, run_id=run_id) as run:
        run_stream(program, locks(), bank, run_id=run_id, on_result=run.on_result)
    return run.id


def test_a_run_that_learns_nothing_and_is_stopped_left_nothing_out(
    tracker: Tracker, client: Any, kept: MemoryBank
) -> None:
    run_stream(ReasoningBank(backbones=backbones(), environments=Lock.make), locks(), kept, run_id="again")
    acted = 0

    def script(prompt: Prompt) -> Reply:
        nonlocal acted
        acted += 1
        if acted > 2:
            raise KeyboardInterrupt
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Lock.make)
    with pytest.raises(KeyboardInterrupt), tracker.stream_run(program, locks(), kept, run_id="again") as run:
        run_stream(program, locks(), kept, run_id="again", learn=False, on_result=run.on_result)
    said = client.get_run(run.id).data
    assert (said.metrics["total/tasks"], said.metrics["total/skipped"]) == (2, 0)
    assert "left out" not in said.tags[NOTE]


@pytest.mark.parametrize("told", [True, False], ids=["finished by hand", "not"])
def test_a_run_that_goes_on_says_what_was_done_before_it(
    tracker: Tracker, client: Any, kept: MemoryBank, told: bool
) -> None:
    run_id = f"it's in parts, {told}"
    first = stopped(tracker, kept, run_id, after=3)
    before = client.get_run(first).data
    assert (before.metrics["total/tasks"], before.metrics["total/skipped"]) == (3, 0)
    assert ("left out" in before.tags[NOTE], "rb.continues" in before.tags) == (False, False)
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(), kept, run_id=run_id) as run:
        report = run_stream(program, locks(), kept, run_id=run_id, on_result=run.on_result)
        if told:
            run.finish(report)
    said = client.get_run(run.id).data
    assert (report.skipped, report.summary().resumed) == (3, 1)
    assert [said.metrics[f"total/{name}"] for name in ("tasks", "skipped", "resumed")] == [3, 3, 1]
    assert said.tags["rb.continues"] == first
    assert "1 resumed, not scored" in said.tags[NOTE]
    told = f"3 more were left out: they had been learned from before. This run goes on from the run {first}."
    assert told in said.tags[NOTE]


def test_a_run_that_only_learns_from_what_waited_names_the_run_that_left_it(
    tracker: Tracker, client: Any, kept: MemoryBank
) -> None:
    first = stopped(tracker, kept, "stopped at once", after=0)
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(), kept, run_id="stopped at once") as run:
        run_stream(program, locks(), kept, run_id="stopped at once", on_result=run.on_result)
    said = client.get_run(run.id).data
    assert [said.metrics[f"total/{name}"] for name in ("tasks", "skipped", "resumed")] == [6, 0, 1]
    assert said.tags.get("rb.continues") == first
    assert said.tags[NOTE].endswith(f"\n\nThis run goes on from the run {first}.")


def test_what_waits_and_is_not_learned_from_ties_no_runs(tracker: Tracker, client: Any, kept: MemoryBank) -> None:
    stopped(tracker, kept, "left waiting", after=0)
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(), kept, run_id="beside") as run:
        run_stream(program, locks(), kept, run_id="beside", on_result=run.on_result)
    said = client.get_run(run.id).data
    assert (said.metrics["total/resumed"], "rb.continues" in said.tags) == (0, False)
    assert len(kept.pending()) == 1


def test_a_run_in_three_parts_names_the_part_before(tracker: Tracker, client: Any, kept: MemoryBank) -> None:
    parts = []
    for _ in range(2):
        parts.append(stopped(tracker, kept, "three parts", after=2))
        time.sleep(1.1)  # a bank tells time to the second
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(), kept, run_id="three parts") as run:
        run_stream(program, locks(), kept, run_id="three parts", on_result=run.on_result)
    before = [client.get_run(id).data.tags.get("rb.continues") for id in (*parts, run.id)]
    assert before == [None, *parts]


def test_a_run_of_the_same_name_with_another_bank_is_not_gone_on_from(
    tracker: Tracker, client: Any, kept: MemoryBank, bank: MemoryBank
) -> None:
    """It is told apart by when it was under way; where that does not tell, nothing is named."""
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    run_stream(program, locks(2), kept, run_id="same name")  # which nobody tracked
    time.sleep(1.1)
    with tracker.stream_run(program, locks(), bank, run_id="same name") as other:
        run_stream(program, locks(), bank, run_id="same name", on_result=other.on_result)
    with tracker.stream_run(program, locks(3), kept, run_id="same name") as run:
        run_stream(program, locks(3), kept, run_id="same name", on_result=run.on_result)
    said = client.get_run(run.id).data
    assert (said.metrics["total/skipped"], "rb.continues" in said.tags) == (2, False)
    assert "2 more were left out: they had been learned from before." in said.tags[NOTE]


def test_tasks_that_the_caller_left_out_are_counted(tracker: Tracker, client: Any, kept: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    first = stopped(tracker, kept, "monday", after=4)
    seen = kept.seen_tasks()
    rest = TaskStream("locks", tuple(task for task in locks() if task.id not in seen))
    with tracker.stream_run(program, rest, kept, run_id="tuesday", left_out=seen) as run:
        run_stream(program, rest, kept, run_id="tuesday", on_result=run.on_result)
    said = client.get_run(run.id).data
    assert (said.metrics["total/tasks"], said.metrics["total/skipped"]) == (2, 4)
    assert said.tags["rb.continues"] == first


def test_a_run_that_learns_nothing_has_skipped_nothing(tracker: Tracker, client: Any, kept: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    run_stream(program, locks(), kept, run_id="again")
    with tracker.stream_run(program, locks(), kept, run_id="again") as run:
        run_stream(program, locks(), kept, run_id="again", on_result=run.on_result, learn=False)
    assert client.get_run(run.id).data.metrics["total/skipped"] == 0


@pytest.mark.parametrize(
    ("learn", "k", "memory", "noted"),
    [
        (True, 1, "on", "6 lessons learned"),
        (False, 1, "frozen", "memory frozen: lessons were shown, and nothing was learned"),
        (True, 0, "unshown", "(memory unshown: none was shown)"),
        (False, 0, "off", "memory off: no lesson was shown, and nothing was learned"),
    ],
)
@pytest.mark.parametrize("way", ["on_result", "finish", "params"])
def test_a_run_that_only_measures_can_be_told_from_one_that_learns(
    tracker: Tracker, client: Any, bank: MemoryBank, learn: bool, k: int, memory: str, noted: str, way: str
) -> None:
    config = ProgramConfig(retrieve=RetrieveConfig(k=k))
    program = ReasoningBank(config, backbones=backbones(), environments=Lock.make)
    params = {"memory": memory} if way == "params" else None  # as the commands do, which know it before
    with tracker.stream_run(program, locks(), bank, run_id=memory, params=params) as run:
        on_result = {} if way == "finish" else {"on_result": run.on_result}
        report = run_stream(program, locks(), bank, run_id=memory, learn=learn, **on_result)
        if way == "finish":
            run.finish(report)
    found = client.get_run(run.id)
    assert found.data.params["memory"] == memory
    assert found.info.run_name == (
        f"{memory}: locks, ReasoningBank" if memory == "on" else f"{memory}: locks, ReasoningBank, memory {memory}"
    )
    assert noted in found.data.tags[NOTE]


def test_a_name_that_was_given_is_left_as_it_is(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    with tracker.stream_run(program, locks(1), bank, run_id="named", name="mine") as run:
        run_stream(program, locks(1), bank, run_id="named", on_result=run.on_result, learn=False)
    found = client.get_run(run.id)
    assert (found.info.run_name, found.data.params["memory"]) == ("mine", "frozen")


def test_a_stream_is_whatever_run_stream_takes(tracker: Tracker, client: Any, bank: MemoryBank) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    tasks = [*locks(2)]
    with tracker.stream_run(program, tasks, bank, run_id="a list") as run:
        run_stream(program, tasks, bank, run_id="a list", on_result=run.on_result)
    said = client.get_run(run.id).data
    assert (said.params["stream"], said.params["stream.digest"]) == ("tasks", locks(2).digest)
    assert said.metrics["total/tasks"] == 2
    asked = ReasoningBank(backbones=backbones())
    texts = ("What is 1?", "What is 2?")
    with tracker.stream_run(asked, texts, bank, run_id="texts") as run:
        run_stream(asked, texts, bank, run_id="texts", on_result=run.on_result)
    assert client.get_run(run.id).data.params["stream.tasks"] == "2"


@pytest.mark.parametrize("enabled", [True, False])
def test_what_is_no_stream_is_refused_before_a_run_is_made(
    tracker: Tracker, client: Any, bank: MemoryBank, enabled: bool
) -> None:
    program = ReasoningBank(backbones=backbones(), environments=Lock.make)
    asked = tracker if enabled else Tracker(TrackingConfig(enabled=False))
    experiments = [each.experiment_id for each in client.search_experiments()]
    before = len(client.search_runs(experiments))
    for stream in ("mail.jsonl", [1]):
        with (
            pytest.raises(InputError),
            asked.stream_run(program, stream, bank, run_id="none"),  # type: ignore[arg-type]
        ):
            pass
    assert len(client.search_runs(experiments)) == before
