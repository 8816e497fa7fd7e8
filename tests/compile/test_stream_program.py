"""A program over a stream as optimizers call it: the same for the same stream, whoever calls it and how often."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import MemoryBank, ReasoningBank, TaskStream
from rb_dspy.errors import BackboneError, InputError
from rb_dspy.matts import MaTTS
from rb_dspy.protocols import Vectors
from rb_dspy.stream import RunReport, run_stream
from rb_dspy.stream.program import StreamProgram, stream_example
from rb_dspy.testing import Doors, HashEmbedder, Lock, Prompt, Reply
from tests.compile.school import Hushed, hushed
from tests.worlds import answers, backbones, hall, lock, openers, prompts


def halls(maker: str, right: str, count: int = 3) -> TaskStream:
    return TaskStream(maker, tuple(hall(maker, number, right) for number in range(count)))


def scaled() -> MaTTS:
    return MaTTS(ReasoningBank(backbones=backbones(openers), environments=Doors.make), k=3)


def simple(script: Any = answers) -> ReasoningBank:
    return ReasoningBank(backbones=backbones(script), environments=Lock.make)


def whole(program: Any, bank: MemoryBank | None = None) -> StreamProgram:
    return StreamProgram(program, bank, embedder=HashEmbedder())


def told(report: RunReport) -> list[Any]:
    """What a run did, without times."""
    return [
        (
            result.task.id,
            result.outcome,
            result.outcomes,
            result.prediction.verdict,
            [item.title for item in result.prediction.memory.items],
            result.prediction.memory_items,
            [[step.action for step in rollout.steps] for rollout in result.rollouts],
        )
        for result in report.results
        if result.prediction is not None
    ]


def test_the_score_is_what_was_solved_of_the_stream_and_lessons_count_within_it() -> None:
    done = whole(scaled())(stream=halls("Elm", "yellow"))
    assert [result.outcomes[0].success for result in done.report.results if result.outcomes[0]] == [False, True, True]
    assert done.score == 1.0  # the selector finds the rollout that worked in the first task
    assert done.report.results[1].prediction.memory.items
    one = TaskStream("one", (lock("Abus", 0, code="0000"), lock("Abus", 1), lock("Yale", 2), lock("Yale", 3)))
    assert whole(simple())(stream=one).score == 0.25


def test_every_call_starts_anew(bank: MemoryBank) -> None:
    program = whole(scaled(), bank)
    first, second = (program(stream=halls("Elm", "yellow")).report for _ in range(2))
    assert told(first) == told(second)
    assert not first.results[0].prediction.memory.items
    assert told(copy.deepcopy(program)(stream=halls("Elm", "yellow")).report) == told(first)
    assert told(program.deepcopy()(stream=halls("Elm", "yellow")).report) == told(first)


@pytest.mark.parametrize("kept", [False, True])
def test_the_bank_that_is_given_is_used_and_never_written(tmp_path: Path, kept: bool) -> None:
    url = tmp_path / "bank.sqlite" if kept else None
    with MemoryBank.open(url, scope="test", embedder=HashEmbedder()) as bank:
        run_stream(scaled(), halls("Elm", "yellow", 1), bank, run_id="before")
        before = bank.experiences(), bank.items(), bank.snapshot("before").digest
        later = TaskStream("later", halls("Elm", "yellow", 3).tasks[1:])
        for report in (whole(scaled(), bank)(stream=later).report, whole(scaled())(stream=later, bank=bank).report):
            assert report.results[0].prediction.memory.items == tuple(before[1])
        assert (bank.experiences(), bank.items(), bank.snapshot("before").digest) == before
        assert bank.pending() == []


def test_four_threads_give_what_one_gives(bank: MemoryBank) -> None:
    rights = {"Elm": "yellow", "Oak": "blue", "Ash": "green", "Fir": "red"}
    examples = [stream_example(halls(maker, right)) for maker, right in rights.items()] * 3
    program = whole(scaled(), bank)
    alone = [told(program(**example.inputs()).report) for example in examples[:4]] * 3

    def score(gold: Any, pred: Any, trace: Any = None) -> float:
        return float(pred.score)

    done = dspy.Evaluate(devset=examples, metric=score, num_threads=4, display_progress=False)(program)
    assert [told(prediction.report) for _, prediction, _ in done.results] == alone
    assert len(bank) == 0


def test_tasks_that_break_are_recorded_and_never_end_the_stream() -> None:
    def script(prompt: Prompt) -> Reply:
        if "Abus" in prompt.text and "action" in prompt.wants:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    stream = TaskStream("s", (*(lock("Abus", n) for n in range(5)), lock("Yale", 0, code="0000")))
    done = whole(simple(script))(stream=stream)
    assert ["overloaded" in result.error for result in done.report.results] == [True] * 5 + [False]
    assert done.score == 1 / 6
    assert done.report.summary().infrastructure_errors == 5


def test_tasks_that_nobody_knows_the_outcome_of_do_not_count() -> None:
    def script(prompt: Prompt) -> Reply:
        if "Basta" in prompt.text and "action" in prompt.wants:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    program = ReasoningBank(backbones=backbones(script), environments=Hushed.of)
    right, wrong, broken = lock("Yale", 0, code="0000"), lock("Abus", 1), lock("Basta", 2)
    dark = tuple(hushed(lock("Krypto", number)) for number in range(3))
    done = whole(program)(stream=TaskStream("s", (dark[0], right, dark[1], wrong, broken, dark[2])))
    assert done.score == 1 / 3
    assert whole(program)(stream=TaskStream("s", (right, *dark))).score == 1.0
    assert whole(program)(stream=TaskStream("s", (broken, *dark))).score == 0.0
    assert whole(program)(stream=TaskStream("s", dark)).score is None


def test_what_is_no_bank_and_what_is_no_stream_is_refused_in_one_line(tmp_path: Path) -> None:
    stream = TaskStream("s", (lock("Abus", 0),))
    path: Any = str(tmp_path / "x.sqlite")
    for refused in (lambda: StreamProgram(simple(), path), lambda: whole(simple())(stream=stream, bank=path)):
        with pytest.raises(InputError, match=r"^got str for a bank; expected a MemoryBank: MemoryBank\.open\(.*$"):
            refused()
    with pytest.raises(InputError, match=r"^got list for a stream; expected a TaskStream.*$"):
        whole(simple())(stream=[lock("Abus", 0)])
    assert not list(tmp_path.iterdir())


def test_what_would_break_every_task_is_raised() -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.BillingError("no credit")

    with pytest.raises(BackboneError, match="no credit"):
        whole(simple(script))(stream=TaskStream("s", (lock("Abus", 0),)))


@pytest.mark.parametrize("make", [simple, scaled])
def test_the_trace_is_whole(make: Any) -> None:
    program = make()
    stream = halls("Elm", "yellow") if isinstance(program, MaTTS) else TaskStream("s", (lock("Abus", 0), lock("A", 1)))
    with dspy.context(trace=[]):
        whole(program)(stream=stream)
        trace = list(dspy.settings.trace)
    assert len(trace) == len(prompts(program.backbones)) > 0
    own = {id(predictor) for _, predictor in program.named_predictors()}
    assert {id(called) for called, _, _ in trace} <= own


def test_predictors_have_their_names_and_the_state_holds_prompts_only(bank: MemoryBank) -> None:
    program = whole(scaled(), bank)
    named = [name for name, _ in program.named_predictors()]
    assert named == [f"program.{name}" for name, _ in scaled().named_predictors()]
    assert {"program.judge.predict", "program.contrast.predict", "program.refine.again"} <= set(named)
    assert set(program.dump_state()) == set(named)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(whole(ReasoningBank(), bank))


def test_an_embedder_is_never_copied() -> None:
    class Locked:
        """Like a real one, it cannot be copied."""

        id, dimension = "locked", 64

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def embed(self, texts: Sequence[str]) -> Vectors:
            with self.lock:
                return HashEmbedder().embed(texts)

    program = StreamProgram(simple(), embedder=Locked())
    one = TaskStream("s", (lock("Abus", 0, code="0000"),))
    assert copy.deepcopy(program)(stream=one).score == 1


def test_streams_that_cannot_be_scored_are_refused(bank: MemoryBank) -> None:
    program = whole(simple(), bank)
    with pytest.raises(InputError, match="'empty' has no tasks"):
        program(stream=TaskStream("empty", ()))
    with pytest.raises(InputError, match="'lock/Abus/0' stands twice"):
        program(stream=TaskStream("twice", (lock("Abus", 0), lock("Abus", 0))))
    run_stream(simple(), [lock("Abus", 0)], bank, run_id="compile")
    with pytest.raises(InputError, match="has learned from it in a run called 'compile'"):
        program(stream=TaskStream("s", (lock("Abus", 0),)))
